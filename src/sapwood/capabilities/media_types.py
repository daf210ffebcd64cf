"""The media type of a file, verified from its bytes. What a sender claims counts only where the bytes allow it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import cast

from sapwood.errors import UsageError

HEAD = 64
"""How many bytes a signature may be away from the beginning of a file."""
BINARY = "application/octet-stream"
TEXT = "text/plain"
ZIP = "application/zip"
SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"PK\x03\x04", ZIP),
    (0, b"PK\x05\x06", ZIP),
)
RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
MPEG_FRAMES = (b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2")
"""How MP3 files without tags begin."""
VERIFIED = frozenset({kind for _, _, kind in SIGNATURES} | set(RIFF.values()) | {"audio/mpeg", "video/mp4"})
"""The types that the bytes prove. A claim of one of them never counts."""
PLAUSIBLE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")
PATTERN = re.compile(rf"\*/\*|[a-z]+/\*|{PLAUSIBLE.pattern}")
"""What a class may accept."""
TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/x-ndjson")
ZIPPED = ("application/vnd.", "application/epub+zip", "application/java-archive")
"""How the types of files that are ZIP archives begin."""
CONTROLS = frozenset(range(32)) - {9, 10, 12, 13, 27}
"""Bytes that no text contains."""
INLINE = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf", TEXT}
    | {"audio/mpeg", "audio/wav", "audio/ogg", "video/mp4", "video/webm"}
)
"""The types that a browser may show: none of them can run a script in the page's origin."""


class MediaTypeCheck:
    """Finds the media type of a file that is read in pieces."""

    def __init__(self) -> None:
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()

    def add(self, content: bytes) -> None:
        """Take the next piece."""
        if len(self._head) < HEAD:
            self._head += content[: HEAD - len(self._head)]
        if self._decoder is None:
            return
        try:
            self._decoder.decode(content)
            if not CONTROLS.isdisjoint(content):
                self._decoder = None
        except UnicodeDecodeError:
            self._decoder = None

    def found(self, claimed: str | None, *, is_end: bool = True) -> str:
        """Return the type of what was read so far; with `is_end`, of the whole file."""
        if (proved := proved_by(self._head)) is not None and proved != ZIP:
            return proved
        claim = plausible(claimed)
        if proved == ZIP:
            return claim if claim is not None and (claim.startswith(ZIPPED) or claim.endswith("+zip")) else ZIP
        if self._is_text(is_end=is_end):
            return claim if claim is not None and is_textual(claim) else TEXT
        return BINARY if claim is None or claim in VERIFIED or is_textual(claim) else claim

    def _is_text(self, *, is_end: bool) -> bool:
        if self._decoder is None:
            return False
        try:
            if is_end:
                self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True


def proved_by(head: bytes) -> str | None:
    """Return the type that the first bytes of a file prove; `None` if they prove none."""
    for place, signature, kind in SIGNATURES:
        if head[place : place + len(signature)] == signature:
            return kind
    if head[:4] == b"RIFF":
        return RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "video/mp4"
    return "audio/mpeg" if head[:2] in MPEG_FRAMES else None


def plausible(claimed: str | None) -> str | None:
    """Return a claimed type without its parameters, or `None` if it is not a media type."""
    claim = (claimed or "").partition(";")[0].strip().lower()
    return claim if PLAUSIBLE.fullmatch(claim) and claim != BINARY else None


def is_textual(kind: str) -> bool:
    """Return whether files of this type are UTF-8 text."""
    return kind.startswith("text/") or kind in TEXTUAL or kind.endswith(("+json", "+xml"))


def check_accepted(cls: str, accepted: object) -> None:
    """Refuse an `accept_files` that cannot work."""
    example = '{"image/*": 5_000_000}'
    if not isinstance(accepted, Mapping):
        raise UsageError(f"{cls}.accept_files must map media types to sizes, such as {example}, got {accepted!r}.")
    for pattern, size in cast("Mapping[object, object]", accepted).items():
        if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
            raise UsageError(f"{cls}.accept_files: expected a media type, 'image/*' or '*/*', got {pattern!r}.")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{cls}.accept_files[{pattern!r}] must be a number of bytes of at least 1, got {size!r}.")


def matches(kind: str, pattern: str) -> bool:
    """Return whether a type fits a pattern: a type, `image/*` or `*/*`."""
    return pattern in (kind, "*/*") or (pattern.endswith("/*") and kind.startswith(pattern[:-1]))
