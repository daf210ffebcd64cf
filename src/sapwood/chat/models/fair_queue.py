"""A queue that serves its users in turn: one user with many entries does not delay the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Round robin between keys, first in, first out within a key."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, deque[T]] = {}
        """The entries by key. The first key is served next."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, key: Hashable, entry: T) -> None:
        """Add an entry behind those of its key. A new key is served after all others."""
        self._entries.setdefault(key, deque()).append(entry)
        self._length += 1

    def pop(self) -> T:
        """Remove and return the next entry. Its key is then served after all others."""
        key = next(iter(self._entries))
        entries = self._entries.pop(key)
        entry = entries.popleft()
        if entries:
            self._entries[key] = entries
        self._length -= 1
        return entry

    def remove(self, key: Hashable, entry: T) -> None:
        """Remove an entry that no longer waits."""
        entries = self._entries[key]
        entries.remove(entry)
        if not entries:
            del self._entries[key]
        self._length -= 1
