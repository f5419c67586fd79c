"""The trainer's role process: collect, have the update made, commit, end.

Exit codes: 0 committed; 3 too few samples (``short``); 4 another trainer has committed or
was launched after us; 1 anything else. Only 0 leaves the machine's record as done.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import uuid
from types import FrameType

from verlops.errors import ConflictError, FencedError, VerlopsError
from verlops.lineage import fetch_files, read_version
from verlops.versions import Version, pack_trained
from verlops_workers.host import Host
from verlops_workers.runtime import Beater, open_queue, open_store
from verlops_workers.trainer import batch
from verlops_workers.trainer.collect import Collected, Collector, Rules, trained_set
from verlops_workers.trainer.commit import WEIGHTS, commit, digest_of, prune, upload
from verlops_workers.trainer.job import Job, Result, Work
from verlops_workers.trainer.launch import start

SHORT, OVERTAKEN = 3, 4
POLL = 0.1


class ShortError(VerlopsError):
    """Fewer usable samples than an update needs."""

    exit_code = SHORT


def main(host: Host) -> int:
    """One update; return the exit code."""
    trainer = TrainerRole(host)
    signal.signal(signal.SIGTERM, _leave)
    try:
        trainer.run()
    except (FencedError, ConflictError) as error:
        return trainer.failed(error, OVERTAKEN)
    except VerlopsError as error:
        return trainer.failed(error, SHORT if isinstance(error, ShortError) else 1)
    finally:
        trainer.close()
    return 0


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


class TrainerRole:
    """One trainer machine's work."""

    def __init__(self, host: Host) -> None:
        if host.spec.parent is None:
            raise VerlopsError("the machine's spec names no parent version to train from")
        self._host = host
        self._config = host.config
        self._parent_number = host.spec.parent
        self._queue = open_queue(host.config)
        self._store = open_store(host.config)
        self._beater = Beater(self._queue, host, host.config.rollout.beat)
        self._work = Work(host.folder / "work")
        self._progress = 0
        self._said: tuple[str, str] = ("", "")
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Collect, update, commit. Raises VerlopsError; nothing is committed then."""
        started = time.monotonic()
        self._tell("collecting", "reading the parent version")
        parent = read_version(self._store, self._host.spec.run, self._parent_number)
        self._begin_update(parent)
        collected = self._collect(parent)
        batch.save(batch.from_groups(collected.groups), self._work.batch)
        seconds = time.monotonic() - started
        result = self._await_result()
        self._tell("saving", "uploading")
        self._commit(parent, collected, result, seconds)
        self._tell("done", f"version {parent.version + 1}")
        self._host.report("done", self._progress, done=True)

    def failed(self, error: VerlopsError, code: int) -> int:
        """Record why nothing was committed; return the exit code."""
        print(f"trainer: {error}", file=sys.stderr)
        self._host.report("failed", self._progress, error=str(error))
        return code

    def close(self) -> None:
        """End the update process if it runs, and close the log."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._queue.close()

    def _begin_update(self, parent: Version) -> None:
        """Start the update process; it imports and loads while we collect."""
        shutil.rmtree(self._work.path, ignore_errors=True)
        folder = self._work.path / "parent"
        model, state = parent.model, None
        if parent.files:
            fetch_files(self._store, parent, folder)
            model = str(folder / "model")
            state = str(folder / "state") if (folder / "state").is_dir() else None
        config, seed = self._config, f"{self._config.task.seed}/{parent.version}"
        self._work.put_job(
            Job(
                model=model,
                state=state,
                parent=parent.version,
                steps_done=int(parent.state.get("optimizer_steps", 0)),
                seed=seed,
                trainer=config.trainer.model_dump(),
                bf16=config.model.dtype == "bfloat16",
                trust_remote_code=config.model.trust_remote_code,
                dtype=config.model.dtype,
            )
        )
        processes = config.trainer.processes or max(1, self._host.spec.gpus)
        self._process = start(self._work.path, processes)

    def _collect(self, parent: Version) -> Collected:
        trainer = self._config.trainer
        rules = Rules(trainer.batch, trainer.staleness, self._config.reward.min_scored)
        spent = trained_set(self._store, self._host.spec.run)
        collector = Collector(self._queue, self._host.topics.samples, parent, spent, rules)

        def tell(count: int) -> None:
            self._tell("collecting", f"{count} of {trainer.batch} samples")

        collected = collector.collect(trainer.collect_wait, tell)
        if collected.samples < trainer.batch:
            raise ShortError(f"{collected.samples} usable samples, {trainer.batch} are needed")
        return collected

    def _await_result(self) -> Result:
        assert self._process is not None
        while self._process.poll() is None:
            phase, done, of = self._work.progress()
            self._tell(phase, f"{done}/{of}" if of else "")
            time.sleep(POLL)
        result = self._work.result()
        if self._process.returncode or result is None:
            code = self._process.returncode
            raise VerlopsError(f"the update process ended with code {code}; see the log")
        return result

    def _commit(
        self, parent: Version, collected: Collected, result: Result, seconds: float
    ) -> None:
        run, number, attempt = self._host.spec.run, parent.version + 1, uuid.uuid4().hex[:12]
        entries = upload(self._store, self._work.out, run, number, attempt)
        groups = collected.groups
        prompts = sum(len(g.prompt_token_ids) // 4 * len(g.samples) for g in groups)
        responses = sum(len(s.token_ids) // 4 for g in groups for s in g.samples)
        version = Version(
            run=run,
            version=number,
            parent=parent.version,
            attempt=attempt,
            fence=self._host.spec.trainer_fence,
            files=entries,
            weights=digest_of(entries, WEIGHTS),
            trained=pack_trained(group.id for group in groups),
            next_offsets=collected.next_offsets,
            counts={
                "samples": collected.samples,
                "groups": len(groups),
                "tokens": prompts + responses,
                "prompt_tokens": prompts,
                "response_tokens": responses,
                **collected.counts,
            },
            metrics={**result.metrics, "seconds_collect": seconds},
            state=result.state,
            committed_at=time.time(),
            instance=self._host.instance_id,
        )
        commit(self._store, version)
        try:
            prune(self._store, run, self._config.trainer.checkpoints.keep)
        except (VerlopsError, OSError) as error:
            # The version is committed: what could not be pruned is pruned after the next.
            print(f"trainer: old checkpoints were not pruned: {error}", file=sys.stderr)

    def _tell(self, phase: str, text: str) -> None:
        """Beat and report; progress grows whenever there is something new to say."""
        if (phase, text) != self._said:
            self._said = (phase, text)
            self._progress += 1
            self._host.report(phase, self._progress)
        if self._beater.due(phase):
            self._beater.beat(phase, {"progress": text, "version": self._parent_number})
