"""An environment opened for acting: its run, its topics, its token, its first version.

Called by ``up``, ``tick``, ``feed`` and ``down``. Everything here is idempotent: a
session that died half-way is simply prepared again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from verlops.assemble.load import Loaded
from verlops.assemble.model import first_version
from verlops.assemble.objects import open_ports, settings, topic_specs
from verlops.assemble.system import holder, holder_is_dead
from verlops.controller import Controller, Ports
from verlops.controller.controller import LEASE
from verlops.controller.signals import START
from verlops.errors import ConfigError, ConflictError, VerlopsError
from verlops.messages import TopicNames
from verlops.model import Memory
from verlops.plan import reopen
from verlops.versions import encode_version, version_key

TOKEN = "reward.token"


class Session:
    """One environment, with everything opened."""

    def __init__(self, loaded: Loaded) -> None:
        self.config = loaded.config
        self.state_dir = loaded.state_dir
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.ports: Ports = open_ports(self.config, self.state_dir)
        self._holder = holder()

    @property
    def run(self) -> str:
        """The run id; empty before the first ``up``."""
        return self.ports.state.load()[0].run

    def need_run(self) -> str:
        """The run id. Raises VerlopsError before the first ``up``."""
        if not self.run:
            raise VerlopsError(f"'{self.config.name}' has no run yet", hint="run `verlops up`")
        return self.run

    def prepare(
        self,
        *,
        new_run: bool = False,
        rotate: bool = False,
        again: bool = False,
        say: Callable[[str], None],
    ) -> None:
        """Take the lease and make sure that everything a step needs is there.

        ``again``: a person asked, so launches that were stopped are tried once more.
        """
        state, now = self.ports.state, self.ports.clock.now()
        lease = state.acquire(LEASE, self._holder, self.config.control.lease, now, holder_is_dead)
        self.ports.queue.ensure(topic_specs(self.config))
        ensure_token(self.state_dir / TOKEN, rotate=rotate)
        memory, _ = state.load()
        if new_run or not memory.run:
            self._begin(memory, lease.fence)
        elif again:
            state.save(reopen(memory), fence=lease.fence)
        self._first_version(say)

    def controller(self, *, updates: int | None = None) -> Controller:
        """A controller of this environment's run."""
        return Controller(
            self.ports,
            settings(self.config, updates=updates),
            run=self.need_run(),
            holder=self._holder,
            is_dead=holder_is_dead,
        )

    def close(self) -> None:
        """Close what was opened."""
        self.ports.queue.close()
        self.ports.state.close()

    def _begin(self, memory: Memory, fence: int) -> None:
        alive = [i.id for i in self.ports.provider.instances() if i.phase != "gone"]
        if alive:
            raise ConfigError(
                f"machines of the present run are alive: {', '.join(alive)}",
                hint="run `verlops down` before a new run",
            )
        run = f"{self.config.name}-{self.ports.ids.new()}"
        self._mark_start(run)
        # Generations stay: a key must never be used twice, not even in another run.
        kept = Memory(run=run, generations=memory.generations, seen=memory.seen)
        self.ports.state.save(kept, fence=fence)

    def _mark_start(self, run: str) -> None:
        """What lies on the topics belongs to earlier runs: step over it."""
        queue, topics = self.ports.queue, TopicNames(self.config.name)
        ends = {n: queue.end_offsets(getattr(topics, n)) for n in ("receipts", "resume", "dead")}
        fed = queue.end_offsets(topics.prompts)
        queue.trim(topics.prompts, fed)
        blob = msgspec.msgpack.encode({"fed": sum(fed.values()), "cursors": ends})
        self.ports.state.put_blob(f"{START}{run}", blob)

    def _first_version(self, say: Callable[[str], None]) -> None:
        run = self.need_run()
        key = version_key(run, 0)
        if self.ports.store.list(key):
            return
        version = first_version(self.config, run, self.state_dir, say)
        samples = self.ports.queue.end_offsets(TopicNames(self.config.name).samples)
        version = msgspec.structs.replace(
            version,
            committed_at=self.ports.clock.now(),
            next_offsets={str(partition): end for partition, end in sorted(samples.items())},
        )
        with contextlib.suppress(ConflictError):
            self.ports.store.put_if_absent(key, encode_version(version))


def ensure_token(path: Path, *, rotate: bool = False) -> None:
    """The reward server's token in a 0600 file: made once, or anew with ``rotate``."""
    if path.exists() and not rotate:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32))
    temporary.replace(path)
