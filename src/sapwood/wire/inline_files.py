"""Files that clients send within a message as `data:` URLs: decoded without reading the JSON around them.

A frame of many megabytes is nearly all base64. What is left of it without its files is small, and read like any other.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping

ATTACHED = "file:sapwood-attached:"
"""How the URL begins that stands for a decoded file in a frame; a random token and a number follow."""
DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[^;,\"\\]*)*;base64,", re.IGNORECASE)
PIECE = 1 << 20
"""Characters that are decoded at once: other threads run in between."""
SMALL = 16 * 1024
"""Characters of a `data:` URL up to which it stays in its frame."""


class FrameText(str):  # noqa: SLOT000 - it has an attribute
    """The text of a frame whose files were decoded when it arrived."""

    files: Mapping[str, bytes]
    """The content of each file, by the URL that stands for it in the text."""


def take_files(text: str, token: str) -> FrameText:
    """Return a frame without its files. What is no valid base64 stays; `token` is one that no client can guess."""
    pieces: list[str] = []
    files: dict[str, bytes] = {}
    position = 0
    at = text.find("data:")
    while at >= 0:
        found = DATA_URL.match(text, at)
        start, at = at, text.find("data:", at + 5)  # base64 has no colon
        if found is None or start < position:
            continue
        end = text.find('"', found.end())
        end = len(text) if end < 0 else end
        while text[end - 1] == "\\":  # the JSON may be in a string of JSON
            end -= 1
        if end - start <= SMALL or (content := decode(text, found.end(), end)) is None:
            continue
        url = f"{ATTACHED}{token}:{len(files)}"
        files[url] = content
        pieces += (text[position:start], url)
        position = end
    short = FrameText("".join((*pieces, text[position:])))
    short.files = files
    return short


def decoded(url: str) -> bytes | None:
    """Return the bytes of a `data:` URL in base64, or `None` if it is not one."""
    found = DATA_URL.match(url)
    return None if found is None else decode(url, found.end(), len(url))


def decode(text: str, start: int, end: int) -> bytes | None:
    """Return the bytes of base64, piece by piece; `None` if it is not valid."""
    content = bytearray()
    try:
        for at in range(start, end, PIECE):
            content += binascii.a2b_base64(text[at : min(at + PIECE, end)], strict_mode=True)
    except (binascii.Error, ValueError):
        return None
    return bytes(content)
