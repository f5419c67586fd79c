"""The transformers engine: any causal LM on the CPU or one GPU, batched by whole groups.

Samples from the model's own distribution and returns the exact log-probability of each
sampled id under what was sampled from: fp32 log-softmax of the logits over temperature.
Options: ``batch_tokens`` (padded tokens of one batch), ``threads``, ``samples_per_s`` (hand
out groups no faster than this; 0: at once. For demos: a tiny model on a CPU is thousands
of times faster than the engine it stands for).
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from verlops.config import Config
from verlops.errors import ConfigError, VerlopsError
from verlops.ports import EngineStats, GenerateRequest, RawSample
from verlops_workers.rollout.tokens import HfTokens, Tokens
from verlops_workers.rollout.waiting import wait_until

CACHE_NAMES = ("cache", "past_key_values")
"""What transformers calls the key-value cache, newest name first."""
DEFAULTS = {"batch_tokens": 65536, "threads": 0, "samples_per_s": 0}


class HfBackend:
    """The RolloutBackend port over transformers."""

    def __init__(self, options: dict[str, Any], config: Config) -> None:
        unknown = sorted(set(options) - set(DEFAULTS))
        if unknown:
            known = ", ".join(DEFAULTS)
            raise ConfigError(f"rollout.options.{unknown[0]}: unknown key (known: {known})")
        self._options = {**DEFAULTS, **options}
        self._config = config
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._device.type == "cpu":
            # Several workers share the cores: teams of threads would wait for each other.
            threads = self._options["threads"] or int(os.environ.get("OMP_NUM_THREADS", "1"))
            torch.set_num_threads(threads)
        self._random = torch.Generator(device=self._device)
        self._random.seed()
        self._model: Any = None
        self._tokens: HfTokens | None = None
        self._version = -1
        self._weights = ""
        self._rate: float | None = None

    def load_weights(self, path: Path, version: int, weights: str) -> None:
        model = self._config.model
        dtype = getattr(torch, model.dtype)
        loaded = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, trust_remote_code=model.trust_remote_code
        )
        self._model = loaded.to(self._device).eval()
        known = inspect.signature(self._model.forward).parameters
        # Only the last position's logits, where the model can: the rest is memory for nothing.
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._cache = next(name for name in CACHE_NAMES if name in known)
        if self._tokens is None:
            self._tokens = HfTokens(path, trust_remote_code=model.trust_remote_code)
        self._version, self._weights = version, weights

    def tokens(self) -> Tokens:
        """The model's own tokenizer. Raises VerlopsError before weights are loaded."""
        if self._tokens is None:
            raise VerlopsError("no weights are loaded yet")
        return self._tokens

    def generate(
        self, requests: Sequence[GenerateRequest], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, list[RawSample]]]:
        for chunk in self._chunks(requests):
            started = time.monotonic()
            groups = self._sample([requests[i] for i in chunk], stop)
            if groups is None:
                return
            tokens = sum(len(s.token_ids) for group in groups for s in group)
            for done, (index, group) in enumerate(zip(chunk, groups, strict=True), start=1):
                if not self._pace(started, done * len(group), stop):
                    return
                yield index, group
            self._rate = tokens / max(1e-6, time.monotonic() - started)

    def _pace(self, started: float, samples: int, stop: Callable[[], bool]) -> bool:
        """Wait until so many samples are due; False when told to stop before."""
        speed = self._options["samples_per_s"]
        return not speed or wait_until(started + samples / speed, stop)

    def stats(self) -> EngineStats:
        return EngineStats(tokens_per_s=self._rate, version=self._version, weights=self._weights)

    def close(self) -> None:
        self._model = None

    def _chunks(self, requests: Sequence[GenerateRequest]) -> Iterator[list[int]]:
        """Indices of requests, like lengths together, within the token budget."""
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].token_ids))
        chunk: list[int] = []
        rows = longest = 0
        for i in order:
            prompt = requests[i].prompt
            length = len(requests[i].token_ids) + prompt.sampling.max_tokens
            grown = max(longest, length) * (rows + prompt.group_size)
            if chunk and grown > self._options["batch_tokens"]:
                yield chunk
                chunk, rows, longest = [], 0, 0
            chunk.append(i)
            rows, longest = rows + prompt.group_size, max(longest, length)
        if chunk:
            yield chunk

    @torch.no_grad()
    def _sample(
        self, requests: Sequence[GenerateRequest], stop: Callable[[], bool]
    ) -> list[list[RawSample]] | None:
        """The groups of one batch; None when told to stop in the midst of it."""
        batch = _Batch(requests, self._device, _eos_ids(self._model))
        cache: Any = None
        while not batch.finished():
            if stop():
                return None
            given = {self._cache: cache} if cache is not None else {}
            out = self._model(**batch.inputs(), **given, use_cache=True, **self._keep)
            cache = out[self._cache]
            batch.advance(out.logits[:, -1].float(), self._random)
        return batch.groups(self._version, self._weights)


