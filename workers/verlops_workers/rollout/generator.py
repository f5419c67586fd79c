"""The worker's second thread: generate, score, hand back. Never touches the log.

The poll loop gives it jobs and wanted weights and takes finished work; weights are
swapped between two batches only, so that no sample mixes versions unmarked.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from verlops.errors import VerlopsError
from verlops.ports import GenerateRequest, RawSample, RolloutBackend, ScoreItem
from verlops_workers.rollout.records import Job, Made, Maker, make
from verlops_workers.rollout.scoring import RewardClient, RewardDownError, Score, scored
from verlops_workers.rollout.tokens import Tokens, prompt_text
from verlops_workers.rollout.weights import Puller

IDLE = 0.05
"""Seconds between two looks for jobs."""
HAND_OUT = 0.25
"""Seconds: groups of one batch that end this far apart are not kept waiting for the last."""


class Generator:
    """Runs the engine and the reward client in a thread of its own.

    Attributes that the poll loop reads: ``version``, ``weights`` (being served),
    ``reward_down``, ``trouble`` (one line), ``error`` (the thread has died of it).
    """

    def __init__(
        self,
        backend: RolloutBackend,
        make_tokens: Callable[[], Tokens],
        puller: Puller,
        client: RewardClient,
        maker: Maker,
    ) -> None:
        self._backend = backend
        self._make_tokens = make_tokens
        self._puller = puller
        self._client = client
        self._maker = maker
        self._inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._wanted: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self.finished: queue.SimpleQueue[Made] = queue.SimpleQueue()
        self.tokens: Tokens | None = None
        self.version: int | None = None
        self.weights = ""
        self.reward_down = False
        self.trouble = ""
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Give it work."""
        for job in jobs:
            self._inbox.put(job)

    def want(self, version: int, reward_url: str) -> None:
        """Serve this version from the next batch on, and score there."""
        self._wanted = version
        if reward_url:
            self._client.url = reward_url

    def stop(self, timeout: float) -> None:
        """End early: a batch under way is abandoned, finished groups stay to be taken."""
        self._stop.set()
        self._thread.join(timeout)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._swap()
                jobs = self._next_jobs()
                if jobs:
                    self._work(jobs)
        except BaseException as error:  # noqa: BLE001 - the poll loop raises it again
            self.error = error

    def _swap(self) -> None:
        wanted = self._wanted
        if wanted is None or wanted == self.version:
            return
        try:
            weights = self._puller.pull(wanted)
            self._backend.load_weights(weights.path, weights.version, weights.digest)
        except (VerlopsError, OSError) as error:
            # The old version is served on; the next look tries again.
            self.trouble = f"version {wanted}: {error}"
            self._stop.wait(IDLE * 10)
            return
        self.trouble = ""
        if self.tokens is None:
            self.tokens = self._make_tokens()
        self.version, self.weights = weights.version, weights.digest
        self._puller.forget_before(weights.version)

    def _next_jobs(self) -> list[Job]:
        if self.version is None:
            self._stop.wait(IDLE)
            return []
        jobs: list[Job] = []
        try:
            jobs.append(self._inbox.get(timeout=IDLE))
            while True:
                jobs.append(self._inbox.get_nowait())
        except queue.Empty:
            return jobs

    def _work(self, jobs: list[Job]) -> None:
        requests = [GenerateRequest(job.prompt, job.token_ids) for job in jobs]
        since = time.monotonic()
        ready: list[tuple[Job, list[RawSample]]] = []
        for index, samples in self._backend.generate(requests, self._stop.is_set):
            ready.append((jobs[index], samples))
            if time.monotonic() - since >= HAND_OUT:
                since = self._hand_out(ready, since)
                ready = []
        self._hand_out(ready, since)

    def _hand_out(self, ready: list[tuple[Job, list[RawSample]]], since: float) -> float:
        """Score what is ready and let the poll loop publish it; return the time."""
        now = time.monotonic()
        share = (now - since) / max(1, len(ready))
        for made in self._score([self._made(job, samples, share) for job, samples in ready]):
            self.finished.put(made)
        return now

    def _made(self, job: Job, samples: list[RawSample], seconds: float) -> Made:
        assert self.tokens is not None
        texts = [self.tokens.decode(sample.token_ids) for sample in samples]
        return make(job, samples, texts, self._maker, gpu_seconds=seconds, now=time.time())

    def _score(self, made: list[Made]) -> list[Made]:
        """The same with scores. During an outage it waits; what is left at a stop is lost."""
        items, counts = [], []
        for one in made:
            samples = one.group.samples if one.group else []
            prompt = _text_of(one.job) if samples else ""
            reference, task = one.job.prompt.reference, one.job.prompt.task
            items += [ScoreItem(prompt, s.text, reference, task) for s in samples]
            counts.append(len(samples))
        if not items:
            return made
        scores = self._patiently(items)
        if scores is None:
            return [one for one in made if one.group is None]
        found, start = [], 0
        for one, count in zip(made, counts, strict=True):
            own = scores[start : start + count]
            start += count
            group = scored(one.group, own, self._client.scorer) if one.group else None
            found.append(one._replace(group=group))
        return found

    def _patiently(self, items: list[ScoreItem]) -> list[Score] | None:
        while True:
            try:
                scores = self._client.score(items, self._stop.is_set)
                self.reward_down, self.trouble = False, ""
                return scores
            except RewardDownError as error:
                self.reward_down = True
                self.trouble = str(error)
                if self._stop.wait(IDLE * 4):
                    return None


def _text_of(job: Job) -> str:
    """The prompt for a scorer; of bare token ids there is no text to show."""
    return "" if job.prompt.token_ids is not None else prompt_text(job.prompt)
