"""The count of what was sampled: an incremental fold over receipts. Pure.

Used by the controller's signals (and rebuilt from the log by tests). Every fold is
idempotent: a receipt, a partial or a version read twice changes nothing. Which attempt
counts, and what state it is in, is decided by ``verlops.attempts`` alone, so that what
is usable here is usable to the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from verlops.attempts import Attempt, beats, state
from verlops.errors import CorruptError
from verlops.messages import Dead, Partial, Receipt
from verlops.model import PromptStates, SampleStats


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt cost and made, and where."""

    instance: str
    gpu_seconds: float
    prompt_tokens: int
    response_tokens: int


class Row(msgspec.Struct, array_like=True):
    """All that is known of one group; the unit of persistence."""

    best: tuple[str, str, int, int, int, int, int, bool] | None = None
    works: dict[str, Work] = {}
    """Attempt id → its work; its size is the number of attempts."""
    positions: list[tuple[int, int]] = []
    """Distinct (partition, offset) of the prompts that these attempts answered."""
    trained_in: int | None = None
    uniform: bool = False
    partial: bool = False
    """An unfinished attempt lies on the resume topic and no complete one exists."""


class TokenShare(NamedTuple):
    """What the work of one machine came to: response tokens and GPU seconds by fate."""

    trained: int = 0
    usable: int = 0
    lost: int = 0
    """Stale, failed, rejected or superseded."""
    gpu_seconds: float = 0.0


