"""Who may answer a question: every client, or users with certain roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, cast

from sapwood.errors import UsageError


class AnyClient:
    """The type of `ANY_CLIENT`."""

    def __repr__(self) -> str:
        return "ANY_CLIENT"


ANY_CLIENT: Final = AnyClient()
"""Every client that the gates of the agent admit may answer: the users of the conversation themselves."""

Roles: TypeAlias = AnyClient | str | Sequence[str]
"""Who may answer a question that code asks: `ANY_CLIENT`, or one role or several."""


def stored_roles(approvers: Roles) -> tuple[str, ...]:
    """Return the roles as they are stored; an empty tuple means every client."""
    if isinstance(approvers, AnyClient):
        return ()
    roles = (approvers,) if isinstance(approvers, str) else tuple(approvers)
    if not roles or not all(isinstance(one, str) and one for one in cast("tuple[Any, ...]", roles)):
        raise UsageError(f"approvers={approvers!r}: expected a role, several roles, or ANY_CLIENT.")
    return roles
