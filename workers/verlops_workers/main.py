"""``verlops-worker ROLE``: what runs on a rented machine.

Dispatches to a role by lazy import; a VerlopsError becomes one line and its exit code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from verlops.errors import VerlopsError
from verlops.registry import load_attr
from verlops_workers.host import MACHINE_DIR, Host

ROLES = {
    "rollout": "verlops_workers.rollout.worker:main",
    "trainer": "verlops_workers.trainer.main:main",
    "reward": "verlops_workers.reward.server:main",
    "guard": "verlops_workers.guard.guard:main",
}
TOOLS = {"warmup": "verlops_workers.warmup:main"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a role on this machine, or a tool; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="verlops-worker",
        description="What runs on a rented machine.",
        epilog=f"A role finds its machine's folder in {MACHINE_DIR}.",
    )
    parser.add_argument("role", choices=[*ROLES, *TOOLS])
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of a tool: its own")
    given = parser.parse_args(argv)
    try:
        if given.role in TOOLS:
            return int(load_attr(TOOLS[given.role])(given.arguments))
        if given.arguments:
            parser.error(f"the role {given.role} takes no arguments")
        return _role(given.role)
    except VerlopsError as error:
        print(f"verlops-worker: {error}", file=sys.stderr)
        return error.exit_code


def _role(name: str) -> int:
    try:
        host = Host.from_env()
    except KeyError:
        raise VerlopsError(
            f"{MACHINE_DIR} is not set", hint="a role is started by its machine, not by hand"
        ) from None
    except FileNotFoundError as error:
        raise VerlopsError(f"this machine has no spec: {error}") from error
    return int(load_attr(ROLES[name])(host))


def run() -> None:
    """The console entry."""
    sys.exit(main())


if __name__ == "__main__":
    run()
