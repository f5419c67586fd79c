"""Waiting that listens: for a moment or for the order to stop, whichever comes first."""

from __future__ import annotations

import time
from collections.abc import Callable

NAP = 0.02
"""Seconds: the longest wait before ``stop`` is looked at again."""


def wait_until(moment: float, stop: Callable[[], bool]) -> bool:
    """Wait until a monotonic time; False when told to stop before it."""
    while (left := moment - time.monotonic()) > 0:
        if stop():
            return False
        time.sleep(min(NAP, left))
    return True
