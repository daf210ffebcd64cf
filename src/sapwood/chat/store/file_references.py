"""Files in messages as references: what messages, chunks and the model's history hold instead of bytes.

Clients see the URL of a file. The model's history has a `BinaryContent` without bytes that names the same URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

REFERENCE = "sapwood_file"
"""The key in `vendor_metadata` of a reference: the URL of the file."""
UNADDRESSED = "sapwood:/files/"
"""What stands for the URL of a file whose agent has none."""
OWN = re.compile(r"(?:/|sapwood:).*/files/([0-9a-f]{64})|sapwood:/files/([0-9a-f]{64})")
READABLE = ("image/", "audio/", "video/", "application/pdf")
"""The media types of files from tools that models can read."""


def digest_in(url: object) -> str | None:
    """Return the digest of the file that a URL of ours names; `None` for every other URL."""
    found = OWN.fullmatch(url) if isinstance(url, str) else None
    return None if found is None else found[1] or found[2]


def digests_in(value: Any) -> Iterator[str]:
    """Yield the digests of the files that the parts of a message name, wherever they do."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if fields.get("type") == "file" and (digest := digest_in(fields.get("url"))) is not None:
            yield digest
        for one in fields.values():
            yield from digests_in(one)
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from digests_in(one)


def reference(url: str, media_type: str) -> Any:
    """Return what the model's history holds of a file."""
    from pydantic_ai.messages import BinaryContent

    digest = digest_in(url) or ""
    content = BinaryContent(b"", media_type=media_type, identifier=digest[:6], vendor_metadata={REFERENCE: url})
    return BinaryContent.narrow_type(content)


def url_in(content: Any) -> str | None:
    """Return the URL of the file that this stands for in the model's history; `None` if it is no reference."""
    metadata = getattr(content, "vendor_metadata", None)
    if not isinstance(metadata, Mapping) or getattr(content, "data", None) != b"":
        return None
    url = cast("Mapping[str, Any]", metadata).get(REFERENCE)
    return url if digest_in(url) is not None else None


def as_part(content: Any) -> dict[str, Any]:
    """Return a reference as clients see it."""
    return {"type": "file", "mediaType": content.media_type, "url": url_in(content)}


def replaced(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """Return a value with each `BinaryContent` and `bytes` in it replaced; itself if there are none."""
    from pydantic_ai.messages import BinaryContent

    if isinstance(value, BinaryContent | bytes):
        return replacement(value)
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        new = [replaced(one, replacement) for one in items]
        return cast("Any", value) if all(map(_is, new, items)) else new
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        found = {key: replaced(one, replacement) for key, one in fields.items()}
        return cast("Any", value) if all(map(_is, found.values(), fields.values())) else found
    return value


def contents_of(value: Any) -> list[Any]:
    """Return each `BinaryContent` and `bytes` in a value."""
    found: list[Any] = []
    replaced(value, lambda one: found.append(one) or one)
    return found


def shown(value: Any) -> Any:
    """Return the result of a tool with its references as clients see them."""
    return replaced(value, lambda one: one if url_in(one) is None else as_part(one))


def revived(value: Any) -> Any:
    """Return a result of a tool that was stored as JSON, with its references as the model's history holds them."""
    if isinstance(value, list):
        return [revived(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        metadata = fields.get("vendor_metadata")
        if fields.get("kind") == "binary" and fields.get("data") == "" and isinstance(metadata, dict):
            url = cast("dict[str, Any]", metadata).get(REFERENCE)
            if isinstance(url, str) and digest_in(url) is not None:
                return reference(url, str(fields["media_type"]))
        return {key: revived(one) for key, one in fields.items()}
    return value


def _is(one: Any, other: Any) -> bool:
    return one is other
