"""The checks of a machine: Python, packages, torch, disk, cores and memory.

Called by ``verlops.cli.doctor``. torch is asked in a process of its own: the control side
never imports it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from verlops.cli.checks import Check
from verlops.config.units import format_size

GIB = 1 << 30
MIN_PYTHON = (3, 11)
DISK_LEAST = 1 * GIB
"""Below it the first checkpoint of even a small model may fail."""
DISK_ENOUGH = 5 * GIB
PROCESS_MEMORY = GIB // 2
"""What a process with torch and a small model takes."""
TORCH_TIMEOUT_S = 180.0
EXTRAS = {
    "control": ("train", "reward"),
    "rollout": ("train",),
    "trainer": ("train",),
    "reward": ("reward",),
}
"""Role → extras of verlops-workers that it needs."""
ASK_TORCH = (
    "import json, torch; n = torch.cuda.device_count();"
    "print(json.dumps([torch.__version__, torch.version.cuda,"
    " [torch.cuda.get_device_name(i) for i in range(n)]]))"
)
_REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*(.*))?$")
_SPECIFIER = re.compile(r"(>=|<=|==|!=|<|>)\s*([\d.]+)")


def python_check() -> Check:
    """Whether this Python is new enough."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < MIN_PYTHON:
        least = ".".join(map(str, MIN_PYTHON))
        return Check("python", "fail", version, f"install Python {least} or newer")
    return Check("python", "ok", f"{version} at {sys.executable}")


def package_checks(role: str, *, workers: bool) -> Iterator[Check]:
    """One line for each distribution: versions, or what is missing and how to get it."""
    yield _packages("verlops", ())
    if workers:
        yield _packages("verlops-workers", EXTRAS[role])


def torch_check() -> Check:
    """torch, and the GPUs that it sees."""
    try:
        version, cuda, gpus = _ask_torch()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        remedy = "reinstall it: pip install --force-reinstall torch"
        return Check("torch", "fail", f"does not import: {_last_line(error)}", remedy)
    if gpus:
        return Check("torch", "ok", f"{version}, CUDA {cuda}: {', '.join(gpus)}")
    if _has_nvidia():
        remedy = "install the CUDA build of torch, and a driver that is new enough for it"
        return Check("torch", "warn", f"{version} sees no GPU, but this machine has one", remedy)
    return Check("torch", "ok", f"{version}, no GPU: computes on the CPU")


def disk_check(folder: Path) -> Check:
    """Free space where the state lies."""
    free = shutil.disk_usage(nearest(folder)).free
    detail = f"{free / GIB:.1f} GiB free at {nearest(folder)}"
    if free >= DISK_ENOUGH:
        return Check("disk", "ok", detail)
    remedy = f"free {format_size(DISK_ENOUGH)}, or set VERLOPS_STATE to a larger disk"
    return Check("disk", "fail" if free < DISK_LEAST else "warn", detail, remedy)


def memory_check(processes: int) -> Check:
    """Cores and memory for so many processes with torch."""
    memory = psutil.virtual_memory().available
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    cores = cores or os.cpu_count() or 1
    detail = f"{cores} cores, {memory / GIB:.1f} GiB of memory available"
    if processes and memory < processes * PROCESS_MEMORY:
        need = f"{processes * PROCESS_MEMORY / GIB:.1f} GiB"
        remedy = "lower rollout.pool.max or trainer.processes, or close other programs"
        detail += f"; {processes} processes want about {need}"
        return Check("memory", "warn", detail, remedy)
    if cores < 2:
        return Check("memory", "warn", detail, "everything works, slowly: use 2 cores or more")
    return Check("memory", "ok", detail)


def nearest(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _packages(distribution: str, extras: Sequence[str]) -> Check:
    name = "packages"
    wanted = f"{distribution}[{','.join(extras)}]" if extras else distribution
    remedy = f"pip install '{wanted}'"
    try:
        own = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return Check(name, "fail", f"{distribution} is not installed", remedy)
    good, bad = [], []
    for package, specifiers in requirements(distribution, extras):
        have = _installed(package)
        if have is None:
            bad.append(f"{package} is missing")
        elif not satisfies(have, specifiers):
            bad.append(f"{package} {have} is not {specifiers}")
        else:
            good.append(f"{package} {have}")
    if bad:
        return Check(name, "fail", f"{wanted} {own}: {', '.join(bad)}", remedy)
    return Check(name, "ok", f"{wanted} {own} with {', '.join(good)}")


def requirements(distribution: str, extras: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(package, version range) of what a distribution needs with these extras."""
    for line in metadata.requires(distribution) or []:
        match = _REQUIREMENT.match(line)
        assert match is not None
        package, specifiers, marker = match.groups()
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker or "")
        if extra is None or extra[1] in extras:
            yield package, specifiers


def satisfies(version: str, specifiers: str) -> bool:
    """Whether a version's release lies in a range like ``<3,>=2.12``."""
    have = _release(version)
    for operator, bound in _SPECIFIER.findall(specifiers):
        want = _release(bound)
        width = max(len(have), len(want))
        a, b = (v + (0,) * (width - len(v)) for v in (have, want))
        results = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}
        if not results[operator]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ask_torch() -> tuple[str, str | None, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", ASK_TORCH],
        capture_output=True,
        text=True,
        check=True,
        timeout=TORCH_TIMEOUT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    version, cuda, gpus = json.loads(done.stdout.splitlines()[-1])
    return version, cuda, gpus


def _last_line(error: Any) -> str:
    text = str(getattr(error, "stderr", None) or error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


def _has_nvidia() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
