"""The worker's side of the reward server.

An outage (refused, timeout, 401, 429, 5xx) raises RewardDownError: back-pressure, never a
score of 0. What the scorer itself refuses comes back ``failed``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from verlops.config import Config
from verlops.errors import VerlopsError
from verlops.messages import Group, RewardState, Sample
from verlops.ports import ScoreItem

MAX_ITEMS = 1024
MAX_BODY = 4 * 1024 * 1024
ROOM = 4096
"""Bytes of a request around its items."""
FIRST_WAIT, MOST_WAIT = 0.1, 2.0
TOO_LARGE, UNPROCESSABLE = 413, 422


class RewardDownError(VerlopsError):
    """The reward server cannot be reached, or cannot score now."""


class Score(msgspec.Struct, frozen=True):
    """One answer."""

    reward: float | None
    state: RewardState
    error: str = ""


class _Answer(msgspec.Struct):
    scores: list[Score]
    scorer: str = ""


class RewardClient:
    """Scores items over HTTP; ``url`` may change between calls."""

    def __init__(self, config: Config) -> None:
        self._token = Path(config.state.path or ".") / "reward.token"
        self._retries = config.reward.retries
        self._http = httpx.Client(timeout=config.reward.timeout, trust_env=False)
        self.url = ""
        self.scorer = ""

    def score(self, items: Sequence[ScoreItem], stop: Callable[[], bool]) -> list[Score]:
        """One score an item, in order. Raises RewardDownError after the retries.

        Items that come back unscored are asked for again; the last answer holds.
        """
        scores: list[Score | None] = [None] * len(items)
        for attempt in range(self._retries + 1):
            todo = [i for i, s in enumerate(scores) if s is None or s.state == "unscored"]
            if not todo:
                break
            try:
                answers = self._ask([items[i] for i in todo])
            except RewardDownError:
                if attempt == self._retries or stop():
                    raise
                answers = []
            for i, score in zip(todo, answers, strict=False):
                scores[i] = score
            if answers and all(score.state != "unscored" for score in answers):
                break
            _pause(attempt, stop)
        return [s or Score(None, "unscored") for s in scores]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask(self, items: Sequence[ScoreItem]) -> list[Score]:
        return [score for part in _parts(items) for score in self._post(part)]

    def _post(self, part: Sequence[dict[str, str]]) -> list[Score]:
        if not self.url:
            raise RewardDownError("no reward server is known yet")
        try:
            token = self._token.read_text().strip()
            headers = {"authorization": f"Bearer {token}"}
            answer = self._http.post(f"{self.url}/score", json={"items": part}, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            raise RewardDownError(f"reward server: {error or type(error).__name__}") from error
        if answer.status_code in (TOO_LARGE, UNPROCESSABLE):
            return [Score(None, "failed", f"refused with {answer.status_code}")] * len(part)
        return self._scores(answer, len(part))

    def _scores(self, answer: httpx.Response, expected: int) -> list[Score]:
        if answer.status_code != httpx.codes.OK:
            raise RewardDownError(f"reward server answered {answer.status_code}")
        try:
            found = msgspec.json.decode(answer.content, type=_Answer)
        except msgspec.MsgspecError as error:
            raise RewardDownError(f"reward server: no answer of ours: {error}") from error
        if len(found.scores) != expected:
            raise RewardDownError(f"{len(found.scores)} scores for {expected} items")
        self.scorer = found.scorer
        return found.scores


def scored(group: Group, scores: Sequence[Score], scorer: str) -> Group:
    """The group with these scores on its samples."""
    samples = [_scored(s, score) for s, score in zip(group.samples, scores, strict=True)]
    return msgspec.structs.replace(group, samples=samples, scorer=scorer)


def _scored(sample: Sample, score: Score) -> Sample:
    return msgspec.structs.replace(sample, reward=score.reward, reward_state=score.state)


def _parts(items: Sequence[ScoreItem]) -> Iterator[list[dict[str, str]]]:
    """Requests within the server's limits on items and bytes."""
    part: list[dict[str, str]] = []
    size = ROOM
    for item in items:
        body: dict[str, Any] = item._asdict()
        length = len(msgspec.json.encode(body)) + 1
        if part and (len(part) >= MAX_ITEMS or size + length > MAX_BODY):
            yield part
            part, size = [], ROOM
        part.append(body)
        size += length
    if part:
        yield part


def _pause(attempt: int, stop: Callable[[], bool]) -> None:
    """Full jitter, doubling; ends early when told to stop."""
    most = min(MOST_WAIT, FIRST_WAIT * 2**attempt)
    until = time.monotonic() + random.uniform(most / 2, most)
    while time.monotonic() < until and not stop():
        time.sleep(0.02)
