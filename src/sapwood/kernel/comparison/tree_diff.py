"""What differs between two agents and those below them, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Place: TypeAlias = Literal["only_a", "only_b", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that only one of two agents has, or that differs between them."""

    kind: Place
    """`only_a`, `only_b` or `changed`."""
    key: str
    """The JSON pointer, message id, file digest, model, or primary key as JSON. Empty for rows without a key."""
    a: Any
    """What the first agent has, as a JSON value. `None` if it has nothing. Of a changed row, the changed columns."""
    b: Any
    """What the second agent has."""


@dataclass(frozen=True, slots=True)
class PartDiff:
    """What differs in one part of an agent."""

    kind: str
    """`schema`, `table`, `state`, `messages`, `files` or `spending`."""
    name: str | None
    """The name of the table. `None` for other parts."""
    only_a: int
    """How many entries only the first agent has."""
    only_b: int
    """How many entries only the second agent has."""
    changed: int
    """How many entries both have, with different content."""
    changes: tuple[Change, ...]
    """The first of them, up to the limit."""
    problem: str | None = None
    """Why this part was not compared, as a sentence. `None` if it was."""
    key_columns: tuple[str, ...] = ()
    """The columns of the primary key by which the rows of a table were matched."""


@dataclass(frozen=True, slots=True)
class AgentDiff:
    """What differs between two agents that have the same place below the compared ones."""

    path: str
    """Where they are below the compared agents, such as `Chat:a`. Empty for the compared agents themselves."""
    parts: tuple[PartDiff, ...]


@dataclass(frozen=True, slots=True)
class TreeDiff:
    """What differs between two agents and those below them. All counts are exact, and the lists are limited."""

    a: str
    """The address of the first agent."""
    b: str
    """The address of the second agent."""
    both: int
    """How many agents exist on both sides, the compared ones included."""
    only_a: int
    """How many agents exist only below the first agent."""
    only_b: int
    """How many agents exist only below the second agent."""
    changed: int
    """How many agents exist on both sides and differ."""
    agents_only_a: tuple[str, ...]
    """Their paths below the compared agent."""
    agents_only_b: tuple[str, ...]
    """Their paths below the compared agent."""
    agents_changed: tuple[AgentDiff, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_a or self.only_b or self.changed)
