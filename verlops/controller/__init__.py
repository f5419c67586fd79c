"""One step of the controller: observe, decide, save, act, learn, record.

Speaks to ports only; never sleeps; the simulator and the real thing run it unchanged.
"""

from verlops.controller.controller import Controller
from verlops.controller.settings import Ports, Settings

__all__ = ["Controller", "Ports", "Settings"]
