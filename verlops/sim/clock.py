"""Virtual time: ``sleep`` moves the clock and returns at once."""

from __future__ import annotations

import random


class VirtualClock:
    """A clock that only moves when told to."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def jump(self, seconds: float) -> None:
        """Move the clock either way, as a badly set machine would."""
        self._now += seconds


class SeededIds:
    """Ids and randomness that a seed repeats."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def new(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def random(self) -> float:
        return self._random.random()
