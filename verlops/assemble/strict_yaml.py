"""YAML as a config needs it: the core schema of YAML 1.2, and nothing that surprises.

Called by ``verlops.assemble.load``. Differs from a plain safe loader, because each of
these has cost somebody an evening: a key given twice is a fault (not the last one wins);
``on``, ``off``, ``yes`` and ``no`` are faults (not booleans, as in YAML 1.1); ``1e-3`` is
a number and ``12:30`` is text; aliases may not blow a small file up; tags make no objects;
``${…}`` is a fault, because nothing is substituted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from verlops.errors import ConfigError

MAX_NODES = 20_000
"""Values once aliases are expanded; a large config has some hundred."""
MAX_DIGITS = 18
UNCLEAR = ("yes", "no", "on", "off")
_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"


class Fault(NamedTuple):
    """What is wrong at a path; ``fatal``: no value can be made of the text."""

    path: str
    message: str
    fatal: bool = False


class Document(NamedTuple):
    """The value of a text, and the faults that left one."""

    data: Any
    faults: list[Fault]


def read_yaml(text: str, source: str) -> Document:
    """The one document in ``text``. Raises ConfigError, one line a fault."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{source}: empty", hint="`verlops init` writes a commented config")
        faults = list(_Walk().faults(node, ()))
        if any(fault.fatal for fault in faults):
            raise ConfigError([f"{source}: {f.path}: {f.message}" for f in faults])
        return Document(loader.construct_document(node), faults)
    except yaml.MarkedYAMLError as error:
        what = "" if isinstance(error, _TagError) else "not YAML: "
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ConfigError(f"{source}: {what}{error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source}: not a config: nested too deeply") from None


class _TagError(yaml.MarkedYAMLError):
    """YAML, but with a tag, which could make anything of a value."""


class _Loader(yaml.SafeLoader):
    """A safe loader that resolves plain scalars by the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the name is PyYAML's

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace(_TAG, "!!")
            raise _TagError(
                None, None, f"tag '{shown}' is not allowed: give the plain value", event.start_mark
            )
        return super().compose_node(parent, index)


for _kind, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^(?:[-+]?[0-9]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), list(_first))


def _int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if _too_large(node):  # the walk has told it
        return 0
    return int(node.value, 16 if node.value.startswith("0x") else 10)


_Loader.add_constructor(_TAG + "int", _int)
_Loader.add_constructor(_TAG + "float", lambda _, node: float(node.value))


class _Walk:
    """One pass over the nodes as they will be read, aliases expanded."""

    def __init__(self) -> None:
        self._visited = 0

    def faults(
        self, node: yaml.Node, path: tuple[str, ...], above: tuple[int, ...] = ()
    ) -> Iterator[Fault]:
        """Everything wrong at or below a node."""
        self._visited += 1
        if id(node) in above:
            yield _fault(path, node, "refers to itself", fatal=True)
        elif self._visited > MAX_NODES:
            yield _fault(
                path, node, f"over {MAX_NODES:,} values once aliases are expanded", fatal=True
            )
        elif isinstance(node, yaml.MappingNode):
            yield from self._mapping(node, path, (*above, id(node)))
        elif isinstance(node, yaml.SequenceNode):
            for number, child in enumerate(node.value):
                yield from self._bounded(child, (*path, str(number)), (*above, id(node)))
        elif isinstance(node, yaml.ScalarNode):
            yield from _scalar(node, path)

    def _bounded(
        self, node: yaml.Node, path: tuple[str, ...], above: tuple[int, ...]
    ) -> Iterator[Fault]:
        if self._visited <= MAX_NODES:  # beyond it one fault has been told: stop walking
            yield from self.faults(node, path, above)

    def _mapping(
        self, node: yaml.MappingNode, path: tuple[str, ...], above: tuple[int, ...]
    ) -> Iterator[Fault]:
        first: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                yield from self._bounded(value, path, above)
                continue
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            here = (*path, name)
            yield from _key(key, here)
            if name in first:
                lines = f"lines {first[name]} and {_line(key)}"
                yield Fault(_dotted(here), f"given twice, on {lines}")
            first.setdefault(name, _line(key))
            yield from self._bounded(value, here, above)


def _key(node: yaml.Node, path: tuple[str, ...]) -> Iterator[Fault]:
    if not isinstance(node, yaml.ScalarNode):
        yield _fault(path, node, "a key must be a word", fatal=True)
    elif node.tag != _TAG + "str":
        yield _fault(path, node, f"key {node.value} is not text: put it in quotes")
    else:
        yield from _scalar(node, path)


def _scalar(node: yaml.ScalarNode, path: tuple[str, ...]) -> Iterator[Fault]:
    text = node.value
    if node.tag == _TAG + "str":
        if node.style is None and text.lower() in UNCLEAR:
            yield _fault(
                path, node, f"'{text}' is unclear: write true or false, or put it in quotes"
            )
        if "${" in text:
            message = f"'{text}': nothing is substituted in this version; write the value itself"
            yield _fault(path, node, message)
    elif _too_large(node):
        yield _fault(path, node, "too large a number")


def _too_large(node: yaml.ScalarNode) -> bool:
    if node.tag == _TAG + "int":
        return len(node.value) > MAX_DIGITS
    return node.tag == _TAG + "float" and math.isinf(float(node.value))


def _fault(path: tuple[str, ...], node: yaml.Node, message: str, *, fatal: bool = False) -> Fault:
    return Fault(_dotted(path), f"{message} (line {_line(node)})", fatal)


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path) or "(top)"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