class _Batch:
    """Rows that are decoded together: left-padded prompts, growing to the right.

    Shapes: ids and mask [rows, time]; one column is fed a step after the first.
    """

    def __init__(
        self, requests: Sequence[GenerateRequest], device: torch.device, eos: set[int]
    ) -> None:
        self._requests = requests
        rows = [r for r in requests for _ in range(r.prompt.group_size)]
        longest = max(len(r.token_ids) for r in rows)
        pads = [longest - len(r.token_ids) for r in rows]
        ids = [[0] * pad + r.token_ids for pad, r in zip(pads, rows, strict=True)]
        mask = [[0] * pad + [1] * len(r.token_ids) for pad, r in zip(pads, rows, strict=True)]
        self._feed = torch.tensor(ids, device=device)
        self._mask = torch.tensor(mask, device=device)
        # Pads must not shift the positions of a row (a row alone has none).
        self._positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        settings = [r.prompt.sampling for r in rows]
        self._limits = torch.tensor([s.max_tokens for s in settings], device=device)
        heat = [[s.temperature] for s in settings]
        self._temperature = torch.tensor(heat, device=device)
        self._stops = [eos | set(s.stop_ids) for s in settings]
        self._sampled: list[list[int]] = [[] for _ in rows]
        self._logprobs: list[list[float]] = [[] for _ in rows]
        self._reasons: list[str] = [""] * len(rows)

    def finished(self) -> bool:
        return all(self._reasons)

    def inputs(self) -> dict[str, torch.Tensor]:
        return {
            "input_ids": self._feed,
            "attention_mask": self._mask,
            "position_ids": self._positions,
        }

    def advance(self, logits: torch.Tensor, generator: torch.Generator) -> None:
        """Sample one token a row from logits [rows, vocabulary]."""
        logprobs = torch.log_softmax(logits / self._temperature, dim=-1)
        chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
        values = logprobs.gather(1, chosen)[:, 0].tolist()
        for row, (token, value) in enumerate(zip(chosen[:, 0].tolist(), values, strict=True)):
            if not self._reasons[row]:
                self._take(row, token, value)
        self._feed = chosen
        self._mask = torch.cat([self._mask, torch.ones_like(chosen)], dim=1)
        self._positions = self._positions[:, -1:] + 1

    def groups(self, version: int, weights: str) -> list[list[RawSample]]:
        """The samples of each request, in order."""
        samples = [
            RawSample(ids, logprobs, reason, version, weights)
            for ids, logprobs, reason in zip(
                self._sampled, self._logprobs, self._reasons, strict=True
            )
        ]
        found, start = [], 0
        for request in self._requests:
            found.append(samples[start : start + request.prompt.group_size])
            start += request.prompt.group_size
        return found

    def _take(self, row: int, token: int, value: float) -> None:
        self._sampled[row].append(token)
        self._logprobs[row].append(value)
        if token in self._stops[row]:
            self._reasons[row] = "stop"
        elif len(self._sampled[row]) >= int(self._limits[row]):
            self._reasons[row] = "length"


def _eos_ids(model: Any) -> set[int]:
    """The ids that end a response: of the generation config, else of the model's."""
    for source in (getattr(model, "generation_config", None), model.config):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return {int(i) for i in (found if isinstance(found, list | tuple) else [found])}
    return set()
