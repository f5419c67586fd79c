"""A provider in memory: machines in virtual time, a bill of its own, faults on order.

Used by the simulator and by tests. Machines have no programs; whoever drives the world
gives them beats and takes their capacity away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from verlops.errors import CapacityError, UnknownOutcomeError, VerlopsError
from verlops.machine import MachineSpec
from verlops.model import Exit, Instance, Launch, Notice, Offer
from verlops.ports import Clock


class LostAnswerError(UnknownOutcomeError):
    """Injected: the launch happened, its answer was lost."""


class FakeProvider:
    """A cloud with ``offers``, a boot time, capacities and a list of faults to come.

    ``faults`` holds errors that the next calls of ``launch`` raise, one each; a
    ``LostAnswerError`` is raised after the machine was made, any other before.
    """

    name = "fake"

    def __init__(
        self,
        clock: Clock,
        offers: Sequence[Offer],
        *,
        boot_s: float = 60.0,
        notice_s: float = 120.0,
    ) -> None:
        self._clock = clock
        self._offers = {offer.id: offer for offer in offers}
        self._boot_s = boot_s
        self._notice_s = notice_s
        self._machines: dict[str, Instance] = {}
        self._by_key: dict[str, str] = {}
        self.capacity: dict[str, int] = {}
        """Offer id → machines at one time; missing: no bound."""
        self.faults: deque[VerlopsError] = deque()
        self.listing_fault: VerlopsError | None = None
        self.specs: dict[str, MachineSpec] = {}
        self.launches = 0

    def offers(self) -> list[Offer]:
        return [o.but(available=self._room(o.id)) for o in self._offers.values()]

    def instances(self) -> list[Instance]:
        if self.listing_fault:
            raise self.listing_fault
        self._advance()
        return list(self._machines.values())

    def notices(self) -> list[Notice]:
        self._advance()
        return [
            Notice(instance_id=m.id, deadline=m.notice_deadline)
            for m in self._machines.values()
            if m.notice_deadline is not None and m.phase != "gone"
        ]

    def launch(self, launch: Launch, spec: MachineSpec) -> Instance:
        if launch.key in self._by_key:
            return self._machines[self._by_key[launch.key]]
        fault = self.faults.popleft() if self.faults else None
        if fault and not isinstance(fault, LostAnswerError):
            raise fault
        if not self._room(launch.offer.id):
            raise CapacityError(f"no capacity in {launch.offer.id}")
        made = self._make(launch, spec)
        if fault:
            raise fault
        return made

    def terminate(self, instance_id: str) -> None:
        self._end(instance_id, "terminated")

    def notice(self, instance_id: str, grace_s: float | None = None, reason: str = "") -> None:
        """Announce that a machine will be taken away."""
        machine = self._machines[instance_id]
        deadline = self._clock.now() + (self._notice_s if grace_s is None else grace_s)
        self._machines[instance_id] = machine.but(phase="doomed", notice_deadline=deadline)
        del reason

    def kill(self, instance_id: str) -> None:
        """Take a machine away without a word."""
        self._end(instance_id, "killed")

    def finish(self, instance_id: str, reason: str = "done", code: int = 0) -> None:
        """A machine ends itself."""
        self._end(instance_id, reason, code)

    def billed(self, now: float) -> dict[str, float]:
        """Instance id → micro-units by this cloud's own reckoning: price × time alive."""
        return {
            m.id: m.offer.price * ((m.ended.at if m.ended else now) - m.launched_at) / 3600
            for m in self._machines.values()
        }

    def _room(self, offer_id: str) -> bool:
        alive = sum(m.offer.id == offer_id and m.phase != "gone" for m in self._machines.values())
        return alive < self.capacity.get(offer_id, alive + 1)

    def _make(self, launch: Launch, spec: MachineSpec) -> Instance:
        self.launches += 1
        machine = Instance(
            id=f"i-{self.launches:04d}",
            key=launch.key,
            offer=launch.offer,
            role=launch.role,
            phase="booting",
            launched_at=self._clock.now(),
            tags={"verlops:key": launch.key, "verlops:fence": str(spec.fence)},
        )
        self._machines[machine.id] = machine
        self._by_key[launch.key] = machine.id
        self.specs[machine.id] = spec
        return machine

    def _advance(self) -> None:
        now = self._clock.now()
        for machine in list(self._machines.values()):
            if machine.notice_deadline is not None and now >= machine.notice_deadline:
                self._end(machine.id, "reclaimed", at=machine.notice_deadline)
            elif machine.phase == "booting" and now >= machine.launched_at + self._boot_s:
                ready = machine.launched_at + self._boot_s
                self._machines[machine.id] = machine.but(phase="ready", ready_at=ready)

    def _end(
        self, instance_id: str, reason: str, code: int | None = None, at: float | None = None
    ) -> None:
        machine = self._machines.get(instance_id)
        if machine is None or machine.phase == "gone":
            return
        ended = Exit(at=self._clock.now() if at is None else at, reason=reason, code=code)
        self._machines[instance_id] = machine.but(phase="gone", ended=ended)
