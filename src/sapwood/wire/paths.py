"""From an agent to its URL, as the server and every client write it."""

from __future__ import annotations

from urllib.parse import quote

from sapwood.address import Address, kebab
from sapwood.errors import UsageError

SUB = "sub"
"""The segment that comes before the class and the name of a child."""


def path_to(address: Address, *, prefix: str, rest: str = "") -> str:
    """Return the path of an agent; what it names is exactly this agent, or there is none."""
    root, *below = address.steps
    if quote(root.name, safe="!$&'()*+,;=:@-._~%") != root.name or root.name in (".", ".."):
        raise UsageError(
            f"A root named {root.name!r} has no URL: the name of a root is taken from a URL as it stands there, and "
            "this one cannot stand there. Give what clients connect to a name of letters, digits, '-', '_', '.', '~'."
        )
    parts = [f"/{prefix}" if prefix else "", f"/{kebab(root.type)}/{root.name}"]
    for step in below:
        if step.name in (".", ".."):
            raise UsageError(f"A sub-agent named {step.name!r} has no URL: clients resolve it away.")
        parts.append(f"/{SUB}/{kebab(step.type)}/{quote(step.name, safe='')}")
    if rest and not rest.startswith("/"):
        raise UsageError(f"The rest of a path begins with a slash, and {rest!r} does not.")
    return "".join(parts) + rest
