"""Who an agent is: a path of named steps, root first.

An address is a value. Equal addresses name the same agent in every process, and its
text form can be stored, logged and read back.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from urllib.parse import quote, unquote

from sapwood.errors import InvalidName
from sapwood.errors import PathSegment as PathSegment  # noqa: PLC0414 - errors have paths too, and stand below addresses

MAX_NAME_BYTES = 512


@dataclass(frozen=True, slots=True)
class Address:
    """The name of one agent, root first."""

    segments: tuple[PathSegment, ...]
    """From the root to the agent itself."""

    @classmethod
    def root_of(cls, type: str, name: str) -> Address:
        """Return the address of a root."""
        return cls((PathSegment(type, checked_name(name)),))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read back what `str(address)` wrote."""
        try:
            steps = [
                PathSegment(unquote(type_, errors="strict"), checked_name(unquote(name, errors="strict")))
                for type_, _, name in (part.partition(":") for part in text.split("/"))
                if type_ and name
            ]
        except UnicodeDecodeError:
            steps = []
        if len(steps) != text.count("/") + 1:
            raise InvalidName(f"{text!r} is not an address. Write it as Type:name/Type:name.")
        return cls(tuple(steps))

    @property
    def type(self) -> str:
        """The type id of the agent's class."""
        return self.segments[-1].type

    @property
    def name(self) -> str:
        """The agent's own name."""
        return self.segments[-1].name

    @property
    def root(self) -> Address:
        """The address of the root of its tree."""
        return self if len(self.segments) == 1 else Address(self.segments[:1])

    @property
    def parent(self) -> Address | None:
        """The address of its parent; None for a root."""
        return Address(self.segments[:-1]) if len(self.segments) > 1 else None

    def child(self, type: str, name: str) -> Address:
        """Return the address of a child of this agent."""
        return Address((*self.segments, PathSegment(type, checked_name(name))))

    def is_below(self, other: Address) -> bool:
        """Return whether `other` is an ancestor of this address."""
        depth = len(other.segments)
        return len(self.segments) > depth and self.segments[:depth] == other.segments

    def __str__(self) -> str:
        return "/".join(f"{quote(step.type, safe='')}:{quote(step.name, safe='')}" for step in self.segments)


@functools.lru_cache(maxsize=4096)
def checked_name(name: str) -> str:
    """Return `name` if an agent may have it; names are opaque text, never a path."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - unchecked programs exist
        raise InvalidName(f"{name!r} cannot be the name of an agent: it is not text.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{name!r} cannot be the name of an agent: it is not valid Unicode text.") from None
    if not name:
        raise InvalidName("An agent's name cannot be empty.")
    if "\0" in name:
        raise InvalidName(f"{name!r} cannot be the name of an agent: the null character is reserved.")
    if size > MAX_NAME_BYTES:
        raise InvalidName(f"An agent's name may have {MAX_NAME_BYTES} bytes; {name[:40]!r}… has {size}.")
    return name


def kebab(name: str) -> str:
    """Return the form a class name has in URLs: `MyAgent` → `my-agent`, `SUB` → `sub`."""
    if name == name.upper() and name != name.lower():
        return name.lower().replace("_", "-").removesuffix("-")
    spread = "".join(f"-{letter.lower()}" if "A" <= letter <= "Z" else letter for letter in name)
    return spread.removeprefix("-").replace("_", "-").removesuffix("-")
