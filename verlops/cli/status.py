"""``verlops status``: one look, or a look every few seconds."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.assemble.status import status
from verlops.cli.output import print_json
from verlops.cli.picture import picture


def command(*, config: Path | None, json: bool, watch: bool) -> int:
    """Show the status of an environment; changes nothing."""
    session = Session(load_config(config))
    try:
        while True:
            data = status(session)
            if json:
                print_json(data)
            else:
                width = shutil.get_terminal_size().columns
                print("\n".join(picture(data, width)))
            if not watch:
                return 0
            time.sleep(session.config.control.period)
    finally:
        session.close()
