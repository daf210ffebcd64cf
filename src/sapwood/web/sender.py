"""Who sent a request, for limits that count by sender."""

from __future__ import annotations

from collections.abc import Hashable

from sapwood.web.asgi_types import Scope
from sapwood.web.connection_limits import address_key, is_loopback_address


def sender_key(user: object, scope: Scope) -> Hashable:
    """Return what a user, or else a remote address, is counted under; `None` for this machine."""
    if user is not None:
        return ("user", user_key(user))
    host = scope["client"][0] if scope.get("client") else ""
    # This machine may be a proxy that does not say for whom it asks.
    return None if not host or is_loopback_address(host) else address_key(host)


def user_key(user: object) -> Hashable:
    """Return what a user is counted under."""
    try:
        hash(user)
    except TypeError:
        return repr(user)
    return user
