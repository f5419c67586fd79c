"""Saving and loading: the training state by DCP (any number of ranks), the model for HF.

State files are only opened after their checksums equal the version file's (the caller's
duty: ``lineage.fetch_files``), because torch's loader unpickles.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from verlops_workers.trainer.policy import Network

WEIGHTS = ".safetensors"
NOT_COPIED = (WEIGHTS, ".bin", ".index.json")


def save_state(network: Network, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Parameters in fp32 and optimizer state; a collective."""
    model, optim = get_state_dict(network, optimizer)
    dcp.save({"model": model, "optim": optim}, checkpoint_id=str(folder))


def load_state(network: Network, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """The inverse, whatever number of ranks saved it; a collective."""
    model, optim = get_state_dict(network, optimizer)
    state: dict[str, Any] = {"model": model, "optim": optim}
    dcp.load(state, checkpoint_id=str(folder))
    set_state_dict(
        network, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )


def export_model(network: Network, parent: str, folder: Path, dtype: str) -> None:
    """A folder that ``from_pretrained`` loads; a collective, written by rank 0.

    Tokenizer and generation files are the parent's.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(network, options=options)
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        _copy_companions(Path(parent), parent, folder)
        lm: Any = network.lm
        lm.config.save_pretrained(folder)
        tied = bool(getattr(lm.config.get_text_config(), "tie_word_embeddings", False))
        weights = {
            name.removeprefix("lm."): tensor.to(getattr(torch, dtype)).contiguous()
            for name, tensor in state.items()
            if name.startswith("lm.") and not (tied and name == "lm.lm_head.weight")
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    dist.barrier()


def _copy_companions(path: Path, name: str, folder: Path) -> None:
    if not path.is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(name).save_pretrained(folder)
        return
    for file in path.iterdir():
        if file.is_file() and not file.name.endswith(NOT_COPIED):
            shutil.copy2(file, folder / file.name)
