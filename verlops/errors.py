"""Every error that verlops raises on purpose.

The tree (left of ``:`` the class, right of it the exit code of the command line):

    VerlopsError                  1
    ├── ConfigError               2   a config or an argument is wrong; holds all faults
    ├── CapacityError             4   this pool has nothing now: try the next one
    ├── QuotaError                5   a limit of the account: retrying is useless
    ├── CredentialsError          6   who we are, or what we may do
    ├── BudgetError               7   the money limit was reached
    ├── LeaseHeldError            8   another controller acts
    ├── LeaseLostError            8   another controller took over while we acted
    ├── ThrottledError            1   back off, then the same call again
    ├── NotFoundError             1   the thing named does not exist (any more)
    ├── UnknownOutcomeError       1   asked, but no answer: it may or may not have happened
    ├── ConflictError             1   put-if-absent found something there
    ├── TooLargeError             1   a record is over its topic's limit
    ├── FencedError               1   our membership, lease or fence is no longer the newest
    ├── CorruptError              1   bytes that do not say what they should
    └── MissingExtraError         2   an optional dependency is not installed; names the extra

The command line prints any of these in one line with what to do next; anything else is
a bug and shows its trace. Nobody parses the strings.
"""

from __future__ import annotations

from collections.abc import Sequence


class VerlopsError(Exception):
    """Base of all: one line for a person, an exit code for a script.

    ``hint`` says what to do next; it is printed after the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


class ConfigError(VerlopsError):
    """One or more faults in a config or in arguments; nothing was started.

    ``faults`` are complete lines, each with the path of the key and a suggestion.
    """

    exit_code = 2

    def __init__(self, faults: Sequence[str] | str, *, hint: str = "") -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults), hint=hint)


class MissingExtraError(VerlopsError):
    """An optional dependency is not installed."""

    exit_code = 2

    def __init__(self, what: str, *, extra: str, distribution: str = "verlops") -> None:
        super().__init__(
            f"{what} needs a package that is not installed",
            hint=f"pip install '{distribution}[{extra}]'",
        )
        self.extra = extra


class CapacityError(VerlopsError):
    """The pool has no machine now; try the next pool."""

    exit_code = 4


class QuotaError(VerlopsError):
    """An account limit; retrying is useless until somebody raises it."""

    exit_code = 5


class CredentialsError(VerlopsError):
    """Credentials are missing, expired, or do not allow the call."""

    exit_code = 6


class BudgetError(VerlopsError):
    """A money limit was reached, or a launch would pass it."""

    exit_code = 7


class LeaseHeldError(VerlopsError):
    """Another controller holds the lease and is alive."""

    exit_code = 8


class LeaseLostError(VerlopsError):
    """The lease was taken over; whatever we had in hand must stop."""

    exit_code = 8


class ThrottledError(VerlopsError):
    """Asked too often; back off and repeat the same call."""


class NotFoundError(VerlopsError):
    """The thing named does not exist, or not any more."""


class UnknownOutcomeError(VerlopsError):
    """The call was sent and no answer came: it may or may not have happened."""


class ConflictError(VerlopsError):
    """A put-if-absent found an object there already."""


class FencedError(VerlopsError):
    """A membership, lease or fence of ours has been overtaken."""


class TooLargeError(VerlopsError):
    """A record is over its topic's max_bytes; repeating is useless."""


class CorruptError(VerlopsError):
    """Stored or received bytes do not decode, or their checksum is wrong."""
