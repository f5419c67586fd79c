"""``verlops-worker warmup``: makes the small model that a run without one starts from.

Called by ``verlops up`` in a process of its own. A character-level tokenizer, a Llama from
the config's sizes, a short supervised phase on the task's own generator. The result lies
in a folder named after a hash of everything that went in, so a second call only finds it.
The last line of stdout is ``{"model": folder, "weights": sha256 of model.safetensors}``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from verlops import registry
from verlops.config import Config, parse
from verlops.config.schema import WarmupConfig
from verlops.errors import ConfigError, MissingExtraError, VerlopsError
from verlops.lineage import sha256_file

if TYPE_CHECKING:
    from verlops_workers.supervised import Pair

RECIPE = 1
"""Grows when the code here makes other weights from the same inputs."""

TRAIN_FROM = 1 << 40
MEASURE_FROM = 1 << 41
"""Prompt indices of the two phases: no run feeds so many, so what is measured and what is
later sampled was not trained on (unless the task has few different prompts)."""

SAMPLE = 1024
"""Prompts that are looked at for the alphabet."""
MEASURED = 512
WEIGHTS = "model.safetensors"


def main(argv: Sequence[str] | None = None) -> int:
    """Make or find the model of a config; returns 0. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="verlops-worker warmup", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON of the resolved config")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models made")
    args = parser.parse_args(argv)
    folder = make_model(_read(args.config), args.out.absolute(), _say)
    _say(json.dumps({"model": str(folder), "weights": sha256_file(folder / WEIGHTS)}))
    return 0


def make_model(config: Config, out: Path, say: Callable[[str], None]) -> Path:
    """The folder of the starting model of ``config`` below ``out``, made if need be."""
    shape = _shape(config)
    pairs = _pairs(config, 0, SAMPLE)
    target = out / _name(config, shape, pairs)
    if (target / WEIGHTS).is_file():
        say(f"warm-up: {target.name} was made before, nothing to do")
        return target
    out.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".warmup-", dir=out))
    try:
        _make(config, shape, pairs, temporary, say)
        _publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def folder_name(config: Config) -> str:
    """The name of the folder of the starting model of ``config``; raises as make_model."""
    return _name(config, _shape(config), _pairs(config, 0, SAMPLE))


def _make(
    config: Config,
    shape: WarmupConfig,
    sample: Sequence[Pair],
    folder: Path,
    say: Callable[[str], None],
) -> None:
    # One thread: the model is too small to share, and a fixed order of sums is repeatable.
    registry.load_attr("torch:set_num_threads")(1)
    registry.load_attr("transformers.utils.logging:disable_progress_bar")()
    from verlops_workers import chars, supervised

    seed = config.task.seed
    tokenizer = chars.build_tokenizer(chars.alphabet(text for pair in sample for text in pair))
    model = supervised.build_model(shape, tokenizer, _positions(config), seed)
    data = _pairs(config, TRAIN_FROM, shape.steps * shape.batch)
    batches = [data[i : i + shape.batch] for i in range(0, len(data), shape.batch)]
    supervised.fit(model, tokenizer, batches, shape.learning_rate, say)
    accuracy = supervised.measure(model, tokenizer, _pairs(config, MEASURE_FROM, MEASURED), seed)
    say(
        f"warm-up: {accuracy.greedy:.1%} right greedily, {accuracy.sampled:.1%} sampled, "
        f"of {accuracy.prompts} prompts; {model.num_parameters():,} parameters"
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _publish(temporary: Path, target: Path) -> None:
    """The folder appears whole or not at all; of two makers the first one's stays."""
    for path in temporary.iterdir():
        path.chmod(0o644)
    temporary.chmod(0o755)
    try:
        temporary.rename(target)
    except OSError as error:
        if not (target / WEIGHTS).is_file():
            raise VerlopsError(
                f"cannot put the model into {target}: {error.strerror}",
                hint="remove what lies there",
            ) from error


def _pairs(config: Config, start: int, count: int) -> list[Pair]:
    generate = registry.load("TASKS", config.task.generator or "")
    found = generate(seed=config.task.seed, start=start, count=count, options=config.task.options)
    pairs = [(prompt.text, prompt.answer) for prompt in found]
    if not all(answer for _, answer in pairs):
        raise ConfigError(
            f"model.warmup: prompts of task '{config.task.generator}' have no known answer",
            hint="name a model in model.path, or take another task",
        )
    longest = max((len(text) for text, _ in pairs), default=0)
    if longest > config.task.max_prompt_tokens:
        raise ConfigError(
            f"task.max_prompt_tokens: {config.task.max_prompt_tokens}, but the task has prompts "
            f"of {longest} characters, a token each"
        )
    return pairs


def _positions(config: Config) -> int:
    """A power of two that holds a prompt and its response."""
    needed = config.task.max_prompt_tokens + config.task.max_response_tokens
    return max(128, 1 << (needed - 1).bit_length())


def _name(config: Config, shape: WarmupConfig, sample: Sequence[Pair]) -> str:
    """A name with 16 hex digits over all that decides the weights.

    The prompts themselves stand for the generator: a user's own may change under its name.
    """
    inputs: dict[str, Any] = {
        "recipe": RECIPE,
        "shape": shape.model_dump(mode="json"),
        "seed": config.task.seed,
        "positions": _positions(config),
        "sample": sample,
        "versions": [_version(name) for name in ("torch", "transformers", "tokenizers")],
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return f"warmup-{digest[:16]}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            "the warm-up of a starting model", extra="train", distribution="verlops-workers"
        ) from error


def _shape(config: Config) -> WarmupConfig:
    if config.model.warmup is None:
        raise ConfigError("model.warmup: required to make a starting model")
    if config.model.path:
        raise ConfigError("model.warmup: model.path names a model already; remove one of the two")
    if not config.task.generator:
        raise ConfigError(
            "task.generator: required, the starting model is warmed up on its prompts"
        )
    return config.model.warmup


def _read(path: Path) -> Config:
    try:
        return parse(msgspec.json.decode(path.read_bytes()), source=str(path))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
