"""From a mapping to a Config, or to one line a fault with its path and a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from verlops.config.schema import Config
from verlops.errors import ConfigError


def parse(data: Any, *, source: str = "config") -> Config:
    """The config in a mapping. Raises ConfigError with all faults, sorted by path."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: not a mapping of keys to values")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        faults = [_line(source, fault) for fault in error.errors(include_url=False)]
        raise ConfigError(sorted(set(faults))) from None


def _line(source: str, fault: Any) -> str:
    location: Sequence[int | str] = fault["loc"]
    path = ".".join(str(part) for part in location) or "(top)"
    return f"{source}: {path}: {_message(location, fault)}"


def _message(location: Sequence[int | str], fault: Any) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"unknown key{_guess(location)}"
    if kind == "missing":
        return "required, but missing"
    if kind == "value_error":
        return str(fault["ctx"]["error"])
    return f"{str(fault['msg'])[:1].lower()}{str(fault['msg'])[1:]}, got {fault['input']!r}"


def _guess(location: Sequence[int | str]) -> str:
    known = _keys_beside(location)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f" (known: {', '.join(sorted(known))})" if known else ""


def _keys_beside(location: Sequence[int | str]) -> list[str]:
    model: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = _model_in(field.annotation) if field else None
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
