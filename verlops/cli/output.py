"""What every command prints with: strict JSON, notes, colour where somebody looks.

Data goes to standard output, notes to standard error. Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import msgspec

COLOURS = {"green": 32, "yellow": 33, "red": 31, "dim": 2, "bold": 1}


def to_json(data: Any) -> str:
    """Strict JSON: what is not a finite number becomes null, keys become text."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def print_json(data: Any) -> None:
    """Print ``data`` as strict JSON on standard output."""
    print(to_json(data), flush=True)


def note(text: str) -> None:
    """A line for a person, on standard error."""
    print(text, file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person sees ``stream`` (standard output) as it is written."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty()


def wants_colour(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set or TERM is dumb."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def paint(text: str, colour: str, *, stream: TextIO | None = None) -> str:
    """``text`` in a colour of COLOURS, or as it is where colour is not wanted."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if wants_colour(stream) else text
