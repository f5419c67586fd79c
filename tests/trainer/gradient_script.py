"""Run under torchrun by test_ranks.py: one backward, its gradients and facts to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from verlops_workers.trainer import batch as batches
from verlops_workers.trainer.checkpoint import load_state, save_state
from verlops_workers.trainer.job import Job
from verlops_workers.trainer.loop import Update
from verlops_workers.trainer.update import build


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    task = json.loads((folder / "task.json").read_text())
    job = Job(
        model=task["model"],
        state=None,
        parent=0,
        steps_done=0,
        seed="s",
        trainer=task["trainer"],
        bf16=False,
        trust_remote_code=False,
        dtype="float32",
    )
    device = torch.device("cpu")
    network, optimizer = build(job, device)
    if task.get("load"):
        load_state(network, optimizer, Path(task["load"]))
    batch = batches.load(folder / "batch.npz")
    update = Update(
        network, optimizer, batch, job.trainer, steps_done=task.get("steps", 0), device=device
    )
    fixed = update.prepare()
    for _ in range(task.get("train", 0)):
        list(update.run(fixed, "s", lambda _done, _of: None))
        fixed = update.prepare()
    if task.get("save"):
        save_state(network, optimizer, Path(task["save"]))
    facts = update.gradients(task["indices"], fixed)
    arrays = {}
    for name, parameter in network.named_parameters():
        full = parameter.full_tensor()
        grad = parameter.grad.full_tensor()
        arrays[f"p:{name}"], arrays[f"g:{name}"] = full.detach().numpy(), grad.numpy()
    if dist.get_rank() == 0:
        np.savez(
            folder / task["out"],
            loss=np.array(facts["loss"]),
            advantages=fixed.advantages,
            **arrays,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
