"""Log-probabilities, masks and micro-batches on small real models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from verlops_workers.trainer.batch import Batch, load, save
from verlops_workers.trainer.micro import mini_batches, plan
from verlops_workers.trainer.policy import Network, decoder_layers, load_network
from verlops_workers.trainer.rows import per_token, rows

CPU = torch.device("cpu")


def one(prompt: list[int], response: list[int]) -> Batch:
    return Batch(
        ids=np.array(prompt + response, np.int32),
        prompt_lengths=np.array([len(prompt)]),
        response_lengths=np.array([len(response)]),
        logprobs=np.full(len(response), -1.0, np.float32),
        rewards=np.array([1.0], np.float32),
        groups=np.array([0]),
        versions=np.array([0]),
    )


def joined(*batches: Batch) -> Batch:
    return Batch(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Absolute positions and dropout: what NUM-9 is about."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(
        vocab_size=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        bos_token_id=1,
        eos_token_id=1,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["tiny", "gpt2"])
def test_num_9_logprobs_do_not_depend_on_neighbours(kind: str, request) -> None:
    network = load_network(request.getfixturevalue(kind))
    x = one([5, 6, 7], [8, 9, 10, 1])
    long = one([3] * 6, [4] * 6)
    with torch.no_grad():
        alone = network(rows(x, [0], CPU, 4)).logprobs[0]
        beside = network(rows(joined(long, x), [0, 1], CPU, 6)).logprobs[1, :4]
        again = network(rows(x, [0], CPU, 4)).logprobs[0]
        by_hand = []
        for k, token in enumerate([8, 9, 10, 1]):
            ids = torch.tensor([[5, 6, 7, 8, 9, 10, 1][: 3 + k]])
            logits = network.lm(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
            by_hand.append(logits.log_softmax(-1)[token].item())
    assert torch.allclose(alone, beside, atol=1e-4)
    assert torch.equal(alone, again)
    assert alone.tolist() == pytest.approx(by_hand, abs=1e-4)


def test_the_mask_comes_from_lengths_not_from_the_pad_id() -> None:
    eos = pad = 2
    batch = joined(one([4], [5, 6, eos]), one([4], [5, eos]), one([4], [5, 6, 7, 8, 9]))
    mask, behaviour, rewards = per_token(batch)
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert rewards.tolist() == [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert (behaviour[mask > 0] == -1.0).all()
    assert pad == eos


def test_a_prompt_token_never_gets_gradient(tiny: Path) -> None:
    network = load_network(tiny)
    seen: list[torch.Tensor] = []

    def keep(_module, _inputs, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    hook = network.lm.get_output_embeddings().register_forward_hook(keep)
    network(rows(one([5, 6, 7], [8, 9]), [0], CPU, 2)).logprobs.sum().backward()
    hook.remove()
    gradient = seen[0].grad.abs().sum(-1)[0]
    # Positions 2 and 3 predict the response; none before or after does.
    assert (gradient > 0).tolist() == [False, False, True, True, False]


def test_values_start_at_zero(tiny: Path) -> None:
    out = load_network(tiny)(rows(one([5], [6, 7]), [0], CPU, 2))
    assert out.values.abs().max() == 0


def test_finite_differences(tiny: Path) -> None:
    network = load_network(tiny)
    batch = one([5, 6], [7, 8, 9])

    def value() -> torch.Tensor:
        return network(rows(batch, [0], CPU, 3)).logprobs.sum()

    weight = network.lm.model.layers[0].mlp.down_proj.weight
    value().backward()
    slope = weight.grad.norm().item()
    along, step = weight.grad / slope, 1e-2
    with torch.no_grad():
        weight += step * along
        above = value().item()
        weight -= 2 * step * along
        below = value().item()
    assert (above - below) / (2 * step) == pytest.approx(slope, rel=0.02)


def test_layers_are_found_by_name_and_by_shape(tiny: Path) -> None:
    network = load_network(tiny)
    assert len(decoder_layers(network.lm)) == 2
    network.lm._no_split_modules = None
    assert len(decoder_layers(network.lm)) == 2
    assert isinstance(network, Network)


def test_every_sample_is_planned_once_and_ranks_agree_on_the_count() -> None:
    lengths = [3, 9, 4, 4, 8, 2, 7]
    for ranks in (1, 2, 3, 10):
        found = plan(range(7), lengths, ranks, budget=16)
        assert len({len(micros) for micros in found}) == 1
        flat = sorted(i for micros in found for micro in micros for i in micro)
        assert flat == list(range(7))
        for micro in (m for micros in found for m in micros if len(m) > 1):
            assert len(micro) * max(lengths[i] for i in micro) <= 16


def test_the_last_mini_batch_is_not_dropped() -> None:
    found = mini_batches(10, 4, "seed")
    assert [len(piece) for piece in found] == [4, 4, 2]
    assert sorted(i for piece in found for i in piece) == list(range(10))
    assert found == mini_batches(10, 4, "seed")
    assert found != mini_batches(10, 4, "other")


def test_a_batch_survives_its_file(tmp_path: Path, tools) -> None:
    batch = tools.make_batch()
    save(batch, tmp_path / "b.npz")
    read = load(tmp_path / "b.npz")
    for name in Batch._fields:
        assert np.array_equal(getattr(read, name), getattr(batch, name))
    ends = np.cumsum(batch.response_lengths)
    assert np.array_equal(read.behaviour(3), batch.logprobs[ends[2] : ends[3]])
