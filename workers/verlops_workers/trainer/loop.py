"""The update: proximal pass, advantages, optimizer steps. Runs on every rank alike.

Every rank holds the whole batch on the CPU and computes its own micro-batches; sums are
global, so that neither ranks nor micro-batches change the loss or its gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from verlops.registry import load
from verlops_workers.trainer import losses
from verlops_workers.trainer.batch import Batch
from verlops_workers.trainer.micro import mini_batches, plan
from verlops_workers.trainer.policy import Network, Outputs
from verlops_workers.trainer.rows import per_token, rows


class Fixed(NamedTuple):
    """What stays the same during an update; all [n, t] on the CPU."""

    mask: Tensor
    behaviour: Tensor
    proximal: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor | None


class Update:
    """One update of a network over a batch."""

    def __init__(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        batch: Batch,
        settings: dict[str, Any],
        *,
        steps_done: int,
        device: torch.device,
    ) -> None:
        self._network = network
        self._optimizer = optimizer
        self._batch = batch
        self._settings = settings
        self._device = device
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._lengths = (batch.prompt_lengths + batch.response_lengths).tolist()
        self._loss = load("LOSSES", settings["algorithm"])
        self._critic = settings["advantage"] == "gae"
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self.steps_done = steps_done
        self.width = int(batch.response_lengths.max())

    def prepare(self) -> Fixed:
        """The no-grad pass with start-of-batch weights, and the advantages."""
        mask, behaviour, rewards = per_token(self._batch)
        proximal, values = self._proximal_pass(mask)
        advantages, returns = load("ADVANTAGES", self._settings["advantage"])(
            rewards,
            values,
            mask,
            torch.from_numpy(self._batch.groups),
            gamma=self._settings["gamma"],
            lam=self._settings["lam"],
        )
        return Fixed(mask, behaviour, proximal, values, advantages, returns)

    def run(
        self, fixed: Fixed, seed: str, tell: Callable[[int, int], None]
    ) -> Iterator[dict[str, float]]:
        """Every optimizer step's metrics, in order."""
        epochs, mini = self._settings["epochs"], self._settings["mini_batch"]
        pieces = [
            piece
            for epoch in range(epochs)
            for piece in mini_batches(self._batch.size(), mini, f"{seed}/{epoch}")
        ]
        for number, piece in enumerate(pieces, start=1):
            yield self._step(piece, fixed)
            tell(number, len(pieces))

    def gradients(self, indices: Sequence[int], fixed: Fixed) -> dict[str, Tensor]:
        """Backward over one mini-batch; the sums of its facts over all ranks.

        loss = Σ over response tokens / their number in the whole mini-batch. FSDP averages
        gradients over ranks, hence the factor of their number.
        """
        budget = self._settings["micro_batch_tokens"]
        own = plan(indices, self._lengths, self._ranks, budget)[self._rank]
        tokens = fixed.mask[list(indices)].sum().to(self._device)
        sums = torch.zeros(len(_FACTS), device=self._device, dtype=torch.float64)
        for number, micro in enumerate(own, start=1):
            self._sync(number == len(own))
            total, facts = self._micro(micro, fixed)
            (total * self._ranks / tokens).backward()
            sums += facts
        dist.all_reduce(sums)
        return dict(zip(_FACTS, sums / tokens, strict=True))

    def _step(self, indices: Sequence[int], fixed: Fixed) -> dict[str, float]:
        started = time.monotonic()
        self._warm_up()
        facts = self.gradients(indices, fixed)
        norm: Any = torch.nn.utils.clip_grad_norm_(
            [p for p in self._network.parameters() if p.requires_grad], self._settings["grad_clip"]
        )
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        return {
            **{name: value.item() for name, value in facts.items()},
            "grad_norm": norm.item(),
            "lr": self._optimizer.param_groups[0]["lr"],
            "seconds": time.monotonic() - started,
        }

    def _warm_up(self) -> None:
        """Linear warm-up over the lineage's optimizer steps, then constant."""
        steps = self._settings["warmup_steps"]
        share = min(1.0, (self.steps_done + 1) / steps) if steps else 1.0
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share

    def _micro(self, micro: list[int], fixed: Fixed) -> tuple[Tensor, Tensor]:
        out = self._forward(micro)
        mask = self._pick(fixed.mask, micro)
        proximal = self._pick(fixed.proximal, micro)
        policy = self._loss(
            out.logprobs,
            proximal,
            self._pick(fixed.behaviour, micro),
            self._pick(fixed.advantages, micro),
            mask,
            clip_low=self._settings["clip_low"],
            clip_high=self._settings["clip_high"],
            dual_clip=self._settings["dual_clip"],
            tis_cap=self._settings["tis_cap"],
        )
        total = policy.loss.sum()
        value_sum = torch.zeros((), device=self._device)
        if fixed.returns is not None:
            old, returns = self._pick(fixed.values, micro), self._pick(fixed.returns, micro)
            clip = self._settings["value_clip"]
            value_sum = losses.value_loss(out.values, old, returns, mask, clip).sum()
            total = total + self._settings["value_coef"] * value_sum
        entropy = (out.entropies * mask).sum()
        if self._settings["entropy_coef"]:
            total = total - self._settings["entropy_coef"] * entropy
        k3 = (losses.k3(out.logprobs.detach(), proximal) * mask).sum()
        parts = (policy.loss.sum(), value_sum, policy.clipped.sum(), entropy, k3)
        return total, torch.stack([part.detach().double() for part in parts])

    @torch.no_grad()
    def _proximal_pass(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros((2, *mask.shape), device=self._device)
        budget = self._settings["micro_batch_tokens"]
        everything = range(self._batch.size())
        for micro in plan(everything, self._lengths, self._ranks, budget)[self._rank]:
            out = self._forward(micro)
            if micro:
                index = torch.tensor(micro, device=self._device)
                found[0, index], found[1, index] = out.logprobs, out.values.to(found.dtype)
        dist.all_reduce(found)
        found = found.cpu() * mask
        return found[0], found[1]

    def _forward(self, micro: list[int]) -> Outputs:
        out: Outputs = self._network(rows(self._batch, micro, self._device, self.width))
        return out

    def _pick(self, values: Tensor, micro: list[int]) -> Tensor:
        """Rows of a CPU tensor on the device; one row of zeros for an empty micro-batch."""
        found = values[micro] if micro else torch.zeros((1, values.shape[1]))
        return found.to(self._device)

    def _sync(self, last: bool) -> None:
        """Reduce gradients with the last micro-batch only."""
        sync: Any = getattr(self._network, "set_requires_gradient_sync", None)
        if sync is not None:
            sync(last)


_FACTS = ("loss", "value_loss", "clip_fraction", "entropy", "kl")
