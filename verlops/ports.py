"""The seams: what the pure parts ask of the world. Protocols only, no code.

Every implementation of a seam passes one contract suite in ``tests/contracts``. All
raise only errors of ``verlops.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from verlops.machine import MachineSpec
from verlops.messages import Group, Prompt
from verlops.model import Event, Instance, Intent, Launch, Memory, Notice, Offer, QueueStats


class Clock(Protocol):
    """Time. ``now`` is seconds since the epoch, UTC."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Fresh identifiers and randomness."""

    def new(self) -> str:
        """A new unique id, 16 hex digits or more."""
        ...

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class Provider(Protocol):
    """A cloud, or something that behaves like one.

    ``launch`` with a key that has been launched before returns the machine of that key
    and makes none, even after it is gone; ``terminate`` of a missing id succeeds;
    ``offers`` lists all with ``available`` as a field; ``instances`` lists every machine
    of this environment, the ended ones included for at least an hour, with their
    ``ended`` record.
    """

    name: str

    def offers(self) -> list[Offer]: ...

    def instances(self) -> list[Instance]:
        """Phases pending, booting, ready, doomed (a notice was given) or gone."""
        ...

    def notices(self) -> list[Notice]: ...

    def launch(self, launch: Launch, spec: MachineSpec) -> Instance:
        """Raises Capacity-, Quota-, Credentials-, Throttled- or UnknownOutcomeError."""
        ...

    def terminate(self, instance_id: str) -> None: ...


class Position(NamedTuple):
    """Where a record lies in a topic."""

    partition: int
    offset: int


class Fetched(NamedTuple):
    """A record as it lies in a topic. ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None
    timestamp: float


class TopicSpec(NamedTuple):
    """How a topic should be. ``retention_s`` None: kept until trimmed."""

    name: str
    partitions: int = 1
    compact: bool = False
    retention_s: float | None = None
    max_bytes: int | None = None


class Topics(Protocol):
    """Management of topics."""

    def ensure(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing, grow partitions where asked; never shrink or empty."""
        ...

    def describe(self) -> dict[str, TopicSpec]: ...

    def trim(self, topic: str, before: Mapping[int, int]) -> None:
        """Forget records below these offsets (partition → first offset kept)."""
        ...


class Log(Protocol):
    """Reading by position, outside any group."""

    def begin_offsets(self, topic: str) -> dict[int, int]: ...

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition → the offset that the next record will get."""
        ...

    def read(self, topic: str, partition: int, start: int, limit: int = 500) -> list[Fetched]:
        """Records from ``start`` on, in order; gaps are legal. Fewer than limit: the end."""
        ...


class Producer(Protocol):
    """Writing. A call returns when every record is durable (Kafka: acks=all)."""

    def publish(self, topic: str, records: Sequence[tuple[str, bytes | None]]) -> list[Position]:
        """Append (key, value) records, in order within a key's partition."""
        ...


class Consumer(Protocol):
    """One member of a consumer group on one topic.

    Semantics of a Kafka group: every partition has at most one live owner; a member
    that dies loses its partitions after the session timeout; a new owner starts at the
    committed offset (or at the first record). Heartbeats run in a thread of their own
    and stop when ``poll`` was not called for ``max_poll_interval``.
    """

    def poll(self, limit: int, timeout: float = 0.0) -> list[Fetched]:
        """New records of owned, unpaused partitions, each once a membership.

        ``limit`` 0 only keeps the membership. A session that was lost is joined again
        inside; its partitions leave ``assignment`` without ``on_revoke``.
        """
        ...

    def assignment(self) -> frozenset[int]: ...

    def pause(self, partitions: Sequence[int]) -> None: ...

    def resume(self, partitions: Sequence[int]) -> None: ...

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Partition → *next* offset to read. Raises FencedError when not the owner;
        nothing is committed then.
        """
        ...

    def close(self) -> None:
        """Leave the group at once; commits nothing."""
        ...


class Queue(Topics, Log, Producer, Protocol):
    """A message engine: topics, reading, writing, groups."""

    def join(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        session_timeout: float = 30.0,
        max_poll_interval: float = 300.0,
        on_revoke: Callable[[frozenset[int]], None] | None = None,
    ) -> Consumer:
        """Become a member. ``on_revoke`` is called inside ``poll`` with partitions that
        move to another member, before they move: commits inside it still count.
        """
        ...

    def committed(self, topic: str, group: str) -> dict[int, int | None]: ...

    def stats(self, topic: str, group: str) -> QueueStats:
        """Never raises for an unreadable engine: ``ok`` is False then."""
        ...

    def close(self) -> None: ...


class Stat(NamedTuple):
    """An object in the artifact store."""

    key: str
    size: int


class ArtifactStore(Protocol):
    """Checkpoints and weights. Keys are relative, with forward slashes.

    A reader sees an object whole or not at all.
    """

    def put(self, key: str, data: bytes) -> None: ...

    def put_file(self, key: str, path: Path) -> None: ...

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Raises ConflictError when the key exists; exactly one of several racers wins."""
        ...

    def get(self, key: str) -> bytes:
        """Raises NotFoundError."""
        ...

    def fetch(self, key: str, path: Path) -> None:
        """Download to ``path`` (whole or not at all). Raises NotFoundError."""
        ...

    def list(self, prefix: str) -> list[Stat]:
        """Sorted by key."""
        ...

    def delete(self, key: str) -> None:
        """Deleting what is missing succeeds."""
        ...


