"""Cutting samples into micro-batches, the same number on every rank. Pure, seeded.

Every rank computes the whole plan and takes its own part: no rank waits for one that has
nothing, because a rank without work gets empty micro-batches.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

Plan = list[list[list[int]]]
"""[rank][micro-batch] → sample indices, possibly none."""


def mini_batches(size: int, mini: int, seed: str) -> list[list[int]]:
    """A seeded shuffle of ``size`` samples in pieces of ``mini``; the last may be shorter."""
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return [order[start : start + mini] for start in range(0, size, mini)]


def plan(indices: Sequence[int], lengths: Sequence[int], ranks: int, budget: int) -> Plan:
    """Samples over ranks (balanced by length) and micro-batches (padded tokens ≤ budget).

    A sample longer than the budget is a micro-batch of its own.
    """
    order = sorted(indices, key=lambda i: (-lengths[i], i))
    parts: list[list[int]] = [[] for _ in range(ranks)]
    for place, index in enumerate(order):
        turn, step = divmod(place, ranks)
        # Back and forth, so that no rank always gets the longer one of each round.
        parts[step if turn % 2 == 0 else ranks - 1 - step].append(index)
    cut = [_pack(part, lengths, budget) for part in parts]
    most = max(len(micros) for micros in cut)
    return [micros + [[]] * (most - len(micros)) for micros in cut]


def _pack(part: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Neighbours in length together; ``part`` is sorted, the longest first."""
    micros: list[list[int]] = []
    for index in part:
        fits = micros and (len(micros[-1]) + 1) * lengths[micros[-1][0]] <= budget
        if fits:
            micros[-1].append(index)
        else:
            micros.append([index])
    return micros
