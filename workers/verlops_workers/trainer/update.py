"""The update process: ``python -m verlops_workers.trainer.update WORK``, under torchrun or alone.

Started while samples are still being collected, so that imports and model loading overlap
with it; then waits for the batch. Writes the new version's files and a result; commits
nothing.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from verlops_workers.trainer import batch as batches
from verlops_workers.trainer import losses
from verlops_workers.trainer.checkpoint import export_model, load_state, save_state
from verlops_workers.trainer.job import Job, Result, Work
from verlops_workers.trainer.loop import Fixed, Update
from verlops_workers.trainer.policy import Network, load_network, shard

NAP = 0.05


def main(work: Work) -> int:
    """Run the job in the work folder on this rank."""
    device = _device()
    gpu = device.type == "cuda"
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    try:
        _run(work, work.job(), device)
    finally:
        dist.destroy_process_group()
    return 0


def _run(work: Work, job: Job, device: torch.device) -> None:
    first = dist.get_rank() == 0
    network, optimizer = build(job, device)
    if first:
        work.put_progress("waiting", 0, 0)
    batch = _await_batch(work)
    started = time.monotonic()
    update = Update(
        network, optimizer, batch, job.trainer, steps_done=job.steps_done, device=device
    )
    fixed = update.prepare()

    def tell(done: int, of: int) -> None:
        if first:
            work.put_progress("training", done, of)

    steps = list(update.run(fixed, job.seed, tell))
    seconds = time.monotonic() - started
    if first:
        work.put_progress("saving", len(steps), len(steps))
        (work.out / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    save_state(network, optimizer, work.out / "state")
    export_model(network, job.model, work.out / "model", job.dtype)
    if first:
        state = {"optimizer_steps": update.steps_done, "seed": job.seed, "rng": _rng()}
        metrics = summarize(steps, fixed, batch, job.parent, seconds)
        work.put_result(Result(steps_done=update.steps_done, metrics=metrics, state=state))


def build(job: Job, device: torch.device) -> tuple[Network, torch.optim.Optimizer]:
    """The sharded network and its optimizer, resumed where there is a state."""
    torch.manual_seed(random.Random(job.seed).getrandbits(32))
    network = load_network(job.model, trust_remote_code=job.trust_remote_code).to(device)
    critic = job.trainer["advantage"] == "gae"
    network.value.requires_grad_(critic)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    shard(network, mesh, bf16=job.bf16)
    optimizer = _optimizer(network, job.trainer, critic)
    if job.state is not None:
        load_state(network, optimizer, Path(job.state))
        # The saved rate is the one of its last step: what holds is the config's.
        for group, rate in zip(optimizer.param_groups, _rates(job.trainer), strict=False):
            group["lr"] = rate
    return network, optimizer


def summarize(
    steps: list[dict[str, float]],
    fixed: Fixed,
    batch: batches.Batch,
    parent: int,
    seconds: float,
) -> dict[str, float | None]:
    """The update's metrics: means over its steps, and facts about its batch."""
    tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
    ages = parent - batch.versions
    drift = losses.k3(fixed.proximal, fixed.behaviour) * fixed.mask
    return {
        "reward_mean": float(batch.rewards.mean()),
        "reward_std": float(batch.rewards.std()),
        **{name: _mean([step[name] for step in steps]) for name in _MEANS},
        "lr": steps[-1]["lr"],
        "kl_behaviour": float(drift.sum() / fixed.mask.sum()),
        "ess": float(losses.effective_share(fixed.proximal, fixed.behaviour, fixed.mask)),
        "staleness_mean": float(ages.mean()),
        "staleness_max": float(ages.max()),
        "tokens_per_s": tokens / seconds if seconds > 0 else None,
        "seconds_update": seconds,
        "optimizer_steps": float(len(steps)),
    }


_MEANS = ("loss", "value_loss", "clip_fraction", "entropy", "kl", "grad_norm")


def _optimizer(network: Network, trainer: dict[str, Any], critic: bool) -> torch.optim.Optimizer:
    rate, critic_rate = _rates(trainer)
    groups = [{"params": list(network.lm.parameters()), "lr": rate}]
    if critic:
        groups.append({"params": list(network.value.parameters()), "lr": critic_rate})
    return torch.optim.AdamW(
        groups, betas=tuple(trainer["betas"]), weight_decay=trainer["weight_decay"]
    )


def _rates(trainer: dict[str, Any]) -> tuple[float, float]:
    rate, critic = trainer["learning_rate"], trainer["critic_learning_rate"]
    return rate, rate if critic is None else critic


def _await_batch(work: Work) -> batches.Batch:
    """Wait for the batch; end with the process that collects it."""
    parent = os.getppid()
    while not work.batch.exists():
        if os.getppid() != parent:
            raise SystemExit("the collecting process is gone")
        time.sleep(NAP)
    return batches.load(work.batch)


def _device() -> torch.device:
    if torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return torch.device("cpu")


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rng() -> str:
    state: Tensor = torch.get_rng_state()
    return bytes(state.tolist()).hex()


if __name__ == "__main__":
    sys.exit(main(Work(Path(sys.argv[1]))))
