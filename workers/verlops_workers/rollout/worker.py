"""The rollout worker: poll, generate, publish, commit, until told to go.

The poll loop (this thread) never waits for generation. Order of proof (DATAPLANE rule 2):
the group is durable, then its receipt, and only then may the prompt be committed.
"""

from __future__ import annotations

import queue
import signal
import sys
import time
import uuid
from types import FrameType

from verlops import registry
from verlops.errors import CorruptError, FencedError, VerlopsError
from verlops.messages import Control, Dead, Prompt, decode, encode
from verlops.ports import Consumer, Fetched, Position, Queue, RolloutBackend
from verlops_workers.host import Host
from verlops_workers.rollout.generator import Generator
from verlops_workers.rollout.offsets import Offsets
from verlops_workers.rollout.records import Job, Made, Maker, receipt
from verlops_workers.rollout.scoring import RewardClient
from verlops_workers.rollout.weights import Puller
from verlops_workers.runtime import Beater, ControlWatch, open_queue, open_store

TICK = 0.05
"""Seconds that one poll waits for prompts."""
LOOK = 0.25
"""Seconds between two looks at the control topic."""
REVOKE = 30.0
"""Seconds to finish what a rebalance takes away."""
MARGIN = 0.15
"""Share of a notice's window kept for publishing, committing and leaving."""


def main(host: Host) -> int:
    """Work on this machine until drained or told to stop; return the exit code."""
    log = open_queue(host.config)
    backend = registry.load("BACKENDS", host.config.rollout.engine)(
        dict(host.config.rollout.options), host.config
    )
    worker = Worker(host, log, backend, Puller(open_store(host.config), host))
    signal.signal(signal.SIGTERM, worker.on_sigterm)
    try:
        worker.run()
    finally:
        log.close()
    return 0


