"""From a URL to an agent and back: `/agents/{class}/{name}(/sub/{class}/{name})*[/rest]`.

Class segments are kebab-case. The name of a root is the segment as it was sent, not
decoded; the names of children are decoded. That is what the npm clients expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote

from sapwood.address import Address, kebab
from sapwood.errors import UsageError

SUB = "sub"
AS_IS = "!$&'()*+,;=:@-._~%"
"""What may stand in a segment of a URL beside letters and digits, and means itself."""
_BYTES = re.compile(r"%[0-9a-fA-F]{2}|.", flags=re.DOTALL)


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
        return Hop(segments[at + 1], name, f"/{rest}")
    return None


def path_to(address: Address, *, prefix: str, rest: str = "") -> str:
    """Return the path of an agent; what it names is exactly this agent, or there is none."""
    root, *below = address.segments
    if quote(root.name, safe=AS_IS) != root.name or _is_dots(root.name):
        raise UsageError(
            f"The root name {root.name!r} cannot be part of a URL. Name roots that clients connect to with "
            "letters, digits, '-', '_', '.' and '~'."
        )
    parts = [f"/{prefix}" if prefix else "", f"/{quote(kebab(root.type))}/{root.name}"]
    for step in below:
        if step.name in (".", ".."):
            raise UsageError(
                f"A sub-agent named {step.name!r} has no URL: clients resolve that path segment away. Choose "
                "another name."
            )
        parts.append(f"/{SUB}/{quote(kebab(step.type))}/{quote(step.name, safe='')}")
    if rest:
        _check_rest(rest)
    return "".join(parts) + rest


def _check_rest(rest: str) -> None:
    path = rest.partition("?")[0]
    if not rest.startswith("/"):
        raise UsageError(f"The rest of a path must begin with a slash, got {rest!r}.")
    if quote(rest, safe=f"{AS_IS}/?") != rest:
        raise UsageError(f"{rest!r} is not valid in a URL. Encode it with urllib.parse.quote().")
    if any(_is_dots(segment) for segment in path.split("/")):
        raise UsageError(f"{rest!r} contains '.' or '..', which clients resolve away. Remove it.")
    if parse_hop(path, bool) is not None:
        raise UsageError(f"{rest!r} is the path of a sub-agent. Pass sub=[(Class, name)] instead.")


def _is_dots(segment: str) -> bool:
    """Return whether clients take a segment for a step up, or for none; to them %2e is a dot as well."""
    return re.sub("%2e", ".", segment, flags=re.IGNORECASE) in (".", "..")


def encoded(path: str) -> str:
    """Return a decoded path as it would stand in a URL."""
    return quote(path, safe=f"{AS_IS}/".replace("%", ""))


def relative(raw: str, root_path: str) -> str:
    """Return a raw path as seen from where the app is mounted. Some servers strip the mount point themselves."""
    mount = root_path.rstrip("/")
    head = "".join(_BYTES.findall(raw)[: _length(mount)])
    rest = raw[len(head) :]
    return rest or "/" if mount and unquote(head) == mount and rest[:1] in ("", "/") else raw


def as_sent(rest: str, raw: str) -> str:
    """Return the end of a raw path that reads `rest`; if it has no such end, `rest` itself.

    Frameworks hand out the parts of a path decoded, and a name in it may hold a slash.
    """
    rest = rest if rest.startswith("/") else f"/{rest}"
    tail = "".join(_BYTES.findall(raw)[-_length(rest) :])
    return tail if unquote(tail) == rest else quote(rest, safe=f"{AS_IS}/")


def _length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
