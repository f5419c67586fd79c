"""Advantages: one small pure function a method.

All take rewards, values and mask [n, t] (t response positions, mask 1 on real tokens),
groups [n] (index of each sample's group) and keyword options they may ignore; all return
(advantages [n, t], returns [n, t] or None when the method has no critic). Masked
positions never influence real ones and are 0 in the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
VARIANCE_EPSILON = 1e-8


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    groups: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al., arXiv 1506.02438), whitened.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γλ A_{t+1}; a masked position is skipped:
    V_{t+1} and A_{t+1} are carried across it. Returns are A + V before whitening.
    """
    del groups
    advantages = raw_gae(rewards, values, mask, gamma=gamma, lam=lam)
    return whiten(advantages, mask), (advantages + values) * mask


def raw_gae(rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float) -> Tensor:
    """The advantages of ``gae`` before whitening; shapes [n, t]."""
    found = torch.zeros_like(rewards)
    next_value = torch.zeros_like(rewards[:, 0])
    running = torch.zeros_like(next_value)
    for t in reversed(range(rewards.shape[1])):
        real = mask[:, t] > 0
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(real, delta + gamma * lam * running, running)
        next_value = torch.where(real, values[:, t], next_value)
        found[:, t] = torch.where(real, running, torch.zeros_like(running))
    return found


def grpo(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    groups: Tensor,
    *,
    scale: bool = True,
    **_: object,
) -> tuple[Tensor, None]:
    """Group-relative advantages (Shao et al., arXiv 2402.03300): (s − mean) / (std + 1e-6).

    The standard deviation is unbiased; ``scale=False`` leaves it out (Dr.GRPO). A group
    whose scores are all equal gets 0. Raises ValueError for a group of one: it has no
    relative signal.
    """
    del values
    scores = (rewards * mask).sum(1)
    count = int(groups.max()) + 1
    sizes = torch.bincount(groups, minlength=count).to(scores)
    if bool((sizes[groups] < 2).any()):
        raise ValueError("a group of one sample has no group-relative advantage")
    safe = sizes.clamp(min=1)
    mean = torch.zeros(count).to(scores).index_add_(0, groups, scores) / safe
    centred = scores - mean[groups]
    squares = torch.zeros(count).to(scores).index_add_(0, groups, centred**2)
    std = (squares / (sizes - 1).clamp(min=1)).sqrt()
    scaled = centred / (std[groups] + EPSILON) if scale else centred
    return scaled[:, None] * mask, None


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit (unbiased) variance over the real tokens; 0 elsewhere."""
    count = mask.sum()
    mean = (values * mask).sum() / count
    variance = (((values - mean) ** 2) * mask).sum() / (count - 1).clamp(min=1)
    return (values - mean) * torch.rsqrt(variance + VARIANCE_EPSILON) * mask
