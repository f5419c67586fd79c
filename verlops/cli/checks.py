"""What a check of ``verlops doctor`` comes to."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One line: how it stands, with what to do about it unless it is ok."""

    name: str
    level: Level
    detail: str
    remedy: str = ""
