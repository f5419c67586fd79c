"""Ranks and micro-batches change neither the loss nor its gradient (real torchrun, gloo)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from verlops_workers.trainer import batch as batches

SCRIPT = str(Path(__file__).with_name("gradient_script.py"))


def run(tools, folder: Path, tiny: Path, out: str, ranks: int, budget: int, **more) -> dict:
    batches.save(tools.make_batch(size=11, group=11), folder / "batch.npz")
    task = {
        "model": str(tiny),
        "trainer": tools.settings(micro_batch_tokens=budget, advantage="gae"),
        "indices": list(range(11)),
        "out": out,
        **more,
    }
    (folder / "task.json").write_text(json.dumps(task))
    tools.torchrun(SCRIPT, ranks, str(folder))
    with np.load(folder / out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def close(a: dict, b: dict) -> None:
    assert set(a) == set(b)
    for name in a:
        assert np.allclose(a[name], b[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.e2e
def test_two_ranks_and_any_split_equal_one(tools, tmp_path: Path, tiny: Path) -> None:
    whole = run(tools, tmp_path, tiny, "one.npz", ranks=1, budget=100_000)
    close(whole, run(tools, tmp_path, tiny, "split.npz", ranks=1, budget=17))
    close(whole, run(tools, tmp_path, tiny, "two.npz", ranks=2, budget=23))
    assert any(np.abs(whole[n]).max() > 0 for n in whole if n.startswith("g:"))


@pytest.mark.e2e
def test_state_of_two_ranks_loads_in_one_and_back(tools, tmp_path: Path, tiny: Path) -> None:
    saved = str(tmp_path / "state2")
    two = run(tools, tmp_path, tiny, "two.npz", ranks=2, budget=40, train=1, save=saved)
    one = run(tools, tmp_path, tiny, "one.npz", ranks=1, budget=40, load=saved)
    close({n: two[n] for n in two if n[0] == "p"}, {n: one[n] for n in one if n[0] == "p"})
    # The optimizer's moments came along: the next steps are the same too.
    again = {"train": 1, "load": saved}
    a = run(tools, tmp_path, tiny, "a.npz", ranks=1, budget=40, **again)
    b = run(tools, tmp_path, tiny, "b.npz", ranks=2, budget=40, **again)
    for name in (n for n in a if n.startswith("p:")):
        assert np.allclose(a[name], b[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.e2e
def test_stopping_and_resuming_equals_an_unbroken_run(tools, tmp_path: Path, tiny: Path) -> None:
    saved = str(tmp_path / "state")
    unbroken = run(tools, tmp_path, tiny, "unbroken.npz", ranks=1, budget=40, train=2)
    run(tools, tmp_path, tiny, "half.npz", ranks=1, budget=40, train=1, save=saved)
    resumed = run(tools, tmp_path, tiny, "resumed.npz", ranks=1, budget=40, train=1, load=saved)
    for name in (n for n in unbroken if n.startswith("p:")):
        assert np.allclose(unbroken[name], resumed[name], rtol=0, atol=1e-6), name
