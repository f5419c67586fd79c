"""Prompt generators: one file a task; each yields prompts with a reference answer.

A generator is a function ``generate(*, seed, start, count, options)`` that is named in
``registry.TASKS`` (or as ``module:attr`` in ``task.generator``) and yields the prompts
``start`` to ``start + count - 1``. Prompt i depends on seed, i and options alone, so that
feeding goes on where it stopped. Called by the feeder and by the warm-up of the starting
model; never reads a clock, a file or the environment.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskPrompt(NamedTuple):
    """One prompt of a generator."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    text: str
    reference: str
    """What the scorer compares with; for a verifier of its own, whatever that needs."""
    answer: str = ""
    """The text of a right response, for a supervised phase; empty when none is known."""
