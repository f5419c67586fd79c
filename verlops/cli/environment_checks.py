"""The checks of an environment: its folders, stores, queue and machines, really tried.

Called by ``verlops.cli.doctor``. Leaves no trace: what does not exist yet is tried in a
scratch folder on the same disk, which is removed again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verlops.assemble.load import Loaded
from verlops.assemble.objects import open_provider, open_queue, open_state, open_store
from verlops.assemble.system import SystemClock, SystemIds, holder_is_dead
from verlops.cli.checks import Check
from verlops.cli.machine_checks import nearest
from verlops.config import Config
from verlops.errors import ConflictError, VerlopsError
from verlops.ports import Lease

SCRATCH = ".verlops-doctor-"


def environment_checks(loaded: Loaded) -> Iterator[Check]:
    """Every check of an environment, one after the other."""
    config = loaded.config
    yield _tried("state folder", _try_folder, loaded.state_dir)
    yield _tried("state store", _try_state, config)
    yield _tried("queue", _try_queue, config)
    yield partitions_check(config)
    yield _tried("artifacts", _try_artifacts, config)
    yield _tried("machines", _try_machines, loaded)


def partitions_check(config: Config) -> Check:
    """Whether every worker can get a partition, and losing one can be evened out."""
    have, most = config.partitions(), config.rollout.pool.max
    detail = f"{have} partitions for up to {most} workers"
    remedy = f"set queue.partitions to {2 * most} or more; kept topics never shrink"
    if have < most:
        return Check("partitions", "fail", detail, remedy)
    return Check("partitions", "warn" if have < 2 * most else "ok", detail, remedy)


def _tried(name: str, attempt: Callable[[Any], Check], on: Any) -> Check:
    try:
        return attempt(on)
    except VerlopsError as error:
        return Check(name, "fail", str(error.args[0]).replace("\n", "; "), error.hint)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        remedy = "make the folder writable, or choose another with VERLOPS_STATE"
        return Check(name, "fail", f"{error.strerror or error}{where}", remedy)


def _try_folder(state_dir: Path) -> Check:
    with _place(state_dir) as folder:
        handle, name = tempfile.mkstemp(prefix=SCRATCH, dir=folder)
        try:
            os.write(handle, b"x")
            os.fsync(handle)
        finally:
            os.close(handle)
            os.unlink(name)
    state = "" if state_dir.exists() else " (will be made)"
    return Check("state folder", "ok", f"{state_dir} is writable{state}")


def _try_state(config: Config) -> Check:
    with _at_place(config, "state") as placed:
        store = open_state(placed)
        try:
            memory, intents = store.load()
        finally:
            store.close()
    run = memory.run or "no run yet"
    return Check("state store", "ok", f"{config.state.kind}: {run}, {len(intents)} open intents")


def _try_queue(config: Config) -> Check:
    with _at_place(config, "queue") as placed:
        queue = open_queue(placed)
        try:
            topics = queue.describe()
        finally:
            queue.close()
    return Check("queue", "ok", f"{config.queue.kind} opens; {len(topics)} topics")


def _try_artifacts(config: Config) -> Check:
    """Two creations of one key: the commit of an update rests on the second failing."""
    key = f"doctor/{SystemIds().new()}"
    with _at_place(config, "artifacts") as placed:
        store = open_store(placed)
        store.put_if_absent(key, b"first")
        try:
            store.put_if_absent(key, b"second")
            refused = False
        except ConflictError:
            refused = store.get(key) == b"first"
        finally:
            store.delete(key)
    if refused:
        return Check("artifacts", "ok", f"{config.artifacts.kind}: writable, put-if-absent holds")
    return Check(
        "artifacts",
        "fail",
        f"{config.artifacts.kind}: put-if-absent overwrote an object",
        "use another store: an update could be committed twice",
    )


def _try_machines(loaded: Loaded) -> Check:
    if not loaded.state_dir.exists():
        return Check("machines", "ok", "none: this environment has never run")
    provider = open_provider(loaded.config, loaded.state_dir)
    alive = [i.id for i in provider.instances() if i.phase != "gone"]
    lease = _lease(loaded.config)
    acting = lease is not None and _acts(lease)
    who = f"controller {lease.holder} acts" if lease and acting else "no controller acts"
    detail = f"{len(alive)} alive, {who}"
    if alive and not acting:
        remedy = "`verlops up` takes them over, `verlops down` ends them"
        return Check("machines", "warn", f"{detail}: {', '.join(alive)}", remedy)
    return Check("machines", "ok", detail)


def _lease(config: Config) -> Lease | None:
    store = open_state(config)
    try:
        return store.lease("controller")
    finally:
        store.close()


def _acts(lease: Lease) -> bool:
    expired = lease.expires_at <= SystemClock().now()
    return bool(lease.holder) and not expired and not holder_is_dead(lease.holder)


@contextmanager
def _at_place(config: Config, section: str) -> Iterator[Config]:
    """The config, with a section's folder in a scratch folder if it does not exist yet."""
    part = getattr(config, section)
    with _place(Path(part.path)) as folder:
        yield config.model_copy(update={section: part.model_copy(update={"path": str(folder)})})


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    if folder.exists():
        yield folder
        return
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=nearest(folder)))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch)
