"""What agents and nodes ask of the past of a tree: mark a moment in it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Protocol

from sapwood.address import Address


class MomentKind(str, Enum):
    """Why a moment was recorded."""

    MARK = "mark"
    """The code of an agent marked it, with a name."""
    BEFORE_TURN = "before_turn"
    AFTER_TURN = "after_turn"
    BEFORE_RUN = "before_run"
    AFTER_RUN = "after_run"
    BEFORE_DELETION = "before_deletion"

    @property
    def is_before(self) -> bool:
        """Whether it does not contain what the open slice has written."""
        return self.value.startswith("before_")


class History(Protocol):
    """Records the past of trees."""

    def mark(self, agent: Address, kind: MomentKind, label: str) -> None:
        """Record a moment of the tree of this agent. Never fails, and does not wait."""
        ...

    def keep_file(self, root: Address, path: Path) -> None:
        """A larger file of an agent is about to be deleted: keep it for the past."""
        ...

    def replaced(self, root: Address) -> None:
        """Other files are in the place of a tree now."""
        ...

    def renamed(self, old: Address, new: Address) -> None:
        """A tree has another address, as its class has another type id. Its past goes with it."""
        ...

    def forget(self, root: Address, *, is_destroyed: bool = False) -> None:
        """Remove the past of a tree, which begins again unless the tree is destroyed. What it had is gone at once."""
        ...
