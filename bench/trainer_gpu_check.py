"""The update process on a GPU: NCCL, bf16, and the same numbers as fp32 on the CPU.

``python bench/trainer_gpu_check.py`` makes a small Llama from a config, samples with the hf
engine, runs one update alone and one under torchrun, and prints what was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from verlops.config.schema import Trainer
from verlops_workers.trainer import batch as batches
from verlops_workers.trainer.job import Job, Work
from verlops_workers.trainer.launch import start


def model(folder: Path, hidden: int, layers: int, vocabulary: int) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def made_up(size: int, vocabulary: int, longest: int) -> batches.Batch:
    draw = np.random.default_rng(0)
    prompts, responses = draw.integers(4, 32, size), draw.integers(4, longest, size)
    return batches.Batch(
        ids=draw.integers(3, vocabulary, int((prompts + responses).sum())).astype(np.int32),
        prompt_lengths=prompts,
        response_lengths=responses,
        logprobs=np.full(int(responses.sum()), -float(np.log(vocabulary)), np.float32),
        rewards=draw.integers(0, 2, size).astype(np.float32),
        groups=np.arange(size) // 8,
        versions=np.zeros(size, np.int64),
    )


def update(
    root: Path, path: str, batch: batches.Batch, *, bf16: bool, torchrun: bool, cpu: bool
) -> dict:
    work = Work(root)
    trainer = Trainer(mini_batch=64, learning_rate=1e-5).model_dump()
    work.put_job(
        Job(
            model=path,
            state=None,
            parent=0,
            steps_done=0,
            seed="s",
            trainer=trainer,
            bf16=bf16,
            trust_remote_code=False,
            dtype="bfloat16" if bf16 else "float32",
        )
    )
    batches.save(batch, work.batch)
    started = time.monotonic()
    if cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if torchrun:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=1",
        ]
        command += ["-m", "verlops_workers.trainer.update", str(root)]
        code = subprocess.run(command, check=False).returncode
    else:
        code = start(root, 1).wait()
    if cpu:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    result = work.result()
    assert code == 0, code
    assert result is not None
    return {**result.metrics, "wall": time.monotonic() - started}


def main() -> None:
    print(
        json.dumps(
            {
                "card": torch.cuda.get_device_name(0),
                "torch": torch.__version__,
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        small = model(root / "small", 64, 2, 512)
        batch = made_up(128, 512, 32)
        rows = {
            "cpu fp32": update(root / "a", small, batch, bf16=False, torchrun=False, cpu=True),
            "gpu fp32": update(root / "b", small, batch, bf16=False, torchrun=False, cpu=False),
            "gpu fp32 torchrun": update(
                root / "c", small, batch, bf16=False, torchrun=True, cpu=False
            ),
            "gpu bf16": update(root / "d", small, batch, bf16=True, torchrun=False, cpu=False),
        }
        big = model(root / "big", 1024, 16, 32000)
        rows["gpu bf16 250M"] = update(
            root / "e", big, made_up(256, 32000, 512), bf16=True, torchrun=True, cpu=False
        )
    for name, m in rows.items():
        shown = {
            k: m[k]
            for k in (
                "loss",
                "value_loss",
                "grad_norm",
                "kl",
                "tokens_per_s",
                "seconds_update",
                "wall",
            )
        }
        print(name, {k: round(v, 6) for k, v in shown.items()})
    near = abs(rows["cpu fp32"]["grad_norm"] - rows["gpu fp32"]["grad_norm"])
    print("cpu and gpu gradient norms differ by", near)


if __name__ == "__main__":
    main()
