"""A message engine of two files, for the programs that the tests start.

``published`` holds what was published, one JSON row a record; ``control`` is read as the
control topic. Only what a role uses is here; values are hex.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verlops.errors import UnknownOutcomeError
from verlops.ports import Fetched, Position


class FileLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def open(cls, config: Any) -> FileLog:
        return cls(Path(config.queue.path))

    def publish(self, topic: str, records: Sequence[tuple[str, bytes | None]]) -> list[Position]:
        self._fail_if_down()
        with (self._folder / "published").open("a") as file:
            for key, value in records:
                file.write(json.dumps([topic, key, (value or b"").hex()]) + "\n")
        return [Position(0, 0) for _ in records]

    def end_offsets(self, topic: str) -> dict[int, int]:
        self._fail_if_down()
        return {0: len(self._rows())}

    def read(self, topic: str, partition: int, start: int, limit: int = 500) -> list[Fetched]:
        rows = list(enumerate(self._rows()))[start : start + limit]
        return [Fetched(topic, 0, n, key, bytes.fromhex(value), 0.0) for n, (key, value) in rows]

    def close(self) -> None:
        (self._folder / "closed").touch()

    def _rows(self) -> list[list[str]]:
        path = self._folder / "control"
        return [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []

    def _fail_if_down(self) -> None:
        if (self._folder / "down").exists():
            raise UnknownOutcomeError("the log does not answer")
