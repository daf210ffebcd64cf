"""What operators read of the requests of a chat agent to models, without waking it."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.chat.store.request_records import CHAIN, LEFT_OUT
from sapwood.chat.store.sent_body import joined
from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database

ALL = 1_000_000_000
MISSING = "<missing: BLAKE2 {digest}>"
"""Stands for a text that the database has lost."""
DAMAGED = "<the record of this request is damaged>"


def sent_requests(database: Database, span: int) -> list[dict[str, Any]]:
    """Return what a model was sent in a step: the URL and the whole body of each request."""
    if not has_table(database, "sapwood_model_requests"):
        return []
    _, rows = database.look(
        "SELECT url, parts, separator, last FROM sapwood_model_requests WHERE span = ? ORDER BY number", (span,), ALL
    )
    return [{"url": url, "body": _body(database, parts, last, separator)} for url, parts, separator, last in rows]


def _body(database: Database, parts: str, last: int | None, separator: str) -> str:
    try:
        return joined(parts, lambda one: _text(database, one), _messages(database, last), separator)
    except msgspec.DecodeError:
        return DAMAGED


def _messages(database: Database, last: int | None) -> list[str]:
    if last is None:
        return []
    _, rows = database.look(CHAIN, (last,), ALL)
    return [_text(database, digest) for _, digest in rows]


def _text(database: Database, digest: str) -> str:
    _, rows = database.look("SELECT body, bytes FROM sapwood_sent_texts WHERE digest = ?", (digest,), 1)
    if not rows:
        return MISSING.format(digest=digest)
    ((body, size),) = rows
    return body if body is not None else LEFT_OUT.format(bytes=size, digest=digest)
