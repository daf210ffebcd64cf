"""Which agents are being erased: calls to them do not find them, and they are not created again before that is done."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.errors import NotFound, Unavailable


class Erasing:
    """The agents of one node that are being erased, each with all below it."""

    def __init__(self) -> None:
        self._subjects: set[Address] = set()
        self._begun: list[Address] = []
        """The subjects of all erasures since the start, also of those that have ended."""

    @property
    def subjects(self) -> frozenset[Address]:
        """The agents that are being erased now."""
        return frozenset(self._subjects)

    @property
    def count(self) -> int:
        """How many erasures have begun since the start."""
        return len(self._begun)

    def begin(self, subject: Address) -> None:
        """Let calls not find an agent any more."""
        self._subjects.add(subject)
        self._begun.append(subject)

    def end(self, subject: Address) -> None:
        """Let calls reach an agent of this address, which is a new one."""
        self._subjects.discard(subject)

    def has(self, address: Address) -> bool:
        """Return whether an agent is being erased, or one above it is."""
        return any(address == one or address.is_below(one) for one in self._subjects)

    def concerns(self, address: Address, count: int | None = None) -> bool:
        """Return whether an agent is being erased, or one above or below it is.

        `count`: those that have begun since there were so many erasures count too, also if they have ended.
        """
        subjects = [*self._subjects, *([] if count is None else self._begun[count:])]
        return any(address == one or address.is_below(one) or one.is_below(address) for one in subjects)

    def check_tree(self, root: Address) -> None:
        """Raise `Unavailable` for a tree of which agents are being erased."""
        if self._subjects and self.concerns(root, self.count):
            raise Unavailable(f"Agents of {root} are being erased. Try again when that is done.")

    def check(self, address: Address) -> None:
        """Raise `NotFound` for an agent that is being erased, or is below one that is."""
        if self._subjects and self.has(address):
            raise NotFound(f"{address} is being erased.", path=address.segments)
