"""The URLs of the files of an agent, and what an upload is answered with."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from sapwood.errors import InvalidArguments

PATH = "/files"
STREAM = "sapwood.stream_body"
"""In the scope of a request: called by what stores the body as it is read. The body then counts for no limit."""


def is_upload(method: str, path: str) -> bool:
    """Return whether a request uploads a file, by its method and its path."""
    return method == "PUT" and path.partition("?")[0].endswith(PATH)


def uploaded(digest: str, name: str | None, media_type: str, size: int, url: str) -> dict[str, Any]:
    """Return what a client gets for a complete upload."""
    return {"digest": digest, "name": name, "mediaType": media_type, "size": size, "url": url}


class ContentRange(NamedTuple):
    """Which bytes of a file a request sends."""

    first: int | None
    """The first byte; `None` to ask how many bytes have arrived."""
    end: int
    """The byte after the last one."""
    size: int
    """The size of the whole file."""


def content_range(header: str) -> ContentRange:
    """Read `Content-Range: bytes 0-999/5000`, or `bytes */5000`."""
    found = re.fullmatch(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})", header.strip())
    if found is None:
        raise InvalidArguments(f"Content-Range must be like `bytes 0-999/5000` or `bytes */5000`, got {header!r}.")
    first, last, size = (None if one is None else int(one) for one in found.groups())
    assert size is not None
    if first is None or last is None:
        return ContentRange(None, 0, size)
    if not first <= last < size:
        raise InvalidArguments(f"Content-Range {header!r} is not a part of the file.")
    return ContentRange(first, last + 1, size)


def byte_range(header: str, size: int) -> tuple[int, int] | Literal["unsatisfiable"] | None:
    """Return the first byte and the one after the last that `Range` asks for; `None` for all of the file.

    Several ranges, and what cannot be read, count as none: a server may answer with the whole file.
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", header.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    return (start, end) if start < end else "unsatisfiable"
