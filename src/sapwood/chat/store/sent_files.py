"""The files in a request to a model, so that a record of it can name them instead of holding their bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sapwood.chat.store.file_references import REFERENCE, contents_of, replaced

HEAD = 48
"""Bytes of a file that it is recognised by: they are as many whole characters in base64."""
NAMED = "<file sha256:{digest}, {size} bytes>"
ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=")


class _Sent(NamedTuple):
    """One file, as it is found in a request."""

    head: bytes
    tail: bytes
    """Its last characters, without padding."""
    length: int
    """How many characters it has, without padding."""
    name: bytes


class SentFiles:
    """The files that one request holds."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._files: list[_Sent] = []
        for content in _files_in(messages):
            name = NAMED.format(digest=getattr(content, REFERENCE), size=len(content.data)).encode()
            self._files += _forms(content.data, name)

    def named_in(self, body: bytes) -> bytes:
        """Return the body of a request with the name of each file in the place of its bytes in base64."""
        pieces: list[bytes] = []
        position = 0
        while (found := self._next(body, position)) is not None:
            at, sent = found
            end = at + sent.length
            pieces += (body[position:at], sent.name)
            while body[end : end + 1] == b"=":
                end += 1
            position = end
        return b"".join((*pieces, body[position:])) if pieces else body

    def _next(self, body: bytes, start: int) -> tuple[int, _Sent] | None:
        first: tuple[int, _Sent] | None = None
        for sent in self._files:
            at = start - 1
            while (at := body.find(sent.head, at + 1)) >= 0 and (first is None or at < first[0]):
                end = at + sent.length
                is_whole = body[end - len(sent.tail) : end] == sent.tail
                if is_whole and (body[end : end + 1] == b"=" or body[end] not in ALPHABET if end < len(body) else True):
                    first = (at, sent)
                    break
        return first


def without_bytes(message: Any) -> Any:
    """Return a message for a model with the name of each stored file in the place of its bytes."""
    from pydantic_ai.messages import TextPart

    if not _files_in((message,), 0):
        return message
    parts: list[Any] = []
    for part in message.parts:
        if part.part_kind in ("user-prompt", "tool-return"):
            part = replace(part, content=replaced(part.content, _name_of))
        elif part.part_kind == "file" and isinstance(name := _name_of(part.content), str):
            part = TextPart(name)
        parts.append(part)
    return replace(message, parts=parts)


def _name_of(content: Any) -> Any:
    digest = getattr(content, REFERENCE, None)
    return content if digest is None else NAMED.format(digest=digest, size=len(content.data))


def _files_in(messages: Iterable[Any], least: int = HEAD) -> list[Any]:
    found: dict[str, Any] = {}
    for message in messages:
        for part in message.parts:
            if part.part_kind in ("user-prompt", "tool-return", "file") and not isinstance(part.content, str):
                for one in contents_of(part.content):
                    if (digest := getattr(one, REFERENCE, None)) is not None and len(one.data) >= least:
                        found[digest] = one
    return list(found.values())


def _forms(data: bytes, name: bytes) -> list[_Sent]:
    """Return how a file may look in a request: in both alphabets of base64."""
    length = -(-len(data) * 4 // 3)
    rest = data[len(data) // 3 * 3 - HEAD :]
    forms: dict[tuple[bytes, bytes], None] = {}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms[encode(data[:HEAD]), encode(rest).rstrip(b"=")] = None
    return [_Sent(head, tail, length, name) for head, tail in forms]
