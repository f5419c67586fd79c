"""Putting prompts on the topic: from a task's generator or from a file.

Called by ``verlops feed`` and by ``verlops up``. A prompt's id comes from its content
(and, for a generator, its index), so that feeding a file twice adds nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from verlops import registry
from verlops.config import Config
from verlops.errors import ConfigError
from verlops.messages import Prompt, Sampling, TopicNames, encode, group_id, prompt_id
from verlops.ports import Queue, StateStore

NEXT = "feed.next"
FED = "fed"
CHUNK = 500
"""Prompts a publish: one transaction of the embedded log."""


class Feeder:
    """Feeds one run."""

    def __init__(self, config: Config, queue: Queue, state: StateStore, run: str) -> None:
        self._config = config
        self._queue = queue
        self._state = state
        self._run = run
        self._topic = TopicNames(config.name).prompts

    def generate(self, count: int) -> int:
        """Publish the next ``count`` prompts of the task's generator; return how many.

        The index moves on before the publish: a crash between them skips prompts that
        nobody has seen, where the other order would feed some twice.
        """
        task = self._config.task
        if not task.generator:
            raise ConfigError("task.generator is not set", hint="set it, or feed a file")
        generator = registry.load("TASKS", task.generator)
        start = self._next()
        found = generator(seed=task.seed, start=start, count=count, options=task.options)
        source = f"{task.generator}/{task.seed}/{sorted(task.options.items())}"
        prompts = [
            self._prompt(prompt_id(source, str(p.index)), {"text": p.text}, p.reference)
            for p in found
        ]
        self._state.put_blob(NEXT, str(start + count).encode())
        return self._publish(prompts)

    def feed_file(self, path: Path, *, epoch: int = 0) -> tuple[int, int]:
        """Publish a JSONL file; return (fed, skipped as known).

        Each line: ``{"prompt": text or messages, "reference": text, "id": optional}``.
        All lines are checked before the first is published. Raises ConfigError.
        """
        prompts = list(self._parsed(path, epoch))
        known = {key for key, _ in self._state.rows(FED)}
        fresh = {p.id: p for p in prompts if group_id(self._run, p.id, epoch) not in known}
        todo = list(fresh.values())
        for start in range(0, len(todo), CHUNK):
            chunk = todo[start : start + CHUNK]
            self._publish(chunk)
            rows = {group_id(self._run, p.id, epoch): b"" for p in chunk}
            self._state.put_rows(FED, rows)
        return len(fresh), len(prompts) - len(fresh)

    def _next(self) -> int:
        return int(self._state.get_blob(NEXT) or b"0")

    def _publish(self, prompts: Iterable[Prompt]) -> int:
        records = [(prompt.id, encode(prompt)) for prompt in prompts]
        for start in range(0, len(records), CHUNK):
            self._queue.publish(self._topic, records[start : start + CHUNK])
        return len(records)

    def _parsed(self, path: Path, epoch: int) -> Iterator[Prompt]:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        faults: list[str] = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield self._line(line, epoch)
            except (msgspec.DecodeError, ValueError) as error:
                faults.append(f"{path}:{number}: {error}")
        if faults:
            raise ConfigError(faults)

    def _line(self, line: str, epoch: int) -> Prompt:
        row: Any = msgspec.json.decode(line)
        if not isinstance(row, dict) or not row.get("prompt"):
            raise ValueError('needs {"prompt": text or a list of messages, "reference": text}')
        unknown = set(row) - {"prompt", "reference", "id"}
        if unknown:
            raise ValueError(f"unknown key '{sorted(unknown)[0]}' (known: prompt, reference, id)")
        content = row["prompt"]
        if not isinstance(content, str | list):
            raise ValueError("prompt is neither text nor a list of messages")
        reference = row.get("reference", "")
        if not isinstance(reference, str):
            raise ValueError("reference is not text")
        body = {"text": content} if isinstance(content, str) else {"messages": content}
        own = str(row.get("id") or prompt_id(msgspec.json.encode(content).decode(), reference))
        return self._prompt(own, body, reference, epoch)

    def _prompt(self, own: str, body: dict[str, Any], reference: str, epoch: int = 0) -> Prompt:
        task = self._config.task
        return Prompt(
            id=own,
            run=self._run,
            epoch=epoch,
            group_size=task.group_size,
            sampling=Sampling(max_tokens=task.max_response_tokens, temperature=task.temperature),
            task=task.generator or "",
            reference=reference,
            **body,
        )
