"""What operators read of the requests of a chat agent to models, without waking it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sapwood.chat.store.request_records import CHAIN, FORM, LEFT_OUT
from sapwood.chat.store.sent_body import joined
from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database

ALL = 1_000_000_000
MISSING = "<missing: BLAKE2 {digest}>"
"""Stands for a text that the database has lost."""
DAMAGED = "<the record of this request is damaged>"


class StoredForm(NamedTuple):
    """The request of a step in the form of Pydantic AI."""

    body: str
    is_redacted: bool
    is_whole: bool
    """Whether the record has all of its texts."""


def sent_requests(database: Database, span: int) -> list[dict[str, Any]]:
    """Return what a model was sent in a step: the URL and the whole body of each request.

    Without an HTTP client of a known kind, it is the request in the form of Pydantic AI, without a URL.
    """
    rows = _rows(database, span)
    sent = [row for row in rows if row[0] != FORM] or rows
    return [{"url": url, "body": _body(database, parts, last, separator)} for url, _, parts, separator, last in sent]


def stored_form(database: Database, span: int) -> StoredForm | None:
    """Return the last request of a step in the form of Pydantic AI; `None` if there is no record of it."""
    forms = [row for row in _rows(database, span) if row[0] == FORM]
    if not forms:
        return None
    _, is_redacted, parts, separator, last = forms[-1]
    lost: list[str] = []
    body = _body(database, parts, last, separator, lost)
    return StoredForm(body, bool(is_redacted), body != DAMAGED and not lost)


def _rows(database: Database, span: int) -> list[Any]:
    if not has_table(database, "sapwood_model_requests"):
        return []
    sql = "SELECT url, is_redacted, parts, separator, last FROM sapwood_model_requests WHERE span = ? ORDER BY number"
    return list(database.look(sql, (span,), ALL)[1])


def _body(database: Database, parts: str, last: int | None, separator: str, lost: list[str] | None = None) -> str:
    """Return a whole body; `lost` gets what stands for each text that is not there."""
    lost = [] if lost is None else lost
    try:
        messages = _messages(database, last, lost)
        return joined(parts, lambda one: _text(database, one, lost), messages, separator)
    except msgspec.DecodeError:
        return DAMAGED


def _messages(database: Database, last: int | None, lost: list[str]) -> list[str]:
    if last is None:
        return []
    _, rows = database.look(CHAIN, (last,), ALL)
    return [_text(database, digest, lost) for _, digest in rows]


def _text(database: Database, digest: str, lost: list[str]) -> str:
    _, rows = database.look("SELECT body, bytes FROM sapwood_sent_texts WHERE digest = ?", (digest,), 1)
    if rows and rows[0][0] is not None:
        return rows[0][0]
    lost.append(LEFT_OUT.format(bytes=rows[0][1], digest=digest) if rows else MISSING.format(digest=digest))
    return lost[-1]
