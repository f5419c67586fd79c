"""Config files for the tests of loading."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from verlops.assemble.load import Loaded, load_config, template
from verlops.errors import ConfigError


class Files:
    """Writes configs into an empty working folder and loads them."""

    def __init__(self, here: Path) -> None:
        self.here = here

    def write(self, text: str, name: str = "c.yaml") -> Path:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def good(self, **changes: Any) -> str:
        """The embedded default with values at paths changed (``__`` for a dot)."""
        data = yaml.safe_load(template("local"))
        for path, value in changes.items():
            *above, last = path.split("__")
            section = data
            for key in above:
                section = section[key]
            section[last] = value
        return yaml.safe_dump(data, allow_unicode=True)

    def load(self, text: str) -> Loaded:
        self.write(text)
        return load_config(Path("c.yaml"), {})

    def faults(self, text: str) -> list[str]:
        """The faults of a text without the name of the file before each."""
        with pytest.raises(ConfigError) as caught:
            self.load(text)
        assert caught.value.exit_code == 2
        lines = str(caught.value).split("\n")
        assert all(line.startswith("c.yaml: ") for line in lines)
        return [line.removeprefix("c.yaml: ") for line in lines]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)
