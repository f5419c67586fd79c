"""The transformers engine: exact log-probabilities, finish reasons, no pad id in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verlops.config import parse
from verlops.messages import Prompt, Sampling
from verlops.ports import GenerateRequest
from verlops_workers.chars import build_tokenizer
from verlops_workers.rollout.hf import HfBackend


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer("0123456789+=").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=15,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    lm = LlamaForCausalLM(config)
    # Sharper than at initialisation, so that a wrong position or mask shows.
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(3.0) if parameter.dim() > 1 else None
    lm.save_pretrained(folder)
    return folder


@pytest.fixture
def engine(model: Path) -> HfBackend:
    made = HfBackend({}, parse({"name": "x", "model": {"dtype": "float32"}}))
    made.load_weights(model, 3, "hash")
    return made


def request(engine: HfBackend, text: str, group: int = 4, **sampling) -> GenerateRequest:
    settings = Sampling(**{"max_tokens": 6, **sampling})
    prompt = Prompt(id=text, run="r", group_size=group, sampling=settings, text=text)
    return GenerateRequest(prompt, engine.tokens().encode(prompt))


def by_hand(model: Path, prompt: list[int], response: list[int], temperature: float) -> list[float]:
    """One full forward pass a row, without cache, padding or batching."""
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = torch.tensor([prompt + response])
    with torch.no_grad():
        logits = lm(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    logs = (logits / temperature).log_softmax(-1)
    start = len(prompt) - 1
    return [logs[start + k, token].item() for k, token in enumerate(response)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_pass(engine, model, temperature: float) -> None:
    requests = [request(engine, t, temperature=temperature) for t in ("1+2=", "7", "12+34+56=")]
    found = dict(engine.generate(requests, lambda: False))
    assert set(found) == {0, 1, 2}
    for index, samples in found.items():
        assert len(samples) == 4
        for sample in samples:
            expected = by_hand(model, requests[index].token_ids, sample.token_ids, temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_stop_and_length(engine) -> None:
    (_, samples), *_ = engine.generate([request(engine, "1+", group=64)], lambda: False)
    for sample in samples:
        assert len(sample.token_ids) == len(sample.logprobs) <= 6
        assert (sample.version, sample.weights) == (3, "hash")
        if sample.finish_reason == "stop":
            # The stop token is part of the response, with its log-probability.
            assert sample.token_ids[-1] == 1
            assert 1 not in sample.token_ids[:-1]
        else:
            assert (sample.finish_reason, len(sample.token_ids)) == ("length", 6)
    assert {s.finish_reason for s in samples} == {"stop", "length"}


def test_extra_stop_ids(engine) -> None:
    stops = list(range(3, 15))
    (_, samples), *_ = engine.generate([request(engine, "1", stop_ids=stops)], lambda: False)
    assert all(s.token_ids[-1] in {1, *stops} or len(s.token_ids) == 6 for s in samples)
    assert all(t not in {1, *stops} for s in samples for t in s.token_ids[:-1])


def test_a_token_budget_splits_batches_and_keeps_groups_whole(model) -> None:
    small = HfBackend({"batch_tokens": 40}, parse({"name": "x", "model": {"dtype": "float32"}}))
    small.load_weights(model, 0, "")
    requests = [request(small, t) for t in ("1", "22", "333", "4444")]
    found = dict(small.generate(requests, lambda: False))
    assert {i: len(s) for i, s in found.items()} == {0: 4, 1: 4, 2: 4, 3: 4}


def test_stop_ends_it_early(engine) -> None:
    assert list(engine.generate([request(engine, "1")], lambda: True)) == []


def test_eco_1_a_chat_prompt_has_exactly_one_beginning(tmp_path: Path) -> None:
    from verlops_workers.rollout.tokens import HfTokens

    tokenizer = build_tokenizer("abc<s>")
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    prompt = Prompt(
        id="p",
        run="r",
        group_size=2,
        sampling=Sampling(max_tokens=4),
        messages=[{"role": "user", "content": "abc"}],
    )
    ids = HfTokens(tmp_path).encode(prompt)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert len(ids) == 4
