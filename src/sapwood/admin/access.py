"""What the bearer of a token may do: its scopes, and the agents that it is limited to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sapwood.address import Address
from sapwood.errors import Refused

Scope: TypeAlias = Literal["look", "content", "answer", "act", "call", "sql", "write", "admin", "erase", "replay"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
OWNER = "operator"
"""The name of the token of the data folder."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request to the admin API may do."""

    name: str
    """The name of the token."""
    scopes: frozenset[Scope]
    below: Address | None = None
    """The agent that it is limited to, with all agents below it. `None` means no limit."""
    expires_at: float | None = None
    """Until when the token is valid."""

    def check(self, scope: Scope, endpoint: str) -> None:
        """Raise `Refused` if the token lacks a scope."""
        if scope not in self.scopes:
            has = ", ".join(one for one in SCOPES if one in self.scopes) or "none"
            raise Refused(f"{endpoint!r} needs a token with the scope {scope!r}. This token has: {has}.")

    def covers(self, address: Address) -> bool:
        """Return whether the token is valid for an agent."""
        return self.below is None or address == self.below or address.is_below(self.below)

    def packed(self) -> tuple[str, list[str], str | None, float | None]:
        """Return it as it is sent to another node."""
        return self.name, sorted(self.scopes), None if self.below is None else str(self.below), self.expires_at

    @classmethod
    def unpacked(cls, name: str, scopes: list[Scope], below: str | None, expires_at: float | None) -> Access:
        """Return what `packed` was made of."""
        return cls(name, frozenset(scopes), None if below is None else Address.parse(below), expires_at)


FULL = Access(OWNER, frozenset(SCOPES))
"""What the token of the data folder may do."""
