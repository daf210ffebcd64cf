"""A tree that cannot be read, while others are listed."""

from __future__ import annotations

from typing import Any, NamedTuple

from sapwood.address import Address
from sapwood.admin.content import Content
from sapwood.errors import SapwoodError


class Unread(NamedTuple):
    """A tree that cannot be read, and why."""

    root: Address
    error: SapwoodError

    def shown(self, content: Content) -> dict[str, Any]:
        """Return what a token sees of it."""
        return {"address": str(self.root), "error": content.text("error", str(self.error))}
