"""The commit is one create; retention counts numerically and by the store's listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from verlops.artifacts.local import LocalStore
from verlops.errors import ConflictError, CorruptError, FencedError
from verlops.lineage import fetch_files, list_versions, read_version
from verlops.versions import Version, fence_key
from verlops_workers.trainer.commit import commit, prune, upload


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def make(store: LocalStore, root: Path, number: int, attempt: str = "a", fence: int = 1) -> Version:
    folder = root / f"out-{number}-{attempt}"
    (folder / "model").mkdir(parents=True)
    (folder / "state").mkdir()
    (folder / "model" / "model.safetensors").write_bytes(f"{number}{attempt}".encode())
    (folder / "state" / "shard").write_bytes(b"x" * 10)
    entries = upload(store, folder, "r", number, attempt)
    return Version(
        run="r", version=number, parent=number - 1, attempt=attempt, fence=fence, files=entries
    )


def test_the_loser_of_a_version_changes_nothing(store, tmp_path: Path) -> None:
    first, second = make(store, tmp_path, 1, "a"), make(store, tmp_path, 1, "b")
    commit(store, first)
    with pytest.raises(ConflictError):
        commit(store, second)
    assert read_version(store, "r", 1).attempt == "a"
    fetch_files(store, read_version(store, "r", 1), tmp_path / "got")
    assert (tmp_path / "got/model/model.safetensors").read_bytes() == b"1a"


def test_a_higher_fence_stops_the_commit(store, tmp_path: Path) -> None:
    version = make(store, tmp_path, 1, fence=3)
    store.put_if_absent(fence_key("r", 4), b"")
    with pytest.raises(FencedError, match="4"):
        commit(store, version)
    assert list_versions(store, "r") == []


def test_its_own_fence_does_not(store, tmp_path: Path) -> None:
    store.put_if_absent(fence_key("r", 3), b"")
    commit(store, make(store, tmp_path, 1, fence=3))
    assert list_versions(store, "r") == [1]


def test_an_upload_that_the_store_garbles_is_noticed(store, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "get", lambda key: b"garbled")
    with pytest.raises(CorruptError, match="is not what was put"):
        make(store, tmp_path, 1)


def test_a_garbled_download_is_refused_and_not_kept(store, tmp_path: Path) -> None:
    version = make(store, tmp_path, 1)
    store.put("runs/r/attempts/00000001-a/model/model.safetensors", b"other")
    with pytest.raises(CorruptError, match="checksum"):
        fetch_files(store, version, tmp_path / "got")
    assert not (tmp_path / "got/model/model.safetensors").exists()


def test_ckp_1_the_newest_are_kept_by_number(store, tmp_path: Path) -> None:
    for number in (9800, 9900, 10000, 10100):
        commit(store, make(store, tmp_path, number))
    prune(store, "r", 3)
    left = {s.key.split("/")[3] for s in store.list("runs/r/attempts/")}
    assert left == {"00009900-a", "00010000-a", "00010100-a"}
    # The version files stay: they are the trained set.
    assert list_versions(store, "r") == [9800, 9900, 10000, 10100]


def test_an_uncommitted_attempt_takes_no_slot(store, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        commit(store, make(store, tmp_path, number))
    make(store, tmp_path, 4, "broken")
    prune(store, "r", 3)
    left = {s.key.split("/")[3] for s in store.list("runs/r/attempts/")}
    assert left == {"00000001-a", "00000002-a", "00000003-a", "00000004-broken"}
