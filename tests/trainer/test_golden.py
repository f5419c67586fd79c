"""Golden values and properties of advantages and losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from verlops_workers.trainer import losses
from verlops_workers.trainer.advantages import grpo, raw_gae, whiten


def gae(rewards, values, mask=None, gamma=1.0, lam=1.0):
    r, v = tensor([rewards]), tensor([values])
    m = torch.ones_like(r) if mask is None else tensor([mask]).float()
    return raw_gae(r, v, m, gamma=gamma, lam=lam)[0].tolist()


def test_gae_golden() -> None:
    rewards, values = [0.0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]
    assert gae(rewards, values) == pytest.approx([0.9, 0.8, 0.7, 0.6], abs=1e-6)
    expected = [0.77329043, 0.71801215, 0.6603, 0.6]
    assert gae(rewards, values, gamma=0.99, lam=0.95) == pytest.approx(expected, abs=1e-6)


def test_gae_skips_masked_positions() -> None:
    found = gae([0.0, 0, 9, 1], [0.1, 0.2, 7, 0.4], [1, 1, 0, 1])
    assert found == pytest.approx([0.9, 0.8, 0.0, 0.6], abs=1e-6)
    without = gae([0.0, 0, 1], [0.1, 0.2, 0.4])
    assert [found[0], found[1], found[3]] == pytest.approx(without)


@pytest.mark.parametrize("junk", [50.0, -3.0, 0.0, 1e6])
@pytest.mark.parametrize("pads", [1, 3])
def test_num_1_pads_change_nothing(junk: float, pads: int) -> None:
    rewards = [0.0, 0, 2] + [0.0] * pads
    values = [0.5, 1.0, 0.5] + [junk] * pads
    mask = [1, 1, 1] + [0] * pads
    found = gae(rewards, values, mask, lam=0.9)
    assert found[:3] == pytest.approx([1.265, 0.85, 1.5], abs=1e-6)
    assert found[3:] == [0.0] * pads
    returns = [a + v for a, v in zip(found[:3], values[:3], strict=True)]
    assert returns == pytest.approx([1.765, 1.85, 2.0], abs=1e-6)


def test_num_7_the_stop_token_gets_the_score() -> None:
    mask = tensor([[1.0, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(3), mask.sum(1).long() - 1] = 1.0
    found = raw_gae(rewards, torch.zeros_like(mask), mask, gamma=1.0, lam=1.0)
    assert torch.equal(found, mask)


def scores(values):
    return tensor([[float(v)] for v in values]), torch.ones(len(values), 1)


def test_grpo_golden() -> None:
    rewards, mask = scores([1, 0, 0, 1])
    found, returns = grpo(rewards, rewards * 0, mask, torch.zeros(4, dtype=torch.long))
    assert returns is None
    expected = [0.866024, -0.866024, -0.866024, 0.866024]
    assert found[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_grpo_equal_scores_give_zero_and_a_group_of_one_is_refused() -> None:
    rewards, mask = scores([1, 1, 1])
    found, _ = grpo(rewards, rewards, mask, torch.zeros(3, dtype=torch.long))
    assert found.abs().max() == 0
    with pytest.raises(ValueError, match="group of one"):
        grpo(rewards, rewards, mask, tensor([0, 0, 1]))


def test_grpo_groups_are_independent() -> None:
    rewards, mask = scores([1, 0, 5, 9])
    found, _ = grpo(rewards, rewards, mask, tensor([0, 0, 1, 1]))
    half = 1 / math.sqrt(2)
    assert found[:, 0].tolist() == pytest.approx([half, -half, -half, half], abs=1e-4)


def test_whitening_ignores_masked_tokens() -> None:
    values, mask = tensor([[1.0, 2.0, 99.0]]), tensor([[1.0, 1.0, 0.0]])
    found = whiten(values, mask)
    half = 1 / math.sqrt(2)
    assert found[0].tolist() == pytest.approx([-half, half, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1, -1.2), (1.5, -1, 1.5), (0.5, 1, -0.5), (0.5, -1, 0.8)],
)
def test_ppo_clip_golden(ratio: float, advantage: float, expected: float) -> None:
    assert loss(math.log(ratio), 0.0, 0.0, advantage, dual_clip=None) == pytest.approx(expected)


def test_dual_clip_golden() -> None:
    assert loss(math.log(5), 0.0, 0.0, -1.0, dual_clip=3.0) == pytest.approx(3.0)
    assert loss(math.log(5), 0.0, 0.0, -1.0, dual_clip=None) == pytest.approx(5.0)


@pytest.mark.parametrize(("log_w", "expected"), [(0.4, 1.49182), (1.0, 2.0), (-1.0, 0.36788)])
def test_tis_golden(log_w: float, expected: float) -> None:
    found = losses.importance(tensor(log_w), tensor(0.0), 2.0)
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_effective_share_golden() -> None:
    log_w = tensor([0.4, 1.0, -1.0])
    found = losses.effective_share(log_w, torch.zeros(3), torch.ones(3))
    assert found.item() == pytest.approx(0.716516, abs=1e-5)


def test_value_clip_golden() -> None:
    found = losses.value_loss(tensor(0.5), tensor(0.0), tensor(0.1), tensor(1.0), 0.2)
    assert found.item() == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("delta", "k1", "k3"), [(0.2, 0.2, 0.01873075), (-0.5, -0.5, 0.14872127), (-29.0, -29.0, 10.0)]
)
def test_kl_estimators_golden(delta: float, k1: float, k3: float) -> None:
    assert losses.k1(tensor(delta), tensor(0.0)).item() == pytest.approx(k1)
    assert losses.k3(tensor(delta), tensor(0.0)).item() == pytest.approx(k3, abs=1e-5)


def test_num_3_the_estimators_have_the_right_sign() -> None:
    logp, ref = tensor([-1.0, -2.0]), tensor([-1.5, -1.0])
    assert losses.k1(logp, ref).tolist() == [0.5, -1.0]
    found = losses.k3(logp, ref)
    assert found.tolist() == pytest.approx([0.1065, 0.7183], abs=1e-4)
    assert found.mean().item() == pytest.approx(0.4124, abs=1e-4)
    assert losses.k3(logp, logp).abs().max() == 0
    assert losses.k3(logp, ref - 1).mean() != found.mean()


def test_kl_estimators_agree_with_the_exact_divergence() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(6).log_softmax(0), torch.randn(6).log_softmax(0)
    exact = (p.exp() * (p - q)).sum().item()
    drawn = torch.multinomial(p.exp(), 400_000, replacement=True)
    assert losses.k1(p[drawn], q[drawn]).mean().item() == pytest.approx(exact, rel=0.02)
    assert losses.k3(p[drawn], q[drawn]).mean().item() == pytest.approx(exact, rel=0.02)


def test_same_policy_gives_ratio_one_and_nothing_clipped() -> None:
    logs = torch.randn(3, 4)
    found = losses.ppo(logs, logs, logs, torch.randn(3, 4), torch.ones(3, 4))
    assert torch.equal(found.ratio, torch.ones(3, 4))
    assert found.clipped.sum() == 0


def test_decoupled_with_proximal_equal_behaviour_is_plain_ppo() -> None:
    torch.manual_seed(1)
    new, old, advantages = torch.randn(2, 5), torch.randn(2, 5), torch.randn(2, 5)
    decoupled = losses.ppo(new, old, old, advantages, torch.ones(2, 5), dual_clip=None)
    ratio = (new - old).exp()
    plain = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    assert torch.allclose(decoupled.loss, plain)


def test_the_importance_weight_carries_no_gradient() -> None:
    proximal = torch.zeros(1, 1, requires_grad=True)
    assert not losses.importance(proximal, torch.zeros(1, 1), 2.0).requires_grad


def loss(new: float, proximal: float, behaviour: float, advantage: float, **options) -> float:
    shapes = [tensor([[x]]) for x in (new, proximal, behaviour, float(advantage))]
    return losses.ppo(*shapes, torch.ones(1, 1), **options).loss.item()
