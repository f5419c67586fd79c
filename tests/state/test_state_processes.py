"""The state store between real processes: races, kill -9, readers beside a writer."""

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from verlops.model import Drain, Intent, Memory
from verlops.state.sql import SqlState

pytestmark = pytest.mark.e2e

Start = Callable[..., "subprocess.Popen[str]"]

RACER = """
import sys
from verlops.errors import LeaseHeldError
path, holder, rounds = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
from verlops.state.sql import SqlState
store = SqlState(path)
for number in range(int(rounds)):
    try:
        lease = store.acquire(f"race-{number}", holder, 60.0, 1000.0)
        print("won", number, lease.fence, flush=True)
    except LeaseHeldError as error:
        print("held", number, str(error).split()[5], flush=True)
store.close()
"""

TAKER = """
import sys
from verlops.errors import LeaseHeldError, LeaseLostError
from verlops.model import Event, Memory
from verlops.state.sql import SqlState
path, holder, rounds = sys.argv[1:]
store = SqlState(path)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(rounds)):
    # Everybody believes that everybody else is dead: the lease is stolen all the time.
    fence = store.acquire("controller", holder, 60.0, 1000.0, lambda _: True).fence
    memory, _ = store.load()
    extra = {"count": memory.extra.get("count", 0) + 1}
    event = Event(at=0.0, kind="saved", reason=holder, data={"fence": fence, **extra})
    try:
        store.save(memory.but(extra=extra), events=[event], fence=fence)
    except LeaseLostError:
        continue
store.close()
"""

WRITER = """
import sys
from verlops.model import Drain, Event, Intent, Memory
from verlops.state.sql import SqlState
store = SqlState(sys.argv[1])
number = store.load()[0].version
while True:
    number += 1
    drain = Drain(instance_id=str(number), key="k", reason="r")
    store.save(
        Memory(version=number),
        opened=[Intent(id=f"i-{number}", action=drain, at=0.0, fence=1)],
        closed=[f"i-{number - 1}"],
        events=[Event(at=float(number), kind="step", data={"number": number})],
    )
    store.put_rows("groups", {str(number): b"x"}, {"cursor": str(number).encode()})
    print(number, flush=True)
"""


def test_one_of_several_racing_processes_wins_each_lease(start: Start, tmp_path: Path) -> None:
    racers, rounds = 4, 15
    processes = [start(RACER, f"racer-{n}", str(rounds)) for n in range(racers)]
    lines = [line for out in _go(processes) for line in out]
    won = {int(number): holder for holder, (word, number, _) in lines if word == "won"}
    assert sorted(won) == list(range(rounds))
    assert Counter(word for _, (word, _, _) in lines) == {
        "won": rounds,
        "held": rounds * (racers - 1),
    }
    for _, (word, number, named) in lines:
        assert (word == "won" and named == "1") or named == won[int(number)]
    store = SqlState(tmp_path / "state.db")
    for number, holder in won.items():
        assert store.lease(f"race-{number}") == (f"race-{number}", holder, 1, 1060.0)
    store.close()


def test_no_save_of_a_lost_lease_gets_through(start: Start, tmp_path: Path) -> None:
    processes = [start(TAKER, f"taker-{n}", "30") for n in range(3)]
    _go(processes)
    store = SqlState(tmp_path / "state.db")
    events = list(store.events())
    # A lost update would repeat a count; a save under an old fence would break the order.
    assert [e.data["count"] for e in events] == list(range(1, len(events) + 1))
    fences = [e.data["fence"] for e in events]
    assert fences == sorted(fences)
    owners = {}
    for event in events:
        assert owners.setdefault(event.data["fence"], event.reason) == event.reason
    assert store.load()[0].extra["count"] == len(events)
    assert len({e.reason for e in events}) > 1
    store.close()


def test_a_killed_writer_leaves_a_whole_state(start: Start, tmp_path: Path) -> None:
    last = 0
    for life in range(1, 6):
        process = start(WRITER)
        assert process.stdout is not None
        for _ in range(3 * life):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        last = max([last, *map(int, process.communicate()[0].split())])
        assert process.returncode == -signal.SIGKILL
        store = SqlState(tmp_path / "state.db")
        number = _check_whole(store)
        assert number in (last, last + 1)
        assert [e.data["number"] for e in store.events()] == list(range(1, number + 1))
        rows = dict(store.rows("groups"))
        assert len(rows) == int(store.get_blob("cursor") or 0) in (number - 1, number)
        store.close()
        last = number


def test_readers_beside_a_writer_see_whole_states(start: Start, tmp_path: Path) -> None:
    process = start(WRITER)
    assert process.stdout is not None
    process.stdout.readline()
    stores = [SqlState(tmp_path / "state.db") for _ in range(2)]
    seen: set[int] = set()
    deadline = time.monotonic() + 60
    while len(seen) < 20 and time.monotonic() < deadline:
        for store in stores:
            seen.add(_check_whole(store))
            events = list(store.events())
            assert [e.seq for e in events] == [e.data["number"] for e in events]
    assert len(seen) >= 20
    assert process.poll() is None
    for store in stores:
        store.close()


def test_a_new_database_is_opened_by_many_processes_at_once(start: Start, tmp_path: Path) -> None:
    processes = [start(RACER, f"opener-{n}", "1") for n in range(6)]
    _go(processes)
    store = SqlState(tmp_path / "state.db")
    assert store.load() == (Memory(), [])
    store.close()


def _check_whole(store: SqlState) -> int:
    """Memory and intents are of one save; return its number."""
    memory, intents = store.load()
    drain = Drain(instance_id=str(memory.version), key="k", reason="r")
    assert intents == [Intent(id=f"i-{memory.version}", action=drain, at=0.0, fence=1)]
    return memory.version


def _go(processes: "list[subprocess.Popen[str]]") -> list[list[tuple[str, list[str]]]]:
    """Let all start at one moment; each one's lines as (holder, words)."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = []
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        holder = str(process.args[4])  # type: ignore[index]
        found.append([(holder, line.split()) for line in out.splitlines()])
    return found
