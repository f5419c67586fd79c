"""From samples to padded tensors: prompts and responses left-aligned, pads to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from verlops_workers.trainer.batch import Batch


class Rows(NamedTuple):
    """One micro-batch: b rows of l tokens, t response positions."""

    ids: Tensor
    """[b, l]"""
    attention: Tensor
    """[b, l], 1 on real tokens."""
    positions: Tensor
    """[b, l]"""
    sources: Tensor
    """[b, t]: the position whose logits predict response token t (the one before it)."""
    targets: Tensor
    """[b, t]: the response tokens, 0 where there is none."""


def rows(batch: Batch, indices: Sequence[int], device: torch.device, width: int) -> Rows:
    """The rows of these samples, ``width`` response positions wide.

    No samples: one row of one token, so that every rank runs the same collectives.
    """
    if not indices:
        one = torch.zeros((1, 2), dtype=torch.long, device=device)
        nothing = torch.zeros((1, width), dtype=torch.long, device=device)
        return Rows(
            one, torch.ones_like(one), torch.arange(2, device=device)[None], nothing, nothing
        )
    found = [batch.tokens(i) for i in indices]
    longest = max(len(tokens) for tokens in found)
    ids = np.zeros((len(found), longest), np.int64)
    attention = np.zeros_like(ids)
    sources = np.zeros((len(found), width), np.int64)
    targets = np.zeros_like(sources)
    for row, (index, tokens) in enumerate(zip(indices, found, strict=True)):
        prompt, response = int(batch.prompt_lengths[index]), int(batch.response_lengths[index])
        ids[row, : len(tokens)] = tokens
        attention[row, : len(tokens)] = 1
        sources[row, :response] = np.arange(prompt - 1, prompt - 1 + response)
        targets[row, :response] = tokens[prompt:]
    positions = np.tile(np.arange(longest), (len(found), 1))
    arrays = (ids, attention, positions, sources, targets)
    return Rows(*(torch.from_numpy(a).to(device) for a in arrays))


def per_token(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(mask, behaviour logprobs, rewards), each [n, t] on the CPU.

    The mask comes from lengths, never from a pad id (which may be the end-of-text id);
    the score lies on the last response token.
    """
    width = int(batch.response_lengths.max())
    lengths = torch.from_numpy(batch.response_lengths)
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    behaviour = torch.zeros_like(mask)
    behaviour[mask > 0] = torch.from_numpy(batch.logprobs.copy())
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(lengths)), lengths - 1] = torch.from_numpy(batch.rewards.copy())
    return mask, behaviour, rewards
