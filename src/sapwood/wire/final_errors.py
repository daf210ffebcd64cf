"""Errors that a client must not retry: how their code reaches it over HTTP and over WebSockets.

Only an operator can end them: stored data is damaged, or cannot be migrated. An HTTP response has the status 500 and
the code in a header; a socket is closed with 4500, and its reason begins with the code.
"""

from __future__ import annotations

from sapwood.errors import MigrationFailed, SapwoodError, StoredDataError

HEADER = "sapwood-error"
CLOSE_CODE = 4500
"""No client reconnects after a close code from 4000 to 4999."""
KINDS: dict[str, type[SapwoodError]] = {kind.code: kind for kind in (StoredDataError, MigrationFailed)}
"""The errors by their code."""
TEXTS = {
    StoredDataError.code: "Stored data cannot be read",
    MigrationFailed.code: "Stored data could not be migrated",
}
"""What clients are told: the text of the error itself may name files."""
SEPARATOR = ": "


def final_code(error: BaseException) -> str:
    """Return the code of a final error, or an empty string if the error is not final."""
    return next((code for code, kind in KINDS.items() if isinstance(error, kind)), "")


def close_reason(code: str, text: str) -> str:
    """Return the reason that a socket is closed with."""
    return f"{code}{SEPARATOR}{text}"


def from_close(code: int, reason: str) -> SapwoodError | None:
    """Return the final error that a socket was closed with, or `None` if it was closed for another reason."""
    name, _, text = reason.partition(SEPARATOR)
    kind = KINDS.get(name) if code == CLOSE_CODE else None
    return None if kind is None else kind(text)
