"""Losses a token, and what is measured on the way. Pure; shapes [n, t].

``mask`` is 1 on response tokens. Every function returns unreduced values: the loop
divides by the global number of tokens of the optimizer step, so that micro-batches and
ranks do not change the result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MOST_LOG_RATIO = 20.0
"""A log-ratio is clamped here before exp: beyond it there is no number left to learn from."""
MOST_K3 = 10.0


class PolicyLoss(NamedTuple):
    """The loss a token, and the same-shaped facts behind it (detached)."""

    loss: Tensor
    clipped: Tensor
    ratio: Tensor


def ppo(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
    tis_cap: float | None = 2.0,
    **_: object,
) -> PolicyLoss:
    """Clipped objective with dual clip, decoupled (Hilton et al., arXiv 2110.00641).

    r = π_θ/π_proximal is clipped; the detached weight π_proximal/π_behaviour, truncated at
    ``tis_cap``, corrects for the policy that sampled. With proximal = behaviour this is
    plain PPO (arXiv 1707.06347); dual clip is arXiv 1912.09729.
    """
    ratio = (logprobs - proximal).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, bounded)
    clipped = (bounded > plain).float()
    if dual_clip is not None:
        limited = torch.minimum(loss, -dual_clip * advantages)
        loss = torch.where(advantages < 0, limited, loss)
    loss = loss * importance(proximal, behaviour, tis_cap)
    return PolicyLoss(loss * mask, (clipped * mask).detach(), ratio.detach())


def importance(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """min(π_proximal/π_behaviour, cap), detached: truncated importance sampling."""
    weight = (proximal - behaviour).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp().detach()
    return weight if cap is None else weight.clamp(max=cap)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± ε) − R)²) a token."""
    near = old + (values - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2) * mask


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Log π − log π_ref: the plain estimator of KL(π ‖ π_ref) on samples of π."""
    return logprobs - reference


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """e^{−Δ} + Δ − 1 ≥ 0 with Δ = log π − log π_ref (Schulman), clamped at 10."""
    delta = (logprobs - reference).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    return (torch.exp(-delta) + delta - 1).clamp(max=MOST_K3)


def effective_share(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    """Effective sample size as a share of the tokens: (Σw)² / (n Σw²), w untruncated."""
    weight = importance(proximal, behaviour, None) * mask
    return weight.sum() ** 2 / (mask.sum() * (weight**2).sum())
