"""Machines that are processes here, with the life of cloud machines.

Offers with a price and a market, boot delay, spot notice then kill, self-shutdown, exit
records that a wrapper process writes: nobody has to wait for a machine. Used for the
embedded default, the demo and tests; nothing is really rented.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil

from verlops.config import Config
from verlops.errors import CapacityError, VerlopsError
from verlops.machine import MachineSpec, encode_spec
from verlops.model import Instance, Launch, Notice, Offer, Phase
from verlops.ports import Clock
from verlops.providers.folder import BULK, Folder, LaunchRecord
from verlops.providers.processes import alive, kill_all, tagged

LISTED = 3600.0
"""Seconds that a machine stays listed after its end."""
OBEY = 15.0
"""Seconds that a wrapper has to obey a terminate order before it is swept."""
TAGS = ("verlops:slot", "verlops:generation", "verlops:fence", "verlops:key", "verlops:run")


class LocalProvider:
    """The Provider port over folders and processes below ``root/machines``."""

    name = "local"

    def __init__(self, config: Config, root: Path, clock: Clock) -> None:
        self._config = config
        self._machines = root / "machines"
        self._clock = clock
        self.notice_s = config.provider.notice
        """Seconds between a spot notice and the kill."""
        self._launches: dict[str, LaunchRecord] = {}
        self._ended: dict[str, Instance] = {}

    @classmethod
    def open(cls, config: Config, *, root: Path, clock: Clock) -> LocalProvider:
        """The provider of an environment whose state lies in ``root``."""
        return cls(config, root, clock)

    def offers(self) -> list[Offer]:
        running = [i.offer.id for i in self.instances() if i.phase != "gone"]
        return [
            Offer(
                id=offer.id,
                provider=self.name,
                region="local",
                zone=offer.zone,
                instance_type=f"{offer.gpus}x{offer.gpu}",
                gpu=offer.gpu,
                gpus=offer.gpus,
                price=offer.price.micro,
                currency=offer.price.currency,
                market=offer.market,
                available=offer.capacity is None or running.count(offer.id) < offer.capacity,
            )
            for offer in self._config.provider.offers
        ]

    def instances(self) -> list[Instance]:
        found = [self._instance(folder) for folder in self._folders()]
        return [i for i in found if i is not None]

    def notices(self) -> list[Notice]:
        return [
            Notice(instance_id=i.id, deadline=i.notice_deadline)
            for i in self.instances()
            if i.notice_deadline is not None and i.phase != "gone"
        ]

    def launch(self, launch: Launch, spec: MachineSpec) -> Instance:
        folder = Folder(self._machines / f"m-{launch.key[:12]}")
        if not folder.path.exists():
            self._check_capacity(launch.offer)
            self._claim(folder, launch, spec)
        if not folder.read("wrapper") and not folder.read("exit"):
            # Claimed by us or by somebody who died since: one wrapper takes the lock.
            self._spawn(folder)
        made = self._instance(folder, all_ends=True)
        if made is None:  # pragma: no cover - all_ends lists every machine
            raise VerlopsError(f"machine {folder.id} vanished while it was launched")
        return made

    def terminate(self, instance_id: str) -> None:
        folder = self._known(instance_id)
        if folder is None or folder.read("exit"):
            return
        if not folder.read("terminate"):
            folder.write("terminate", {"at": self._clock.now()})
        self._look_after(folder)

    def notice(self, instance_id: str, grace_s: float, reason: str = "reclaim") -> None:
        """Announce that a machine is taken away in ``grace_s`` seconds."""
        folder = self._known(instance_id)
        if folder and not folder.read("notice") and not folder.read("exit"):
            deadline = self._clock.now() + grace_s
            folder.write("notice", {"deadline": deadline, "reason": reason})

    def kill(self, instance_id: str) -> None:
        """``kill -9`` of everything that runs on a machine, without a word."""
        kill_all(lambda: tagged(instance_id))

    def _folders(self) -> list[Folder]:
        if not self._machines.is_dir():
            return []
        return [Folder(p) for p in sorted(self._machines.iterdir()) if p.name.startswith("m-")]

    def _known(self, instance_id: str) -> Folder | None:
        path = self._machines / instance_id
        return Folder(path) if path.is_dir() else None

    def _check_capacity(self, wanted: Offer) -> None:
        current = next((o for o in self.offers() if o.id == wanted.id), None)
        if current is None or not current.available:
            raise CapacityError(f"no capacity for {wanted.id}")

    def _claim(self, folder: Folder, launch: Launch, spec: MachineSpec) -> None:
        """Make the folder whole under another name; its renaming is the claim."""
        self._machines.mkdir(parents=True, exist_ok=True)
        draft = self._machines / f".{folder.id}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        record = self._record(folder, launch, spec)
        (draft / "launch.json").write_bytes(msgspec.json.encode(record))
        (draft / "spec.json").write_bytes(encode_spec(spec))
        try:
            draft.rename(folder.path)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not folder.path.exists():
                raise

    def _record(self, folder: Folder, launch: Launch, spec: MachineSpec) -> LaunchRecord:
        options = self._config.provider.options
        guard = [sys.executable, "-m", "verlops_workers.main", "guard"]
        facts = (launch.slot, str(launch.generation), str(spec.fence), launch.key, spec.run)
        return LaunchRecord(
            key=launch.key,
            role=launch.role,
            offer=launch.offer,
            tags=dict(zip(TAGS, facts, strict=True)),
            launched_at=self._clock.now(),
            boot_delay=self._config.provider.boot_delay,
            command=list(options.get("command", guard)),
            env={"VERLOPS_MACHINE_DIR": str(folder.path), "PYTHONPATH": _import_path()},
        )

    def _spawn(self, folder: Folder) -> None:
        with folder.log() as log:
            wrapper = subprocess.Popen(
                [sys.executable, "-m", "verlops.providers.machine", str(folder.path)],
                env={**os.environ, "PYTHONPATH": _import_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Nobody waits for a machine, but somebody must take in the dead of our own.
        threading.Thread(target=wrapper.wait, daemon=True).start()

    def _instance(self, folder: Folder, *, all_ends: bool = False) -> Instance | None:
        if folder.id in self._ended:
            return self._listed(folder, self._ended[folder.id], all_ends)
        record = self._launches.get(folder.id) or folder.launch()
        self._launches[folder.id] = record
        self._look_after(folder)
        ready, notice, ended = folder.read("ready"), folder.read("notice"), folder.exit()
        phase: Phase = "booting" if folder.read("wrapper") else "pending"
        phase = "doomed" if notice else "ready" if ready else phase
        found = Instance(
            id=folder.id,
            key=record.key,
            offer=record.offer,
            role=record.role,
            phase="gone" if ended else phase,
            launched_at=record.launched_at,
            ready_at=ready["at"] if ready else None,
            notice_deadline=notice["deadline"] if notice else None,
            ended=ended,
            tags=record.tags,
        )
        if ended:
            self._ended[folder.id] = found
        return self._listed(folder, found, all_ends)

    def _listed(self, folder: Folder, found: Instance, all_ends: bool) -> Instance | None:
        old = found.ended is not None and self._clock.now() - found.ended.at > LISTED
        if old and (folder.path / "log.txt").exists():
            # What stays keeps the key taken: a launch repeated late makes no twin.
            (folder.path / "log.txt").unlink()
        return found if all_ends or not old else None

    def _look_after(self, folder: Folder) -> None:
        """End what no wrapper ends: never spawned, killed itself, or deaf."""
        if folder.read("exit"):
            return
        wrapper, now = folder.read("wrapper"), self._clock.now()
        ordered = folder.read("terminate")
        if wrapper is None:
            limit = self._config.provider.boot_timeout
            if now - folder.launch().launched_at > limit:
                self._sweep(folder, "boot_failed", f"no wrapper within {limit:g} s")
            elif ordered and now - ordered["at"] > OBEY:
                self._sweep(folder, "terminated", "before its wrapper came up")
        elif not alive(wrapper):
            reason = "terminated" if ordered else "vanished"
            self._sweep(folder, reason, "its wrapper was killed")
        elif ordered and now - ordered["at"] > OBEY:
            kill_all(lambda: [p for p in _wrapper_process(wrapper) if alive(wrapper)])
            self._sweep(folder, "terminated", "its wrapper did not obey")

    def _sweep(self, folder: Folder, reason: str, detail: str) -> None:
        if kill_all(lambda: tagged(folder.id)):
            folder.write_exit(reason=reason, detail=detail, at=self._clock.now())
            for name in BULK:
                shutil.rmtree(folder.path / name, ignore_errors=True)


def _wrapper_process(wrapper: dict[str, float]) -> list[psutil.Process]:
    try:
        return [psutil.Process(int(wrapper["pid"]))]
    except psutil.NoSuchProcess:
        return []


def _import_path() -> str:
    """Our import path for the machine: a user's own module must be found there too."""
    here = [str(Path(p).resolve()) if p else str(Path.cwd()) for p in sys.path]
    return os.pathsep.join(dict.fromkeys(here))
