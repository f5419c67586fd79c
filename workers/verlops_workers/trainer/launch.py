"""Starting the update process: alone, or k of them under torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

MODULE = "verlops_workers.trainer.update"


def start(work: Path, processes: int) -> subprocess.Popen[bytes]:
    """The update in a process group of its own.

    One process gets torchrun's environment directly: the launcher itself would import
    torch a second time, seconds in which an expensive machine does nothing.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", MODULE, str(work)]
    if processes == 1:
        environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    else:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *torchrun, "-m", MODULE, str(work)]
    return subprocess.Popen(command, env=environment)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
