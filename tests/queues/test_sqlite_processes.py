"""The log under several processes, some of them killed with SIGKILL at any moment."""

import importlib.util
import sqlite3
import threading
from pathlib import Path

import pytest

from verlops.ports import TopicSpec
from verlops.queues.sqlite import SqliteQueue

pytestmark = pytest.mark.e2e


def load_program():
    path = Path(__file__).with_name("log_program.py")
    spec = importlib.util.spec_from_file_location("log_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Output:
    """The lines of a process, gathered while it runs."""

    def __init__(self, process):
        self.process = process
        self.lines: list[str] = []
        self.thread = threading.Thread(target=self._gather, daemon=True)
        self.thread.start()

    def _gather(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def kill(self):
        self.process.kill()
        assert self.process.wait() == -9
        self.thread.join()
        # A line cut short by the kill was not said.
        return [line.split() for line in self.lines if line.endswith("\n")]


@pytest.fixture
def real(tmp_path):
    """The log by real clocks, as programs open it."""
    queue = SqliteQueue(tmp_path / "log")
    yield queue
    queue.close()


def feed(queue: SqliteQueue, count: int = 20) -> None:
    first = queue.stats("t", "workers").end
    queue.publish("t", [(f"k{first + n}", b"v") for n in range(count)])


def check_whole(folder: Path) -> None:
    for path in folder.glob("*.db"):
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()


def test_killed_publishers_lose_nothing_that_was_acknowledged(real, tmp_path, program, until):
    real.ensure([TopicSpec("t", 5)])
    value_of = load_program().value_of
    acknowledged: dict[str, tuple[int, int]] = {}
    running = [Output(program("publish", tmp_path / "log", "t", f"p{n}")) for n in range(3)]
    for generation in range(3, 15):
        victim = running.pop(0)
        # Another number of lines each time: the kill comes at another point of the loop.
        until(lambda v=victim, g=generation: len(v.lines) > 7 * g)
        for key, partition, offset in victim.kill():
            acknowledged[key] = (int(partition), int(offset))
        if generation < 12:
            running.append(Output(program("publish", tmp_path / "log", "t", f"p{generation}")))
    records = [
        record for partition in range(5) for record in real.read("t", partition, 0, 1_000_000)
    ]
    ends = real.end_offsets("t")
    for partition, end in ends.items():
        assert [r.offset for r in records if r.partition == partition] == list(range(end))
    for record in records:
        assert record.value == value_of(record.key)
    found = {record.key: (record.partition, record.offset) for record in records}
    assert len(found) == len(records)
    assert acknowledged.items() <= found.items()
    assert len(acknowledged) > 12 * 20
    real.publish("t", [("after", b"x")])
    check_whole(tmp_path / "log")


def test_killed_consumers_are_replaced_from_what_they_committed(real, tmp_path, program, until):
    real.ensure([TopicSpec("t", 3)])
    running = [Output(program("consume", tmp_path / "log", "t", f"c{n}", 1.0)) for n in range(2)]
    said: list[list[list[str]]] = []

    def committing(member):
        feed(real)
        return sum(line.startswith("committed") for line in member.lines) > 5

    for victim in running:
        until(lambda v=victim: committing(v))
        said.append(victim.kill())
    feed(real, 100)
    ends = real.end_offsets("t")
    committed = real.committed("t", "workers")
    for lines in said:
        for word, partition, offset in lines:
            if word == "committed":
                assert committed[int(partition)] >= int(offset)
    heir = real.join("t", "workers", member="heir", session_timeout=1.0)
    first: dict[int, int] = {}
    rest = []
    left = sum(end - (committed[p] or 0) for p, end in ends.items())
    assert left > 0

    def taken_over():
        records = heir.poll(100, 0.05)
        rest.extend(records)
        for record in records:
            first.setdefault(record.partition, record.offset)
        return len(rest) >= left

    until(taken_over)
    assert first == {p: committed[p] or 0 for p in first}
    got = {(int(p), int(o)) for lines in said for word, p, o in lines if word == "got"}
    got |= {(record.partition, record.offset) for record in rest}
    assert got == {(p, o) for p, end in ends.items() for o in range(end)}
    heir.commit(ends)
    assert real.stats("t", "workers").lag == 0
    check_whole(tmp_path / "log")


def test_a_group_of_processes_finishes_the_work_although_one_is_killed(
    real, tmp_path, program, until
):
    real.ensure([TopicSpec("t", 6)])
    members = [Output(program("consume", tmp_path / "log", "t", f"c{n}", 1.0)) for n in range(3)]

    until(lambda: feed(real) or all(len(member.lines) > 10 for member in members))
    lines = members.pop(0).kill()
    feed(real, 200)
    until(lambda: real.stats("t", "workers").lag == 0)
    for member in members:
        lines += member.kill()
    ends = real.end_offsets("t")
    assert real.committed("t", "workers") == ends
    got = {(int(p), int(o)) for word, p, o in lines if word == "got"}
    assert got == {(p, o) for p, end in ends.items() for o in range(end)}


def test_topics_made_by_racing_and_killed_processes_are_whole(real, tmp_path, program, until):
    folder = tmp_path / "log"
    makers = [Output(program("ensure", folder, 6)) for _ in range(3)]
    makers[0].process.kill()  # perhaps before anything is there
    acknowledged = [0] * 6
    for number, maker in enumerate(makers):
        if number:
            until(lambda m=maker, n=number: len(m.lines) > 3 * n)
        for (topic,) in maker.kill():
            acknowledged[int(topic)] += 1
    found = real.describe()
    for number, count in enumerate(acknowledged):
        spec = found.get(f"t{number}")
        assert spec == TopicSpec(f"t{number}", 3, compact=number % 2 == 0) or count == 0
        if spec:
            assert sum(real.end_offsets(f"t{number}").values()) >= count
    assert sum(acknowledged) >= 10
    real.ensure([TopicSpec(f"t{number}", 4) for number in range(6)])
    assert {spec.partitions for spec in real.describe().values()} == {4}
    check_whole(folder)
