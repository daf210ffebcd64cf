"""From a URL to an agent and back: `/agents/{class}/{name}(/sub/{class}/{name})*[/rest]`.

Class segments are kebab-case. The name of a root is the segment as it was sent, not
decoded; the names of children are decoded. That is what the npm clients expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from sapwood.address import Address, kebab
from sapwood.errors import InvalidName, UsageError

SUB = "sub"


class Root(NamedTuple):
    """The first part of a path."""

    segment: str
    name: str
    rest: str
    """What follows; begins with a slash."""


class Hop(NamedTuple):
    """One step down."""

    segment: str
    name: str
    rest: str
    """What follows; begins with a slash."""
    before: str
    """What stood before it."""


def parse_root(path: str, prefix: str) -> Root | None:
    """Return the root a raw path names; None if the path is not ours."""
    if prefix:
        if not path.startswith(f"/{prefix}/"):
            return None
        path = path[len(prefix) + 1 :]
    segment, slash, rest = path.removeprefix("/").partition("/")
    name, slash, rest = rest.partition("/")
    if not segment or not name:
        return None
    return Root(segment, name, f"/{rest}" if slash else "/")


def parse_hop(path: str, is_class: Callable[[str], bool]) -> Hop | None:
    """Return the first step down that a raw path names, if it names one.

    A `sub` that no known class and name follow is an ordinary segment: a root may be
    called so, and so may a part of the rest.
    """
    segments = path.split("/")
    for at in range(len(segments) - 2):
        if segments[at] != SUB or not is_class(segments[at + 1]) or not segments[at + 2]:
            continue
        try:
            name = unquote(segments[at + 2], errors="strict")
        except UnicodeDecodeError:
            continue
        rest = "/".join(segments[at + 3 :])
        return Hop(segments[at + 1], name, f"/{rest}", "/".join(segments[:at]))
    return None


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


def checked(name: str) -> str:
    """Return the name of a child, or raise `InvalidName`."""
    if "\0" in name:
        raise InvalidName("The null character is reserved.")
    return name


def relative(path: str, root_path: str) -> str:
    """Return a path as seen from where the app is mounted. Some servers strip the mount point themselves."""
    mount = root_path.rstrip("/")
    if mount and (path == mount or path.startswith(f"{mount}/")):
        return path[len(mount) :] or "/"
    return path


def known_by(segment: str, types: Sequence[str]) -> bool:
    return any(kebab(type_) == segment for type_ in types)
