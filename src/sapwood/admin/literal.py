"""Python literals as a person would write them: on one line if they fit, else one element per line."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

WIDTH = 88
"""Columns of a line."""
SHORT = 40
"""Characters of a string that is on one line although it has line breaks."""
NARROWEST = 24
"""Columns that a piece of a long string may have at least, however deep it is."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string, which may be broken into several."""

    value: str


@dataclass(frozen=True, slots=True)
class Item:
    """An element between brackets."""

    node: Node
    label: str = ""
    """What stands before it: `name=` or `"key": `."""
    comment: str = ""
    """What stands in a line above it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Elements between brackets."""

    begin: str
    items: Sequence[Item]
    end: str


Node: TypeAlias = str | Text | Group
"""A Python expression; a `str` is written as it is."""


def literal(value: Any) -> Node:
    """Return the expression for a JSON value."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list | tuple):
        return Group("[", [Item(literal(one)) for one in cast("Sequence[Any]", value)], "]")
    if isinstance(value, dict):
        fields = cast("Mapping[Any, Any]", value)
        return Group("{", [Item(literal(one), f"{quoted(str(name))}: ") for name, one in fields.items()], "}")
    return repr(value)


def call_of(function: str, /, *arguments: Node, **named: Node) -> Group:
    """Return the expression that calls a function."""
    return Group(f"{function}(", [*map(Item, arguments), *(Item(one, f"{name}=") for name, one in named.items())], ")")


def are_keywords(names: Sequence[str], taken: Sequence[str] = ()) -> bool:
    """Return whether these names can be keyword arguments."""
    return all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in names) and not (
        {*names} & {*taken}
    )


def functions_of(node: Node) -> Iterator[str]:
    """Yield the names of the functions that an expression calls."""
    if isinstance(node, Group):
        if name := node.begin.partition("(")[0].strip("[{"):
            yield name
        for item in node.items:
            yield from functions_of(item.node)


def plain(text: str) -> str:
    """Return text for a comment or a docstring: whatever it is, it ends neither."""
    changed = {"\\": "/", '"': "'"}
    return "".join(changed.get(one, one) if one.isprintable() else " " for one in text)


def quoted(text: str) -> str:
    """Return the literal of a string, in double quotes where that is as easy to read."""
    if '"' in text:
        return repr(text)
    inner = repr(f'"{text}')  # a quotation mark in it makes repr() choose single quotes, and escape those in the text
    return inner[1:-1].replace("\\'", "'") + '"'


def code(node: Node, *, indent: int = 0, used: int = 0) -> str:
    """Return the source of an expression that begins in a line after so many columns, `indent` of them spaces."""
    flat = _flat(node)
    if flat is not None and used + len(flat) < WIDTH:
        return flat
    if isinstance(node, str):
        return node
    inner = indent + 4
    if isinstance(node, Text):
        pieces = _pieces(node.value, WIDTH - inner)
        return quoted(node.value) if len(pieces) == 1 else _lines("(", pieces, ")", indent)
    if not node.items:
        return node.begin + node.end
    only = node.items[0]
    if len(node.items) == 1 and isinstance(only.node, Text) and not only.label and not only.comment:
        return _lines(node.begin, _pieces(only.node.value, WIDTH - inner), node.end, indent)
    return _lines(node.begin, list(_elements(node.items, inner)), node.end, indent)


def _elements(items: Sequence[Item], indent: int) -> Iterator[str]:
    for item in items:
        if item.comment:
            yield f"# {item.comment}"
        yield f"{item.label}{code(item.node, indent=indent, used=indent + len(item.label) + 1)},"


def _lines(begin: str, lines: Sequence[str], end: str, indent: int) -> str:
    return "\n".join([begin, *(" " * (indent + 4) + line for line in lines), " " * indent + end])


def _flat(node: Node) -> str | None:
    """Return an expression on one line; `None` if it needs several."""
    if isinstance(node, str):
        return node
    if isinstance(node, Text):
        return None if "\n" in node.value.rstrip("\n") and len(node.value) > SHORT else quoted(node.value)
    found: list[str] = []
    for item in node.items:
        flat = _flat(item.node)
        if flat is None or item.comment:
            return None
        found.append(item.label + flat)
    return f"{node.begin}{', '.join(found)}{node.end}"


def _pieces(text: str, width: int) -> list[str]:
    """Return the literals of the lines of a string, each broken between words."""
    found: list[str] = []
    for line in text.splitlines(keepends=True) if "\n" in text else [text]:
        piece = ""
        for word in _words(line, max(width, NARROWEST) - 2):
            if piece and len(quoted(piece + word)) > max(width, NARROWEST):
                found.append(quoted(piece))
                piece = ""
            piece += word
        found.append(quoted(piece))
    return found


def _words(line: str, most: int) -> Iterator[str]:
    """Yield a line in parts that end with a space; a part that is too long is cut."""
    begin = 0
    while begin < len(line):
        end = line.find(" ", begin) + 1 or len(line)
        while begin < end:
            size = min(end - begin, most)
            while size > 1 and len(quoted(line[begin : begin + size])) > most:
                size //= 2
            yield line[begin : begin + size]
            begin += size
