"""The demo for several seeds, and with learning rate 0: does the reward rise, and only then?

``python bench/demo_seeds.py [--seeds 0 1 2 3 4] [--updates 8]`` runs each in a state folder of
its own and prints a table; about two minutes a run on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def run(seed: int, rate: float | None, updates: int) -> dict:
    config = yaml.safe_load((ROOT / "configs/local.yaml").read_text())
    config["task"]["seed"] = seed
    if rate is not None:
        config["trainer"]["learning_rate"] = rate
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.yaml"
        path.write_text(yaml.safe_dump(config, allow_unicode=True))
        environment = {**os.environ, "VERLOPS_STATE": str(Path(folder) / "state")}
        verlops = [str(Path(sys.executable).parent / "verlops")]
        started = time.monotonic()
        command = ["up", "--yes", "--updates", str(updates), "-c", str(path)]
        command += ["--chaos", "notice@15s,kill@30s"]
        done = subprocess.run([*verlops, *command], env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - started
        status = subprocess.run(
            [*verlops, "status", "--json", "-c", str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    data = json.loads(status.stdout)
    return {
        "seed": seed,
        "learning_rate": config["trainer"]["learning_rate"],
        "exit": done.returncode,
        "seconds": round(seconds),
        "rewards": [round(v["reward_mean"], 3) for v in data["versions"]],
        "prompts": data["prompts"]["states"],
        "preemptions": data["preemptions"],
        "left": len(data["instances"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=8)
    given = parser.parse_args()
    print(f"# {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}")
    cases = [(seed, None) for seed in given.seeds] + [(given.seeds[0], 0.0)]
    for seed, rate in cases:
        r = run(seed, rate, given.updates)
        curve = " ".join(f"{x:.3f}" for x in r["rewards"])
        gain = r["rewards"][-1] - r["rewards"][0]
        print(
            f"seed {seed} lr {r['learning_rate']:g}: {curve} | {gain:+.3f} | {r['seconds']} s | "
            f"exit {r['exit']} | preempted {r['preemptions']} | left {r['left']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