class Worker:
    """One member of the rollout group."""

    def __init__(self, host: Host, log: Queue, backend: RolloutBackend, puller: Puller) -> None:
        self._host = host
        self._log = log
        self._config = host.config
        self._topics = host.topics
        self._maker = Maker(host.worker_id, host.instance_id, self._config.rollout.engine)
        self._client = RewardClient(host.config)
        self._backend = backend
        make_tokens = backend.tokens  # type: ignore[attr-defined]
        self._generator = Generator(backend, make_tokens, puller, self._client, self._maker)
        self._watch = ControlWatch(log, host)
        self._beater = Beater(log, host, self._config.rollout.beat)
        self._offsets = Offsets()
        self._jobs: dict[tuple[int, int], Job] = {}
        self._consumer: Consumer | None = None
        self._looked = 0.0
        self._told = 0.0
        self._quota: tuple[float, int | None] = (0.0, None)
        self._deadline: float | None = None
        self._done_groups = 0

    def on_sigterm(self, _signal: int, _frame: FrameType | None) -> None:
        """Drain within the grace that the guard gives."""
        self._deadline = time.time() + self._config.trainer.grace

    def run(self) -> None:
        """Until a notice or SIGTERM is over, or the command is ``stop``."""
        self._generator.start()
        while not self._leaving():
            self.turn()
        self._leave()

    def turn(self) -> None:
        """One turn of the poll loop."""
        control = self._look()
        if self._generator.error is not None:
            raise self._generator.error
        self._poll(control)
        self._publish()
        phase = self._phase(control)
        if phase == "drained":
            # Left before it is said: whoever hears "drained" may end the machine.
            self._close_consumer()
        self._tell(phase)

    def _leaving(self) -> bool:
        if self._deadline is None:
            self._deadline = self._host.notice()
        control = self._watch.current()
        return self._deadline is not None or (control is not None and control.command == "stop")

    def _look(self) -> Control | None:
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            control = self._watch.poll()
            if control and control.version is not None:
                self._generator.want(control.version, control.reward_url)
            if control and control.at != self._quota[0]:
                self._quota = (control.at, control.quota)
        return self._watch.current()

    def _phase(self, control: Control | None) -> str:
        if self._generator.version is None:
            return "booting"
        if control is not None and control.command == "drain":
            return "draining" if self._jobs else "drained"
        serving = control is not None and control.command == "serve"
        return "serving" if serving and not self._generator.reward_down else "paused"

    def _poll(self, control: Control | None) -> None:
        phase = self._phase(control)
        if phase in ("booting", "drained"):
            time.sleep(TICK)
            return
        if self._consumer is None:
            self._consumer = self._join()
        room = self._room() if phase == "serving" else 0
        records = self._consumer.poll(room, TICK)
        owned = self._consumer.assignment()
        self._forget_lost(owned)
        self._take([r for r in records if r.partition in owned])
        if not room:
            time.sleep(TICK / 2)

    def _join(self) -> Consumer:
        return self._log.join(
            self._topics.prompts,
            self._topics.rollout_group,
            member=self._host.worker_id,
            session_timeout=self._config.queue.session_timeout,
            on_revoke=self._on_revoke,
        )

    def _room(self) -> int:
        """Prompts that may be taken now: the bound in flight, and the quota."""
        room = self._config.rollout.max_in_flight - len(self._jobs)
        quota = self._quota[1]
        if quota is not None:
            room = min(room, quota // self._config.task.group_size)
        return max(0, room)

    def _take(self, records: list[Fetched]) -> None:
        jobs, dead = [], []
        for record in records:
            self._offsets.take(record.partition, record.offset)
            try:
                jobs.append(self._job(record))
            except CorruptError as error:
                dead.append(self._refused(record, str(error)))
        if dead:
            self._log.publish(self._topics.dead, [(d.id, encode(d)) for d in dead])
            for d in dead:
                self._offsets.finish(d.partition, d.offset)
        for job in jobs:
            self._jobs[job.partition, job.offset] = job
        self._spend(sum(job.prompt.group_size for job in jobs))
        self._generator.submit(jobs)

    def _spend(self, samples: int) -> None:
        at, quota = self._quota
        if quota is not None:
            self._quota = (at, max(0, quota - samples))

    def _job(self, record: Fetched) -> Job:
        """The job in a record. Raises CorruptError when it can't be done."""
        prompt = decode(record.value or b"")
        if not isinstance(prompt, Prompt):
            raise CorruptError("not a prompt")
        if prompt.group_size < 1 or prompt.sampling.max_tokens < 1:
            raise CorruptError("group_size and max_tokens must be at least 1")
        if prompt.sampling.top_p != 1.0 or prompt.sampling.top_k not in (-1, 0):
            raise CorruptError("top_p and top_k would bias the log-probabilities; use 1 and -1")
        assert self._generator.tokens is not None
        ids = self._generator.tokens.encode(prompt)
        most = self._config.task.max_prompt_tokens
        if not 0 < len(ids) <= most:
            raise CorruptError(f"{len(ids)} prompt tokens, allowed are 1 to {most}")
        return Job(record.partition, record.offset, prompt, ids, uuid.uuid4().hex)

    def _refused(self, record: Fetched, reason: str) -> Dead:
        return Dead(
            id=record.key,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            at=time.time(),
        )

    def _publish(self) -> None:
        """Publish what is finished, its receipts, and commit what that proves."""
        made: list[Made] = []
        while True:
            try:
                made.append(self._generator.finished.get_nowait())
            except queue.Empty:
                break
        if made:
            places = self._publish_groups(made)
            now = time.time()
            rows = [receipt(m, p, self._maker, now) for m, p in zip(made, places, strict=True)]
            self._log.publish(self._topics.receipts, [(r.group_id, encode(r)) for r in rows])
            for one in made:
                self._jobs.pop((one.job.partition, one.job.offset), None)
                self._offsets.finish(one.job.partition, one.job.offset)
            self._done_groups += len(made)
        self._commit()

    def _publish_groups(self, made: list[Made]) -> list[Position | None]:
        groups = [(m.group.id, encode(m.group)) for m in made if m.group is not None]
        places = iter(self._log.publish(self._topics.samples, groups) if groups else [])
        return [next(places) if m.group is not None else None for m in made]

    def _commit(self) -> None:
        due = self._offsets.due()
        if not due or self._consumer is None:
            return
        try:
            self._consumer.commit(due)
            self._offsets.committed(due)
        except FencedError:
            # A partition has moved: its prompts are the new owner's, and will be done
            # again as other attempts of the same groups.
            self._forget_lost(self._consumer.assignment())

    def _forget_lost(self, owned: frozenset[int]) -> None:
        self._offsets.keep(owned)
        self._jobs = {key: job for key, job in self._jobs.items() if key[0] in owned}

    def _on_revoke(self, partitions: frozenset[int]) -> None:
        """Finish what ends in time; the rest is the new owner's."""
        until = time.monotonic() + min(REVOKE, self._config.queue.session_timeout)
        while any(p in partitions for p, _ in self._jobs) and time.monotonic() < until:
            time.sleep(TICK / 2)
            self._publish()
            self._tell("serving")
            if self._generator.error is not None or self._deadline is not None:
                break

    def _tell(self, phase: str) -> None:
        if self._beater.due(phase):
            self._beater.beat(phase, self._beat_fields())
        if time.monotonic() - self._told >= 1.0:
            self._told = time.monotonic()
            error = self._generator.trouble
            self._host.report(phase, self._done_groups, error=error)

    def _beat_fields(self) -> dict[str, object]:
        held = [job.group for job in self._jobs.values()]
        samples = sum(job.prompt.group_size for job in self._jobs.values())
        stats = self._backend.stats()
        return {
            "in_flight": len(held),
            "in_flight_samples": samples,
            "held": held,
            "tokens_per_s": stats.tokens_per_s,
            "kv_use": stats.kv_use,
            "version": self._generator.version,
            "weights": self._generator.weights,
            "progress": self._generator.trouble,
            "control_fence": self._watch.fence,
            "done_groups": self._done_groups,
        }

    def _leave(self) -> None:
        """Finish and publish what fits before the deadline, leave the rest uncommitted."""
        until = self._until()
        self._safely("draining")
        while self._jobs and time.time() < until and self._generator.error is None:
            if self._consumer is not None:
                self._consumer.poll(0, 0.0)
                self._forget_lost(self._consumer.assignment())
            self._publish()
            self._safely("draining")
            time.sleep(TICK / 2)
        self._generator.stop(timeout=max(0.1, until - time.time()))
        self._publish()
        left = len(self._jobs)
        self._jobs = {}
        self._close_consumer()
        self._client.close()
        self._backend.close()
        done = f"left {left} unfinished groups uncommitted"
        self._beater.beat("drained", {**self._beat_fields(), "progress": done})
        self._host.report("drained", self._done_groups, done=True)
        print(f"rollout worker {self._host.worker_id}: {done}", file=sys.stderr)

    def _until(self) -> float:
        now = time.time()
        if self._deadline is None:
            return now
        return self._deadline - MARGIN * max(0.0, self._deadline - now)

    def _safely(self, phase: str) -> None:
        """Beat, but let no trouble with a beat cost the groups that can be saved."""
        try:
            self._tell(phase)
        except VerlopsError as error:
            print(f"rollout worker: beat not sent: {error}", file=sys.stderr)

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
