"""The short supervised phase that makes a starting model, and a measure of what it can do.

Called by the warm-up only, with pairs of (prompt, answer) texts. The same inputs give the
same weights on the same machine and torch. Never touches the caller's random state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from verlops.config.schema import WarmupConfig
from verlops.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Pair = tuple[str, str]
"""A prompt and the text of a right response."""

MIN_HEAD = 32
"""vLLM's CPU attention has no kernel for smaller heads."""
IGNORED = -100
REPORTS = 5
"""Progress lines of one phase."""


class Accuracy(NamedTuple):
    """Shares of prompts answered exactly right."""

    greedy: float
    sampled: float
    prompts: int


def build_model(
    shape: WarmupConfig, tokenizer: PreTrainedTokenizerFast, positions: int, seed: int
) -> LlamaForCausalLM:
    """A Llama with random fp32 weights and tied embeddings. Raises ConfigError."""
    if shape.hidden % shape.heads or shape.hidden // shape.heads < MIN_HEAD:
        raise ConfigError(
            f"model.warmup.heads: {shape.heads} heads do not divide a hidden size of "
            f"{shape.hidden} into heads of {MIN_HEAD} or more",
            hint=f"take hidden = {shape.heads} × {MIN_HEAD} or more, or fewer heads",
        )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def fit(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    batches: Sequence[Sequence[Pair]],
    learning_rate: float,
    say: Callable[[str], None],
) -> None:
    """One AdamW step a batch on the answers and their end; prompts get no gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    model.train()
    started = time.monotonic()
    for step, batch in enumerate(batches, start=1):
        loss = _loss(model, tokenizer, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, len(batches) // REPORTS) == 0:
            say(_progress(step, len(batches), loss.item(), time.monotonic() - started))
    model.eval()


def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[Pair],
    seed: int,
) -> Accuracy:
    """Exact matches of greedy and of sampled responses (temperature 1, whole vocabulary)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        greedy = _right(model, tokenizer, pairs, sample=False)
        sampled = _right(model, tokenizer, pairs, sample=True)
    return Accuracy(greedy / len(pairs), sampled / len(pairs), len(pairs))


def _loss(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, batch: Sequence[Pair]
) -> torch.Tensor:
    prompts = tokenizer([prompt for prompt, _ in batch]).input_ids
    answers = tokenizer([answer for _, answer in batch]).input_ids
    rows = [p + a + [tokenizer.eos_token_id] for p, a in zip(prompts, answers, strict=True)]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), IGNORED)
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, len(prompt) : len(row)] = ids[i, len(prompt) : len(row)]
    # Padded on the right: a causal model never sees it before a token that counts, so a
    # mask would change nothing and cost the fast attention path.
    logits = model(ids).logits[:, :-1]
    return cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=IGNORED
    )


def _right(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Sequence[Pair],
    *,
    sample: bool,
) -> int:
    texts = [prompt for prompt, _ in pairs]
    inputs = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
    # A response longer than every answer is wrong, whatever else it says.
    room = max(len(tokenizer(answer).input_ids) for _, answer in pairs) + 1
    found = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        max_new_tokens=room,
        do_sample=sample,
        **({"top_k": 0, "top_p": 1.0, "temperature": 1.0} if sample else {}),
    )
    responses = found[:, inputs.input_ids.shape[1] :]
    ended = (responses == tokenizer.eos_token_id).any(dim=1).tolist()
    decoded = tokenizer.batch_decode(responses, skip_special_tokens=True)
    return sum(
        end and text == answer for end, text, (_, answer) in zip(ended, decoded, pairs, strict=True)
    )


def _progress(step: int, steps: int, loss: float, seconds: float) -> str:
    rate = step / max(seconds, 1e-9)
    left = (steps - step) / rate
    return f"warm-up: step {step}/{steps}, loss {loss:.3f}, {rate:.0f} steps/s, {left:.0f} s left"
