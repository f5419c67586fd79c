"""An engine without a model: made-up responses, the same for the same group and seed.

For tests and chaos runs of everything around the engine. Options: ``seed``,
``tokens_per_s`` (0: as fast as possible), ``mean_tokens``, ``vocabulary``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from verlops.config import Config
from verlops.errors import ConfigError
from verlops.messages import group_id
from verlops.ports import EngineStats, GenerateRequest, RawSample
from verlops_workers.rollout.tokens import ByteTokens, Tokens
from verlops_workers.rollout.waiting import wait_until

DEFAULTS = {"seed": 0, "tokens_per_s": 0, "mean_tokens": 16, "vocabulary": 256}


class ScriptedBackend:
    """The RolloutBackend port over a random generator."""

    def __init__(self, options: dict[str, Any], config: Config) -> None:
        unknown = sorted(set(options) - set(DEFAULTS))
        if unknown:
            known = ", ".join(DEFAULTS)
            raise ConfigError(f"rollout.options.{unknown[0]}: unknown key (known: {known})")
        del config
        self._options = {**DEFAULTS, **options}
        self._version = 0
        self._weights = ""
        self._rate: float | None = None

    def load_weights(self, path: Path, version: int, weights: str) -> None:
        del path
        self._version, self._weights = version, weights

    def tokens(self) -> Tokens:
        """The tokenizer that goes with this engine."""
        return ByteTokens()

    def generate(
        self, requests: Sequence[GenerateRequest], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, list[RawSample]]]:
        for index, request in enumerate(requests):
            started = time.monotonic()
            samples = self._group(request)
            tokens = sum(len(sample.token_ids) for sample in samples)
            speed = self._options["tokens_per_s"]
            if speed and not wait_until(started + tokens / speed, stop):
                return
            self._rate = tokens / max(1e-6, time.monotonic() - started)
            yield index, samples
            if stop():
                return

    def stats(self) -> EngineStats:
        return EngineStats(tokens_per_s=self._rate, version=self._version, weights=self._weights)

    def close(self) -> None:
        return

    def _group(self, request: GenerateRequest) -> list[RawSample]:
        prompt = request.prompt
        seed = f"{self._options['seed']}/{group_id(prompt.run, prompt.id, prompt.epoch)}"
        draw = random.Random(seed)
        return [self._sample(draw, prompt.sampling.max_tokens) for _ in range(prompt.group_size)]

    def _sample(self, draw: random.Random, most: int) -> RawSample:
        wanted = 1 + int(draw.expovariate(1 / self._options["mean_tokens"]))
        length = min(most, wanted)
        return RawSample(
            token_ids=[draw.randrange(self._options["vocabulary"]) for _ in range(length)],
            logprobs=[-draw.random() for _ in range(length)],
            finish_reason="stop" if wanted <= most else "length",
            version=self._version,
            weights=self._weights,
        )
