"""What every artifact store guarantees (ports.ArtifactStore)."""

import threading

import pytest

from verlops.errors import ConflictError, NotFoundError, VerlopsError
from verlops.ports import Stat

BIG = bytes(range(256)) * 20_000


def test_what_was_put_comes_back(artifacts):
    for key, data in {"a": b"1", "runs/r/x.bin": BIG, "runs/é ü/00.json": b""}.items():
        artifacts.put(key, data)
        assert artifacts.get(key) == data


def test_put_replaces(artifacts):
    artifacts.put("k", b"old and longer")
    artifacts.put("k", b"new")
    assert artifacts.get("k") == b"new"
    assert artifacts.list("") == [Stat("k", 3)]


def test_put_if_absent_keeps_the_first(artifacts):
    artifacts.put_if_absent("versions/00000001.json", b"first")
    with pytest.raises(ConflictError, match="00000001"):
        artifacts.put_if_absent("versions/00000001.json", b"second")
    assert artifacts.get("versions/00000001.json") == b"first"
    artifacts.delete("versions/00000001.json")
    artifacts.put_if_absent("versions/00000001.json", b"third")
    assert artifacts.get("versions/00000001.json") == b"third"


def test_put_if_absent_sees_what_put_stored(artifacts):
    artifacts.put("k", b"put")
    with pytest.raises(ConflictError):
        artifacts.put_if_absent("k", b"other")
    assert artifacts.get("k") == b"put"


def test_of_racing_threads_exactly_one_wins(artifacts):
    for round_ in range(20):
        won: list[int] = []
        start = threading.Barrier(4)

        def race(
            number: int, key: str = f"commit/{round_}", won: list[int] = won, start=start
        ) -> None:
            start.wait()
            try:
                artifacts.put_if_absent(key, b"%d" % number)
                won.append(number)
            except ConflictError:
                pass

        threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert artifacts.get(f"commit/{round_}") == b"%d" % won[0]


def test_files_go_in_and_come_out(artifacts, tmp_path):
    source = tmp_path / "model.safetensors"
    source.write_bytes(BIG)
    artifacts.put_file("w/model.safetensors", source)
    source.write_bytes(b"changed later")
    target = tmp_path / "in" / "deep" / "model.safetensors"
    artifacts.fetch("w/model.safetensors", target)
    assert target.read_bytes() == BIG
    artifacts.put("w/model.safetensors", b"2")
    artifacts.fetch("w/model.safetensors", target)
    assert target.read_bytes() == b"2"
    assert [p.name for p in target.parent.iterdir()] == ["model.safetensors"]


def test_what_is_missing_is_not_found_and_leaves_nothing(artifacts, tmp_path):
    artifacts.put("a/b/c", b"x")
    for key in ("nothing", "a", "a/b", "a/b/c/d"):
        with pytest.raises(NotFoundError):
            artifacts.get(key)
        with pytest.raises(NotFoundError):
            artifacts.fetch(key, tmp_path / "out" / "x")
    assert not (tmp_path / "out" / "x").exists()
    with pytest.raises(NotFoundError):
        artifacts.put_file("k", tmp_path / "no-such-file")
    assert artifacts.list("") == [Stat("a/b/c", 1)]


def test_list_is_sorted_by_key_with_sizes_and_takes_any_prefix(artifacts):
    keys = ["runs/a/1", "runs/a/10", "runs/a/2", "runs/ab/1", "runs/a-b", "other"]
    for size, key in enumerate(keys):
        artifacts.put(key, b"x" * size)
    everything = artifacts.list("")
    assert [s.key for s in everything] == sorted(keys)
    assert {s.key: s.size for s in everything} == {k: n for n, k in enumerate(keys)}
    assert [s.key for s in artifacts.list("runs/a/")] == ["runs/a/1", "runs/a/10", "runs/a/2"]
    assert [s.key for s in artifacts.list("runs/a/1")] == ["runs/a/1", "runs/a/10"]
    assert [s.key for s in artifacts.list("runs/a")] == sorted(keys[:5])
    assert artifacts.list("runs/none/") == artifacts.list("x") == []


def test_delete_is_idempotent(artifacts):
    artifacts.put("a/b/c", b"x")
    artifacts.put("a/d", b"y")
    for _ in range(2):
        artifacts.delete("a/b/c")
    for key in ("nothing", "a/d/e", "a"):
        artifacts.delete(key)
    assert artifacts.list("") == [Stat("a/d", 1)]
    artifacts.put("a/b", b"the name is free again")
    assert artifacts.get("a/b") == b"the name is free again"


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a/./b", "nul\0", ".tmp/x"]
)
def test_a_key_that_is_none_is_refused_by_everything(artifacts, tmp_path, key):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    for call in (
        lambda: artifacts.put(key, b"x"),
        lambda: artifacts.put_file(key, source),
        lambda: artifacts.put_if_absent(key, b"x"),
        lambda: artifacts.get(key),
        lambda: artifacts.fetch(key, tmp_path / "out"),
        lambda: artifacts.delete(key),
    ):
        with pytest.raises(VerlopsError, match="no key"):
            call()
    assert artifacts.list("") == []
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "store") == ["source"]


def test_a_prefix_outside_the_store_is_refused(artifacts):
    for prefix in ("/", "/etc/", "../", "a/../../"):
        with pytest.raises(VerlopsError):
            artifacts.list(prefix)
