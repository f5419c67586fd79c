"""The samples of one update as flat arrays, in a file between two processes.

Written by the role process (which knows the log), read by every rank of the update.
Shapes: n samples, and all their tokens one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from verlops.messages import Group

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """Arrays over samples: lengths, rewards, groups, ages; over tokens: ids, logprobs."""

    ids: npt.NDArray[np.int32]
    """Prompt then response ids of sample after sample."""
    prompt_lengths: Ints
    response_lengths: Ints
    logprobs: Floats
    """Behaviour log-probabilities of the response tokens, sample after sample."""
    rewards: Floats
    groups: Ints
    """Index of each sample's group."""
    versions: Ints
    """Oldest version in each sample's group."""

    def size(self) -> int:
        """Number of samples."""
        return len(self.rewards)

    def tokens(self, index: int) -> npt.NDArray[np.int32]:
        """Prompt and response ids of one sample."""
        ends = self._ends()
        length = self.prompt_lengths[index] + self.response_lengths[index]
        return self.ids[ends[index] - length : ends[index]]

    def behaviour(self, index: int) -> Floats:
        """Behaviour log-probabilities of one sample's response."""
        end = int(np.cumsum(self.response_lengths)[index])
        return self.logprobs[end - int(self.response_lengths[index]) : end]

    def _ends(self) -> Ints:
        return np.cumsum(self.prompt_lengths + self.response_lengths)


def from_groups(groups: Sequence[Group]) -> Batch:
    """The batch of these groups, sample after sample in their order."""
    rows = [(g, group, sample) for g, group in enumerate(groups) for sample in group.samples]
    ids = [group.prompt_token_ids + sample.token_ids for _, group, sample in rows]
    return Batch(
        ids=np.frombuffer(b"".join(ids), dtype="<i4"),
        prompt_lengths=np.array([len(g.prompt_token_ids) // 4 for _, g, _ in rows], np.int64),
        response_lengths=np.array([len(s.token_ids) // 4 for _, _, s in rows], np.int64),
        logprobs=np.frombuffer(b"".join(s.logprobs for _, _, s in rows), dtype="<f4"),
        rewards=np.array([s.reward for _, _, s in rows], np.float32),
        groups=np.array([g for g, _, _ in rows], np.int64),
        versions=np.array([group.oldest_version() for _, group, _ in rows], np.int64),
    )


def save(batch: Batch, path: Path) -> None:
    """Write the batch; a reader sees it whole or not at all."""
    temporary = path.with_suffix(".tmp.npz")
    with temporary.open("wb") as file:
        np.savez(file, **batch._asdict())  # type: ignore[arg-type]
    temporary.replace(path)


def load(path: Path) -> Batch:
    """Read a batch."""
    with np.load(path, allow_pickle=False) as arrays:
        return Batch(**{name: arrays[name] for name in Batch._fields})
