"""``verlops init``: a commented config, with its schema beside it for editors."""

from __future__ import annotations

from pathlib import Path

from verlops import registry
from verlops.assemble.load import template as template_text
from verlops.assemble.load import templates
from verlops.cli.config_cmd import schema
from verlops.cli.output import to_json
from verlops.errors import ConfigError, VerlopsError

SCHEMA = Path(".verlops") / "schema.json"
"""Where the schema lies, seen from the folder of the config."""
SCHEMA_LINE = "# yaml-language-server: $schema="


def command(*, template: str, path: Path, force: bool) -> int:
    """Write a template to ``path``. Raises ConfigError rather than overwrite."""
    if template not in templates():
        raise ConfigError(registry.unknown(template, templates(), what="template"))
    _write(path, _with_schema(template_text(template)), force)
    _write(path.parent / SCHEMA, to_json(schema()) + "\n", force=True)
    print(f"wrote {path}; check it with: verlops config validate -c {path}")
    return 0


def _with_schema(text: str) -> str:
    first, _, rest = text.partition("\n")
    body = rest if first.startswith(SCHEMA_LINE) else text
    return f"{SCHEMA_LINE}{SCHEMA.as_posix()}\n{body}"


def _write(path: Path, text: str, force: bool) -> None:
    try:
        if path.name == SCHEMA.name:
            path.parent.mkdir(exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists already", hint="--force overwrites it") from None
    except OSError as error:
        raise VerlopsError(f"cannot write {path}: {error.strerror}") from error
