"""Values with units: ``10m``, ``48GiB``, ``¥15/h``. A number without its unit is refused.

Used by the config schema as annotated types; each value is kept in its base unit
(seconds, bytes, micro-units an hour) and written back in the same form it is read in.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIGNS = {"¥": "CNY", "￥": "CNY", "$": "USD", "€": "EUR"}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"^(?:{_DURATION_PART.pattern})+$")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]i?B|kB|B)$")
_MONEY = re.compile(
    r"^(?:(?P<sign>[¥￥$€])\s*)?(?P<amount>\d+(?:\.\d+)?)(?:\s*(?P<code>[A-Z]{3}))?"
    r"(?:\s*/\s*(?P<per>h|d))?$"
)


class Money(NamedTuple):
    """An amount in micro-units of a currency."""

    micro: int
    currency: str


def parse_duration(value: Any) -> float:
    """Seconds of ``1h30m``, ``10s``, ``200ms``. Raises ValueError."""
    text = str(value).strip()
    if not isinstance(value, str) or not _DURATION.match(text):
        raise ValueError(f"{value!r} is not a duration; give a unit, like 30s, 10m or 1h30m")
    return float(sum(float(n) * _SECONDS[unit] for n, unit in _DURATION_PART.findall(text)))


def format_duration(seconds: float) -> str:
    """The shortest single-unit form of a duration: 90 → "90s", 600 → "10m"."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{round(seconds * 1000)}ms" if seconds else "0s"


def parse_size(value: Any) -> int:
    """Bytes of ``48GiB``. Raises ValueError."""
    match = _SIZE.match(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{value!r} is not a size; give a unit, like 512MiB or 48GiB")
    return int(Decimal(match.group(1)) * _BYTES[match.group(2)])


def format_size(size: int) -> str:
    """The shortest exact form of a size: 2**30 → "1GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def parse_money(value: Any, *, per: str | None) -> Money:
    """The amount in ``¥15/h`` or ``3.2 USD``; ``per`` is the unit that must follow the slash.

    Raises ValueError.
    """
    example = f"¥15/{per} or 3.2 USD/{per}" if per else "¥100 or 20 USD"
    match = _MONEY.match(value.strip()) if isinstance(value, str) else None
    if not match or not (match["sign"] or match["code"]):
        raise ValueError(f"{value!r} is not an amount of money; write it like {example}")
    code = _SIGNS.get(match["sign"] or "", match["code"] or "")
    if match["sign"] and match["code"] and match["code"] != code:
        raise ValueError(f"{value!r} names two currencies")
    if match["per"] != per:
        raise ValueError(f"{value!r} needs its unit; write it like {example}")
    try:
        micro = Decimal(match["amount"]) * 1_000_000
    except InvalidOperation as error:  # pragma: no cover - the pattern admits no such text
        raise ValueError(f"{value!r} is not a number") from error
    return Money(int(micro.to_integral_value()), code)


def format_money(money: Money, per: str | None) -> str:
    """``10 CNY/h``: the form that parse_money reads back exactly."""
    amount = (Decimal(money.micro) / 1_000_000).normalize()
    return f"{amount:f} {money.currency}" + (f"/{per}" if per else "")


def _duration(value: Any) -> float:
    return parse_duration(value)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": _DURATION.pattern, "examples": ["30s", "10m"]}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": _SIZE.pattern, "examples": ["48GiB"]}),
]


def _money(per: str | None) -> Any:
    return Annotated[
        Money,
        BeforeValidator(
            lambda value: value if isinstance(value, Money) else parse_money(value, per=per)
        ),
        PlainSerializer(lambda money: format_money(money, per), return_type=str, when_used="json"),
        WithJsonSchema({"type": "string", "examples": [f"¥15/{per}" if per else "¥100"]}),
    ]


PricePerHour = _money("h")
AmountPerHour = _money("h")
AmountPerDay = _money("d")
Amount = _money(None)
