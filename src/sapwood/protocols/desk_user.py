"""Whose work the root of a protocol does: users are told apart by their ids, and by nothing else."""

from __future__ import annotations

from typing import Any

from sapwood.errors import UsageError
from sapwood.kernel.marshal.call import id_of


def desk_user(user: Any, protocol: str) -> str | None:
    """Return the id of the user of a client; `None` for a client without a user.

    Raises `UsageError` for a user without an id: such users would share their work.
    """
    if user is None or getattr(user, "is_authenticated", True) is False:
        return None
    id = id_of(user)
    if not id:
        raise UsageError(
            f"{protocol} has to know which user a client is: authenticate must return a User, a string, or an object "
            f"with an `id` that is a string, got a {type(user).__name__}."
        )
    return id