class Lease(NamedTuple):
    """A right to act, with a fence that grows each time it changes hands."""

    name: str
    holder: str
    fence: int
    expires_at: float


class StateStore(Protocol):
    """What the controller must not forget."""

    def load(self) -> tuple[Memory, list[Intent]]:
        """The saved memory (empty at first) and the open intents."""
        ...

    def save(
        self,
        memory: Memory,
        *,
        opened: Sequence[Intent] = (),
        closed: Sequence[str] = (),
        events: Sequence[Event] = (),
        fence: int | None = None,
    ) -> None:
        """One transaction. Raises LeaseLostError when ``fence`` is not the newest."""
        ...

    def events(
        self, *, after: int = 0, kinds: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]: ...

    def acquire(
        self,
        name: str,
        holder: str,
        ttl: float,
        now: float,
        is_dead: Callable[[str], bool] | None = None,
    ) -> Lease:
        """Take or renew. Raises LeaseHeldError (naming the holder) while another's is
        unexpired and not ``is_dead(holder)``. A renewal keeps the fence.
        """
        ...

    def release(self, lease: Lease) -> None: ...

    def lease(self, name: str) -> Lease | None: ...

    def put_blob(self, key: str, value: bytes) -> None: ...

    def get_blob(self, key: str) -> bytes | None: ...

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """All rows of a named key-value table (the tally's groups)."""
        ...

    def put_rows(
        self, table: str, rows: Mapping[str, bytes], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        """Upsert rows and blobs in one transaction."""
        ...

    def clear_rows(self, table: str) -> None: ...

    def close(self) -> None: ...


class Policy(Protocol):
    """How many rollout workers. Stateless and pure."""

    def __call__(self, observation: Any, memory: Any, pool: Any) -> Any:
        """(Observation, Memory, Pool) → Desired."""
        ...


class GenerateRequest(NamedTuple):
    """One prompt, tokenized, to be sampled ``prompt.group_size`` times."""

    prompt: Prompt
    token_ids: list[int]


class RawSample(NamedTuple):
    """What an engine returns of one response; the stop token, if any, is included."""

    token_ids: list[int]
    logprobs: list[float]
    """Of the sampled ids under the policy that sampled, at temperature 1."""
    finish_reason: str
    """stop | length | abort"""
    version: int
    weights: str


class EngineStats(NamedTuple):
    """What an engine says of itself; None is unknown."""

    tokens_per_s: float | None = None
    kv_use: float | None = None
    version: int | None = None
    weights: str = ""


class RolloutBackend(Protocol):
    """A generation engine inside a rollout worker."""

    def load_weights(self, path: Path, version: int, weights: str) -> None:
        """Serve the model folder ``path`` from the next request on; verified."""
        ...

    def generate(
        self, requests: Sequence[GenerateRequest], stop: Callable[[], bool]
    ) -> Iterator[tuple[int, list[RawSample]]]:
        """Yield (index into requests, its samples) as groups are finished. Once
        ``stop()`` is true it ends early; groups not yielded are unfinished.
        """
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


class ScoreItem(NamedTuple):
    """What a reward function sees of one response."""

    prompt: str
    response: str
    reference: str
    task: str


class Reward(Protocol):
    """A user's function or an instance of a user's class.

    May raise: a VerlopsError, OSError or another outage leaves items *unscored*; any
    other error, three times for the same item, makes it *failed*; never 0. Scores come
    in input order; None marks an item that could not be scored.
    """

    def __call__(self, items: Sequence[ScoreItem]) -> Sequence[float | None]: ...


class GroupScorer(Protocol):
    """The worker's side of the reward server."""

    def score(self, groups: Sequence[Group], texts: Sequence[Sequence[str]]) -> list[Group]:
        """Groups with rewards filled in. Raises RewardDown on an outage."""
        ...


class NoticeSource(Protocol):
    """Where a machine learns that it will be taken away."""

    def poll(self) -> float | None:
        """The deadline (seconds since the epoch), or None."""
        ...
