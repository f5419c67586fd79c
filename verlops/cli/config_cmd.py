"""``verlops config validate | show | schema``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from verlops.assemble.load import load_config
from verlops.cli.output import print_json
from verlops.config import Config

SCHEMA_VERSION = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def validate(*, config: Path | None) -> int:
    """Check a config; raises ConfigError with every fault."""
    loaded = load_config(config)
    print(f"{loaded.source}: ok ('{loaded.config.name}', state in {loaded.state_dir})")
    return 0


def show(*, config: Path | None, json: bool) -> int:
    """Print the resolved config: as YAML that reads back the same, or as JSON."""
    loaded = load_config(config)
    values = loaded.config.model_dump(mode="json")
    if json:
        source = {"schema_version": SCHEMA_VERSION, "source": loaded.source}
        print_json({**source, "config": values})
    else:
        print(f"# {loaded.source}, with every default and every path resolved")
        print(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True), end="")
    return 0


def print_schema() -> int:
    """Print the JSON schema of a config."""
    print_json(schema())
    return 0


def schema() -> dict[str, Any]:
    """The JSON schema of a config; defaults are written as a config writes them."""
    made = Config.model_json_schema(mode="serialization")
    return {"$schema": DIALECT, **made, "title": "verlops config"}


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes what other readers of YAML would not take for text."""


# PyYAML writes the text 1e-3 without quotes: to it a number needs a dot.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
