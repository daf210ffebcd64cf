"""What packages say of their own tables when two agents are compared. The comparison itself knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sapwood.storage.file_reader import FileReader


class ComparedEntry(NamedTuple):
    """One entry of a part."""

    key: str
    """Entries of two agents with equal keys are the same entry."""
    position: int
    """The order in which entries are shown."""
    value: Any
    """What is compared with `==`."""


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A part of an agent that a package compares: its state, its conversation."""

    kind: str
    read: Callable[[FileReader], Iterator[ComparedEntry]]
    """Yields the entries in the order of their keys, by code points."""
    show: Callable[[Any], Any]
    """Returns the value of an entry as JSON."""
