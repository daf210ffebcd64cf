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
    """The address of one agent: all path segments from its root."""

    segments: tuple[PathSegment, ...]
    """From the root to the agent itself."""

    @classmethod
    def root_of(cls, type: str, name: str) -> Address:
        """Return the address of a root."""
        return cls((PathSegment(type, checked_name(name)),))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse the text that `str(address)` returns."""
        try:
            steps = [
                PathSegment(unquote(type_, errors="strict"), checked_name(unquote(name, errors="strict")))
                for type_, _, name in (part.partition(":") for part in text.split("/"))
                if type_ and name
            ]
        except UnicodeDecodeError:
            steps = []
        if len(steps) != text.count("/") + 1:
            raise InvalidName(
                f"{text!r} is not an address. Expected Type:name, such as Assistant:main, or Type:name/Type:name."
            )
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
        """The address of its parent; `None` for a root."""
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
    """Return `name` if it is a valid name of an agent. Names are opaque text, never a path."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - unchecked programs exist
        raise InvalidName(f"The name of an agent must be a string, got {name!r}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"The name of an agent must be valid Unicode, got {name!r}.") from None
    if not name:
        raise InvalidName("The name of an agent must not be empty.")
    if "\0" in name:
        raise InvalidName(f"The name of an agent must not contain the null character, got {name!r}.")
    if size > MAX_NAME_BYTES:
        raise InvalidName(f"The name of an agent must have at most {MAX_NAME_BYTES} bytes, got {size}: {name[:40]!r}….")
    return name


def kebab(name: str) -> str:
    """Return the form a class name has in URLs: `MyAgent` → `my-agent`, `SUB` → `sub`."""
    if name == name.upper() and name != name.lower():
        return name.lower().replace("_", "-").removesuffix("-")
    spread = "".join(f"-{letter.lower()}" if "A" <= letter <= "Z" else letter for letter in name)
    return spread.removeprefix("-").replace("_", "-").removesuffix("-")
