"""``verlops feed``: prompts from a file or from the task's generator."""

from __future__ import annotations

from pathlib import Path

from verlops.assemble.feed import Feeder
from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.errors import ConfigError


def command(*, config: Path | None, file: Path | None, count: int | None, epoch: int) -> int:
    """Publish prompts; say how many."""
    if (file is None) == (count is None):
        raise ConfigError("give a JSONL file or --count N, not both")
    session = Session(load_config(config))
    try:
        feeder = Feeder(
            session.config, session.ports.queue, session.ports.state, session.need_run()
        )
        if file is not None:
            fed, known = feeder.feed_file(file, epoch=epoch)
            print(f"fed {fed} prompts" + (f"; {known} were known already" if known else ""))
        else:
            print(f"fed {feeder.generate(count or 0)} prompts")
        return 0
    finally:
        session.close()
