"""What a rented machine is told at its launch.

Written by the controller's side into user data (locally: ``spec.json``), read by
``verlops-worker``. Holds no secrets: those lie where the machine's identity may read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from verlops.errors import CorruptError
from verlops.model import Role


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity, purpose and the resolved configuration of one machine.

    ``config`` is ``Config.model_dump(mode="json")`` of the controller's config with all
    paths absolute, so that a machine never looks for a file of its own.
    """

    name: str
    run: str
    role: Role
    key: str
    slot: str
    generation: int
    fence: int
    """Of the controller that launched it: control records below it are ignored."""
    config: dict[str, Any]
    parent: int | None = None
    """For a trainer: the version that it trains from."""
    trainer_fence: int = 0
    """For a trainer: its own fence; one launched later for the run has a higher one."""
    gpus: int = 1
    gpu: str = ""
    price: int = 0
    currency: str = ""


def encode_spec(spec: MachineSpec) -> bytes:
    """The bytes of a spec (JSON)."""
    return msgspec.json.encode(spec)


def decode_spec(data: bytes) -> MachineSpec:
    """The spec in ``data``. Raises CorruptError."""
    try:
        return msgspec.json.decode(data, type=MachineSpec)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"not a machine spec: {error}") from error
