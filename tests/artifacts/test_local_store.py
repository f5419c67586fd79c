"""The local store under racing and killed processes, full disks and odd folders."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verlops.artifacts import drafts, local
from verlops.artifacts.local import DRAFTS, LocalStore
from verlops.config import Config
from verlops.config.schema import Artifacts
from verlops.errors import ConfigError, ConflictError, UnknownOutcomeError, VerlopsError
from verlops.ports import Stat

PROGRAM = Path(__file__).with_name("store_program.py")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    return LocalStore(root)


@pytest.fixture
def program(root):
    started = []

    def start(name, *arguments):
        command = [sys.executable, str(PROGRAM), name, str(root), *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def leftovers(root):
    return list((root / DRAFTS).iterdir())


def start_together(processes):
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.read().split() for process in processes]
    assert [process.wait() for process in processes] == [0] * len(processes)
    return said


def test_of_racing_processes_exactly_one_wins_each_key(store, root, program):
    rounds = 100
    won = start_together([program("race", f"p{n}", rounds) for n in range(4)])
    assert sorted(int(number) for numbers in won for number in numbers) == list(range(rounds))
    for number, numbers in enumerate(won):
        for key in numbers:
            assert store.get(f"race/{key}") == b"p%d" % number
    assert leftovers(root) == []


def test_folders_emptied_by_others_do_not_fail_a_put(store, root, program):
    said = start_together([program("churn", f"p{n}", 150) for n in range(3)])
    assert said == [["done"]] * 3
    assert store.list("") == []
    assert {p.name for p in root.iterdir()} == {DRAFTS}


def test_a_killed_writer_leaves_the_old_object_and_nothing_listed(store, root, program):
    store.put("k", b"old")
    seen_draft = False
    while not seen_draft:
        writer = program("big", "k")
        assert writer.stdout.readline() == "begin 0\n"
        deadline = time.monotonic() + 60
        # Kill it with a half-written draft; once more if it was quicker than we.
        while not any(path.stat().st_size for path in leftovers(root)):
            assert time.monotonic() < deadline
            if writer.poll() is not None or store.get("k") != b"old":
                break
        writer.kill()
        writer.wait()
        seen_draft = store.get("k") == b"old" and leftovers(root) != []
        if not seen_draft:
            store.put("k", b"old")
    assert store.list("") == [Stat("k", 3)]
    LocalStore(root).put("other", b"x")  # the next program that writes tidies up
    assert leftovers(root) == []
    assert store.get("k") == b"old"


def test_the_draft_of_a_living_writer_is_left_alone(store, root):
    with drafts.Drafts(root / DRAFTS).new() as (path, file):
        file.write(b"half")
        file.flush()
        LocalStore(root).put("other", b"x")
        assert path.exists()
        assert store.list("") == [Stat("other", 1)]
    assert leftovers(root) == []


def test_a_draft_swept_before_it_was_locked_is_made_again(root, monkeypatch):
    mine = drafts.Drafts(root / DRAFTS)
    lock, swept = drafts.fcntl.flock, []

    def late(file, how):
        if not swept and how == drafts.fcntl.LOCK_EX:
            swept.append(file.name)
            os.unlink(file.name)
        lock(file, how)

    monkeypatch.setattr(drafts.fcntl, "flock", late)
    with mine.new() as (path, _):
        assert path.exists()
        assert str(path) != swept[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_and_leaves_nothing(store, root, tmp_path, monkeypatch, code):
    store.put("k", b"old")
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1000)

    def full(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(drafts.os, "fsync", full)
    for call in (
        lambda: store.put("k", b"new"),
        lambda: store.put("a/b", b"new"),
        lambda: store.put_file("k", source),
        lambda: store.put_if_absent("first", b"new"),
        lambda: store.fetch("k", tmp_path / "out"),
    ):
        with pytest.raises(VerlopsError, match=r"no space left for .* free some space") as caught:
            call()
        assert not isinstance(caught.value, ConflictError)
    assert store.list("") == [Stat("k", 3)]
    assert store.get("k") == b"old"
    assert leftovers(root) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "store"]


def test_an_object_whose_name_may_not_last_has_an_unknown_outcome(store, monkeypatch):
    store.put("k", b"old")

    def broken(_):
        raise OSError(errno.EIO, "bad disk")

    monkeypatch.setattr(local, "sync_folder", broken)
    with pytest.raises(UnknownOutcomeError, match="'new' is stored"):
        store.put_if_absent("new", b"x")
    assert store.get("new") == b"x"


def test_a_write_that_stops_half_way_leaves_nothing(store, root, program):
    store.put("k", b"old")
    said = program("limited", "k").communicate()[0].splitlines()
    assert len(said) == 2
    assert all(line.startswith("VerlopsError no space left for 'k'") for line in said)
    assert store.get("k") == b"old"
    assert store.list("") == [Stat("k", 3)]
    assert leftovers(root) == []


def test_a_key_and_a_folder_of_the_same_name_exclude_each_other(store):
    store.put("a/b", b"x")
    for put in (store.put, store.put_if_absent):
        with pytest.raises(VerlopsError, match=r"'a'.* folder of other objects"):
            put("a", b"y")
        with pytest.raises(VerlopsError, match="cannot use 'a/b/c'") as caught:
            put("a/b/c", b"y")
        assert not isinstance(caught.value, ConflictError)
    assert store.list("") == [Stat("a/b", 1)]


def test_links_are_not_followed_by_list_nor_by_delete(store, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    store.put("k", b"x")
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    assert store.list("") == [Stat("k", 1)]
    store.delete("link")
    store.delete("file")
    assert (outside / "secret").read_bytes() == b"s"


def test_what_cannot_be_written_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    store = LocalStore(tmp_path / "file" / "store")
    with pytest.raises(VerlopsError, match="cannot use 'k' in"):
        store.put("k", b"x")
    assert store.list("") == []
    store = LocalStore(tmp_path / "store")
    with pytest.raises(VerlopsError, match="cannot use"):
        store.put("x" * 300, b"x")


def test_a_file_is_readable_by_those_whom_the_umask_lets(store, root):
    before = os.umask(0o027)
    try:
        store.put("k", b"x")
    finally:
        os.umask(before)
    assert (root / "k").stat().st_mode & 0o777 == 0o640


def test_opened_from_a_config(tmp_path):
    store = LocalStore.open(Config(name="x", artifacts=Artifacts(path=str(tmp_path / "s"))))
    assert store.list("") == []
    assert not (tmp_path / "s").exists()
    store.put("k", b"x")
    assert (tmp_path / "s" / "k").read_bytes() == b"x"
    with pytest.raises(ConfigError, match=r"artifacts\.path"):
        LocalStore.open(Config(name="x"))
