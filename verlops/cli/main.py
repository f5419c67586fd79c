"""The command line ``verlops``: names, options and help of every command.

Nothing else happens here: a body imports its module and calls ``command``, so that
``verlops --help`` imports neither pydantic nor SQLAlchemy nor rich. A command's module
has ``command(**options) -> int``, which returns the exit code and raises VerlopsError.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from verlops import __version__
from verlops.cli.errors import EXIT_CODES, Commands

SET_UP, RUN, LOOK = "Set up", "Run", "Look"

app = typer.Typer(
    cls=Commands,
    help="Post-training of language models on rented GPUs at the lowest honest cost.",
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(
    config_app,
    name="config",
    help="Check and show a config. Example: verlops config validate -c my.yaml",
    rich_help_panel=SET_UP,
)


class Role(StrEnum):
    """What a machine is for."""

    control = "control"
    rollout = "rollout"
    trainer = "trainer"
    reward = "reward"


class By(StrEnum):
    """What the rows of a cost report are."""

    role = "role"
    instance = "instance"
    day = "day"
    update = "update"
    pool = "pool"


class Format(StrEnum):
    """What a report is printed as."""

    table = "table"
    json = "json"
    csv = "csv"


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="VERLOPS_CONFIG",
        help="Config file. Without one: the embedded default, all on this machine.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print strict JSON.")]
Moment = typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="UTC.")


def run() -> None:
    """The entry point of the program."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # replaced by something that is no text stream
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    # A user's own policy or reward lies beside the config more often than in a package.
    sys.path.append("")
    app(prog_name="verlops")


@app.command(rich_help_panel=SET_UP)
def init(
    template: Annotated[str, typer.Option(help="Which template.")] = "local",
    path: Annotated[Path, typer.Option(help="File to write.")] = Path("verlops.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented config.

    Example: verlops init --path my.yaml
    """
    _call("init", template=template, path=path, force=force)


@config_app.command("validate")
def config_validate(config: Config = None) -> None:
    """Check a config strictly; tell every fault, a line each.

    Example: verlops config validate -c my.yaml
    """
    _call("config_cmd", "validate", config=config)


@config_app.command("show")
def config_show(config: Config = None, json: Json = False) -> None:
    """Print the config with every default and every path resolved.

    Example: verlops config show -c my.yaml
    """
    _call("config_cmd", "show", config=config, json=json)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a config, for editors.

    Example: verlops config schema > schema.json
    """
    _call("config_cmd", "print_schema")


@app.command(rich_help_panel=SET_UP)
def doctor(
    role: Annotated[Role, typer.Option(help="What this machine is to do.")] = Role.control,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check this machine and this environment.

    Each line is ok, warn or fail, with what to do about it. Exit 1 when one has failed.

    Example: verlops doctor --role trainer
    """
    _call("doctor", role=role.value, config=config, json=json)


@app.command(rich_help_panel=SET_UP)
def version() -> None:
    """Print the version.

    Example: verlops version
    """
    print(f"verlops {__version__}")


@app.command(rich_help_panel=RUN)
def up(
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before renting.")] = False,
    updates: Annotated[
        int | None, typer.Option(min=1, help="Go down after so many updates; else run on.")
    ] = None,
    chaos: Annotated[
        str | None, typer.Option(help="Inject faults, like notice@20s,kill@40s.")
    ] = None,
    new_run: Annotated[bool, typer.Option("--new-run", help="Begin a new run.")] = False,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new reward token.")] = False,
) -> None:
    """Make what is missing, then run.

    Ctrl-C once drains and goes down, twice stops at once and says what still runs.

    Example: verlops up --updates 6
    """
    _call(
        "up",
        config=config,
        yes=yes,
        updates=updates,
        chaos=chaos,
        new_run=new_run,
        rotate=rotate,
    )


@app.command(rich_help_panel=RUN)
def tick(config: Config = None, json: Json = False) -> None:
    """Take one step, for cron; exit 8 when another controller acts.

    Example: verlops tick -c my.yaml
    """
    _call("tick", config=config, json=json)


@app.command(rich_help_panel=RUN)
def feed(
    file: Annotated[Path | None, typer.Argument(help="JSONL file of prompts.")] = None,
    config: Config = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="So many prompts of the task's generator.")
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="Sample known prompts once more.")] = 0,
) -> None:
    """Put prompts on the queue.

    From a JSONL file, or from the task's generator with --count.

    Example: verlops feed --count 1000
    """
    _call("feed", config=config, file=file, count=count, epoch=epoch)


@app.command(rich_help_panel=RUN)
def down(config: Config = None) -> None:
    """Drain, stop, and verify that nothing is left.

    Example: verlops down -c my.yaml
    """
    _call("down", config=config)


@app.command(rich_help_panel=LOOK)
def status(
    config: Config = None,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again.")] = False,
) -> None:
    """Show queues, machines, trainer, money and the last decisions.

    Example: verlops status --watch
    """
    _call("status", config=config, json=json, watch=watch)


@app.command("cost-report", rich_help_panel=LOOK)
def cost_report(
    config: Config = None,
    by: Annotated[By, typer.Option(help="What the rows are.")] = By.role,
    since: Annotated[datetime | None, Moment] = None,
    until: Annotated[datetime | None, Moment] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.table,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Tell what it cost, and what it would have cost.

    Example: verlops cost-report --by day --since 2026-01-31
    """
    _call(
        "cost_report",
        config=config,
        by=by.value,
        since=_seconds(since),
        until=_seconds(until),
        format="json" if json else format.value,
    )


# Further commands go here, each in the section it belongs to: events, logs (LOOK);
# plan, simulate (RUN); gc, iam-policy, manifests, schedule (SET_UP).


def _call(module: str, function: str = "command", **options: Any) -> None:
    """Import a command's module, run it, and leave with its exit code."""
    command = getattr(importlib.import_module(f"verlops.cli.{module}"), function)
    raise typer.Exit(command(**options))


def _seconds(moment: datetime | None) -> float | None:
    """Seconds since the epoch of a time given in UTC."""
    return None if moment is None else moment.replace(tzinfo=UTC).timestamp()