class Tally:
    """The state of every group that has a receipt."""

    def __init__(self, min_scored: int, staleness: int) -> None:
        self._min_scored = min_scored
        self._staleness = staleness
        self._rows: dict[str, Row] = {}
        self._dirty: set[str] = set()
        self._trained: dict[str, int] = {}
        self._unreceipted: set[str] = set()
        """Trained groups whose worker died between the group and its receipt."""
        self._dead: set[tuple[str, int, int]] = set()
        self._attempts = 0
        self._positions = 0
        self._open: Counter[int] = Counter()
        """Oldest version → scored samples of untrained, trainable groups."""
        self._open_groups: Counter[int] = Counter()
        self._samples: Counter[str] = Counter()
        """Samples by a fate that no version changes: trained, failed, rejected, superseded."""
        self._groups: Counter[str] = Counter()

    @classmethod
    def load(cls, rows: Iterable[tuple[str, bytes]], min_scored: int, staleness: int) -> Tally:
        """A tally from saved rows. Raises CorruptError. Versions are read again after it."""
        tally = cls(min_scored, staleness)
        for key, data in rows:
            if key.startswith(_DEAD):
                topic, partition, offset = key.removeprefix(_DEAD).rsplit("/", 2)
                tally._dead.add((topic, int(partition), int(offset)))
                continue
            try:
                row = msgspec.msgpack.decode(data, type=Row)
            except msgspec.MsgspecError as error:
                raise CorruptError(f"tally row {key} does not decode: {error}") from error
            tally._rows[key] = row
            if row.trained_in is not None:
                tally._trained[key] = row.trained_in
            tally._attempts += len(row.works)
            tally._positions += len(row.positions)
            tally._count(row, +1)
        return tally

    def fold(self, receipts: Iterable[Receipt]) -> None:
        """Take receipts, in any order."""
        for receipt in receipts:
            row = self._rows.get(receipt.group_id)
            if row is not None and receipt.attempt in row.works:
                continue
            if row is None:
                row = self._rows[receipt.group_id] = Row(works={}, positions=[])
            else:
                self._count(row, -1)
            self._take(row, receipt)
            self._unreceipted.discard(receipt.group_id)
            if receipt.group_id in self._trained:
                row.trained_in = self._trained[receipt.group_id]
            self._count(row, +1)
            self._dirty.add(receipt.group_id)

    def trained(self, version: int, ids: Iterable[str]) -> None:
        """Groups that a committed version has spent."""
        for group_id in ids:
            if group_id in self._trained:
                continue
            self._trained[group_id] = version
            row = self._rows.get(group_id)
            if row is None:
                self._unreceipted.add(group_id)
            else:
                self._count(row, -1)
                row.trained_in = version
                self._count(row, +1)
                self._dirty.add(group_id)

    def partials(self, records: Iterable[Partial]) -> None:
        """Unfinished groups that were handed over on a notice."""
        for record in records:
            row = self._rows.setdefault(record.group_id, Row(works={}, positions=[]))
            place = (record.prompt_partition, record.prompt_offset)
            if row.partial and place in row.positions:
                continue
            self._count(row, -1)
            self._place(row, place)
            row.partial = True
            self._count(row, +1)
            self._dirty.add(record.group_id)

    def dead(self, records: Iterable[Dead]) -> None:
        """Prompts that can't be used."""
        for record in records:
            place = (record.topic, record.partition, record.offset)
            if record.topic.endswith(".prompts") and place not in self._dead:
                self._dead.add(place)
                self._dirty.add(f"{_DEAD}{record.topic}/{record.partition}/{record.offset}")

    def knows(self, group_id: str) -> bool:
        """Whether a complete attempt at this group exists."""
        row = self._rows.get(group_id)
        return row is not None and bool(row.works)

    def samples(self, version: int, *, in_flight_samples: int = 0) -> SampleStats:
        """Counts of samples at a policy version; O(versions)."""
        fresh = {v: n for v, n in self._open.items() if version - v <= self._staleness and n}
        stale = sum(self._open.values()) - sum(fresh.values())
        usable = sum(fresh.values())
        groups = sum(self._open_groups[v] for v in fresh)
        return SampleStats(
            usable=usable,
            outstanding=usable + in_flight_samples,
            stale=stale,
            superseded=self._attempts - self._complete(),
            failed=self._samples["failed"],
            rejected=self._samples["rejected"],
            trained=self._samples["trained"],
            usable_groups=groups,
            attempts=self._attempts,
            usable_by_version=fresh,
        )

    def prompts(self, version: int, *, fed: int, leased: int) -> PromptStates:
        """The state of every prompt fed (DATAPLANE rule 14); the sum is ``fed``.

        ``leased`` comes from beats and may be late: it is clamped to what is left.
        """
        stale = sum(n for v, n in self._open_groups.items() if version - v > self._staleness)
        usable = sum(self._open_groups.values()) - stale
        groups = self._groups
        with_place = sum(groups.values()) + usable + stale
        duplicate = max(0, self._positions - with_place)
        spent = len(self._unreceipted)
        left = max(0, fed - with_place - duplicate - len(self._dead) - spent)
        held = min(leased, left)
        return PromptStates(
            waiting=left - held,
            leased=held,
            resume=groups["resume"],
            usable=usable,
            trained=groups["trained"] + spent,
            stale=stale,
            failed=groups["failed"],
            rejected=groups["rejected"],
            dead=len(self._dead),
            duplicate=duplicate,
        )

    def tokens_by_instance(self, version: int) -> dict[str, TokenShare]:
        """Instance id → its response tokens by fate, and its GPU seconds. O(groups)."""
        shares: dict[str, TokenShare] = {}
        for row in self._rows.values():
            fate = self._fate(row, version)
            for attempt, work in row.works.items():
                counts = row.best is not None and row.best[1] == attempt
                kind = fate if counts and fate in ("trained", "usable") else "lost"
                shares[work.instance] = _added(shares.get(work.instance), work, kind)
        return shares

    def dirty(self) -> Mapping[str, bytes]:
        """Rows that changed since the last call, as they are saved."""
        changed = {
            key: b"" if key.startswith(_DEAD) else msgspec.msgpack.encode(self._rows[key])
            for key in self._dirty
        }
        self._dirty = set()
        return changed

    def _take(self, row: Row, receipt: Receipt) -> None:
        new = Attempt(
            receipt.group_id,
            receipt.attempt,
            receipt.oldest_version,
            receipt.partition,
            receipt.offset,
            receipt.samples,
            receipt.scored,
            bool(receipt.rejected),
        )
        old = Attempt(*row.best) if row.best else None
        # Once trained, the attempt that counted is history: later ones are superseded.
        spent = row.trained_in is not None
        if old is None or (not spent and beats(new, old, min_scored=self._min_scored)):
            row.best = _plain(new)
            row.uniform = receipt.uniform
        row.works[receipt.attempt] = Work(
            receipt.instance, receipt.gpu_seconds, receipt.prompt_tokens, receipt.response_tokens
        )
        row.partial = False
        self._attempts += 1
        self._place(row, (receipt.prompt_partition, receipt.prompt_offset))

    def _place(self, row: Row, place: tuple[int, int]) -> None:
        if place not in row.positions:
            row.positions.append(place)
            self._positions += 1

    def _complete(self) -> int:
        """Groups with at least one complete attempt."""
        groups = self._groups
        return sum(groups.values()) - groups["resume"] + sum(self._open_groups.values())

    def _count(self, row: Row, sign: int) -> None:
        """Add a row to the counters, or take it out."""
        if row.best is None:
            if row.partial:
                self._groups["resume"] += sign
            return
        attempt = Attempt(*row.best)
        fate = self._fate(row, attempt.oldest_version)
        if fate == "usable":
            self._open[attempt.oldest_version] += sign * attempt.scored
            self._open_groups[attempt.oldest_version] += sign
            return
        self._groups[fate] += sign
        scored = fate == "trained"
        self._samples[fate] += sign * (attempt.scored if scored else attempt.samples)

    def _fate(self, row: Row, version: int) -> str:
        if row.best is None:
            return "resume"
        if row.trained_in is not None:
            return "trained"
        return state(
            Attempt(*row.best),
            version=version,
            staleness=self._staleness,
            min_scored=self._min_scored,
            trained=(),
        )


_DEAD = "dead/"


def _plain(attempt: Attempt) -> tuple[str, str, int, int, int, int, int, bool]:
    return (*attempt,)


def _added(share: TokenShare | None, work: Work, kind: str) -> TokenShare:
    old = share or TokenShare()
    tokens = {kind: getattr(old, kind) + work.response_tokens}
    return old._replace(gpu_seconds=old.gpu_seconds + work.gpu_seconds, **tokens)
