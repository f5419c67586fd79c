"""From an intent to its effect and its outcome. The one place that changes the world."""

from __future__ import annotations

import contextlib

from verlops.controller.settings import Ports, Settings
from verlops.errors import (
    BudgetError,
    CapacityError,
    ConflictError,
    CredentialsError,
    QuotaError,
    VerlopsError,
)
from verlops.machine import MachineSpec
from verlops.messages import Control, encode
from verlops.model import Drain, Instance, Intent, Launch, Outcome, Tell, Terminate
from verlops.versions import fence_key

RETRIES = 10_000
"""Launches on one version, at most, before fences of two versions would meet."""
REFUSALS = (CapacityError, QuotaError, CredentialsError, BudgetError)


class Actor:
    """Acts on the provider and the control topic."""

    def __init__(self, ports: Ports, settings: Settings, run: str) -> None:
        self._ports = ports
        self._settings = settings
        self._run = run

    def act(self, intent: Intent, fence: int) -> Outcome:
        """Carry out one intent. Never raises for what the world answers."""
        try:
            instance_id = self._do(intent, fence)
        except REFUSALS as error:
            return self._outcome(intent, "refused", error)
        except VerlopsError as error:
            # Throttled, no answer, or anything else that leaves the effect open.
            return self._outcome(intent, "unknown", error)
        return Outcome(intent_id=intent.id, status="ok", instance_id=instance_id)

    def tell(self, control: Control) -> None:
        """Put a control record on the topic."""
        self._ports.queue.publish(
            self._settings.topics.control, [(control.target, encode(control))]
        )

    def _do(self, intent: Intent, fence: int) -> str | None:
        action = intent.action
        if isinstance(action, Launch):
            return self._launch(action, fence)
        if isinstance(action, Terminate):
            self._ports.provider.terminate(action.instance_id)
            return action.instance_id
        if isinstance(action, Drain):
            self.tell(self._control(action.instance_id, "drain", action.reason, fence))
            return action.instance_id
        self._tell(action, fence)
        return None

    def _launch(self, launch: Launch, fence: int) -> str:
        spec = self._spec(launch, fence)
        if launch.role == "trainer":
            # Known before the machine is: an older trainer must not commit after this.
            with contextlib.suppress(ConflictError):
                self._ports.store.put_if_absent(fence_key(self._run, spec.trainer_fence), b"")
        return self._ports.provider.launch(launch, spec).id

    def _tell(self, action: Tell, fence: int) -> None:
        command = action.command
        assert command in ("serve", "pause", "drain", "stop")
        self.tell(
            Control(
                target=action.target,
                command=command,  # type: ignore[arg-type]
                fence=fence,
                at=self._ports.clock.now(),
                quota=action.quota,
                reason=action.reason,
            )
        )

    def _control(self, instance_id: str, command: str, reason: str, fence: int) -> Control:
        return Control(
            target=f"rollout-{instance_id}",
            command=command,  # type: ignore[arg-type]
            fence=fence,
            at=self._ports.clock.now(),
            reason=reason,
        )

    def _spec(self, launch: Launch, fence: int) -> MachineSpec:
        trainer = launch.role == "trainer"
        parent = int(launch.slot.removeprefix("trainer-")) if trainer else None
        return MachineSpec(
            name=self._settings.name,
            run=self._run,
            role=launch.role,
            key=launch.key,
            slot=launch.slot,
            generation=launch.generation,
            fence=fence,
            config=self._settings.machine_config,
            parent=parent,
            trainer_fence=0 if parent is None else trainer_fence(parent, launch.generation),
            gpus=launch.offer.gpus,
            gpu=launch.offer.gpu,
            price=launch.offer.price,
            currency=launch.offer.currency,
        )

    def _outcome(self, intent: Intent, status: str, error: VerlopsError) -> Outcome:
        return Outcome(
            intent_id=intent.id,
            status=status,  # type: ignore[arg-type]
            error=type(error).__name__,
            detail=str(error),
        )


def trainer_fence(parent: int, generation: int) -> int:
    """The fence of a trainer: grows with the version, and with each retry on one version.

    Made from the launch's own key parts, so that a repeated launch has the same fence.
    """
    return parent * RETRIES + generation + 1


def adopted(intent: Intent, instances: tuple[Instance, ...]) -> Outcome | None:
    """The outcome of an open launch whose machine is listed already, by its key."""
    if not isinstance(intent.action, Launch):
        return None
    found = next((i for i in instances if i.key == intent.action.key), None)
    return Outcome(intent_id=intent.id, status="ok", instance_id=found.id) if found else None
