"""A tiny causal LM, batches of uneven samples, and torchrun for small checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verlops.config.schema import Trainer
from verlops_workers.trainer.batch import Batch

VOCABULARY = 32


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers in a folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_batch(size: int = 12, group: int = 4, seed: int = 0, longest: int = 9) -> Batch:
    """Samples of uneven lengths with made-up behaviour log-probabilities."""
    draw = np.random.default_rng(seed)
    prompts = draw.integers(1, 6, size)
    responses = draw.integers(1, longest, size)
    total = int((prompts + responses).sum())
    return Batch(
        ids=draw.integers(2, VOCABULARY, total).astype(np.int32),
        prompt_lengths=prompts.astype(np.int64),
        response_lengths=responses.astype(np.int64),
        logprobs=-draw.uniform(2.5, 4.5, int(responses.sum())).astype(np.float32),
        rewards=draw.integers(0, 2, size).astype(np.float32),
        groups=np.arange(size, dtype=np.int64) // group,
        versions=np.zeros(size, np.int64),
    )


def settings(**changes) -> dict:
    """A trainer section as plain data."""
    base = {"learning_rate": 1e-3, "mini_batch": 6, "micro_batch_tokens": 40, "lam": 0.95}
    return Trainer(**{**base, **changes}).model_dump()


def torchrun(script: str, ranks: int, *arguments: str) -> None:
    """Run a script under torchrun, as a user's machine would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", script, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """The helpers of this folder: make_batch, settings, torchrun."""
    return SimpleNamespace(make_batch=make_batch, settings=settings, torchrun=torchrun)
