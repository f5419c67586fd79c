"""How errors leave the program: a line each on standard error, and an exit code.

The group of all commands; used by ``verlops.cli.main`` alone. Anything that is not a
VerlopsError is a bug and keeps its trace.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from verlops.cli.output import note
from verlops.errors import ConfigError, VerlopsError

INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 ok · 1 error · 2 config or usage · 3 plan has changes · 4 no capacity · "
    "5 quota · 6 credentials · 7 budget reached · 8 lease held · 130 interrupted."
)


class Commands(TyperGroup):
    """The commands, listed by section, with errors turned into lines and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except VerlopsError as error:
            report(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One section of the help for each panel, in the order of definition."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [(name, command) for name, command in found if command and not command.hidden]
        room = formatter.width - 6 - max((len(name) for name, _ in shown), default=0)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in shown:
            panel = getattr(command, "rich_help_panel", None)
            section = panel if isinstance(panel, str) else "Commands"
            sections.setdefault(section, []).append((name, command.get_short_help_str(room)))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def report(error: VerlopsError) -> None:
    """Print an error: a line each for the faults of a config, else one line."""
    prefix = "" if isinstance(error, ConfigError) else "error: "
    for line in str(error).splitlines():
        note(f"{prefix}{line}")
