"""`session`: what a token may do, and what the app is."""

from __future__ import annotations

from importlib.metadata import version

from sapwood.admin.access import SCOPES
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Params
from sapwood.admin.studio_tabs import listed_tabs


async def _session(call: AdminCall, _: Params) -> Answer:
    access, node = call.access, call.node
    return {
        "name": access.name,
        "scopes": [scope for scope in SCOPES if scope in access.scopes],
        "below": None if access.below is None else str(access.below),
        "expires_at": access.expires_at,
        "version": VERSION,
        "roots": [root.type for root in node.roots],
        "authentication": node.authentication,
        "tabs": listed_tabs(node),
    }


VERSION = version("sapwood")
"""The release that this process runs, also while another one is being installed."""
SESSION = Endpoint("session", None, Params, _session)
