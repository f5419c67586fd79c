"""The configuration: strict, with units, every fault reported at once.

``parse`` is what everybody calls; reading files and the environment is not done here.
"""

from verlops.config.faults import parse
from verlops.config.schema import Config

__all__ = ["Config", "parse"]
