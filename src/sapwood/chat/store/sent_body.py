"""Takes the body of a request to a model apart, so that what two requests have in common is stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

LONG = 200
"""Bytes of a value above which it is a text of its own."""
MESSAGES = ("messages", "input", "contents")
"""What providers call the conversation."""


@dataclass(frozen=True, slots=True)
class SentBody:
    """The parts of a body: joined, they are the same bytes again."""

    parts: Sequence[bytes | bool | None]
    """Literal bytes, in turn with `True` for the next of `texts` and `None` for the messages."""
    texts: Sequence[bytes]
    messages: Sequence[bytes]
    separator: bytes

    def join(self) -> bytes:
        texts = iter(self.texts)
        whole = self.separator.join(self.messages)
        return b"".join(
            whole if part is None else next(texts) if isinstance(part, bool) else part for part in self.parts
        )


def split(body: bytes) -> SentBody:
    """Take a body apart. One that is not a JSON object, or nested too deeply, stays whole."""
    try:
        body.decode()  # msgspec does not read the text of raw values
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        found = _split(body, {name: bytes(value) for name, value in fields.items()})
    except (msgspec.DecodeError, ValueError, RecursionError):
        found = None
    if found is None or found.join() != body:
        return SentBody([True], [body], [], b"")
    return found


def _split(body: bytes, fields: dict[str, bytes]) -> SentBody:
    parts, texts, messages, separator = list[bytes | bool | None](), list[bytes](), list[bytes](), b","
    literal = position = 0

    def put(part: bool | None, begin: int, end: int) -> int:
        parts.extend((body[literal:begin], part))
        return end

    for name, value in fields.items():
        position = body.index(msgspec.json.encode(name), position) + len(name) + 2
        position = begin = body.index(value, position)
        position += len(value)
        if (
            name in MESSAGES
            and value.startswith(b"[")
            and (elements := msgspec.json.decode(value, type=list[msgspec.Raw]))
        ):
            messages = [bytes(one) for one in elements]
            inner, separator = begin + value.index(messages[0]), _separator(value, messages)
            length = sum(map(len, messages)) + len(separator) * (len(messages) - 1)
            literal = put(None, inner, inner + length)
        elif len(value) > LONG:
            texts.append(value)
            literal = put(True, begin, position)
    parts.append(body[literal:])
    return SentBody(parts, texts, messages, separator)


def _separator(value: bytes, messages: Sequence[bytes]) -> bytes:
    """Return what stands between the first two elements of an array."""
    if len(messages) < 2:
        return b","
    end = value.index(messages[0]) + len(messages[0])
    return value[end : value.index(messages[1], end)]


def joined(parts: str, text: Callable[[str], str], messages: Sequence[str], separator: str) -> str:
    """Return the body of stored parts, in which a list holds the digest of a text."""
    whole = separator.join(messages)
    stored = msgspec.json.decode(parts, type=list[str | tuple[str] | None])
    return "".join(whole if part is None else part if isinstance(part, str) else text(part[0]) for part in stored)
