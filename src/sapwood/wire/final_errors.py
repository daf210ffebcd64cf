"""Errors that a client must not retry: how their code reaches it over HTTP and over WebSockets.

Only an operator can end them: stored data is damaged, or cannot be migrated. An HTTP response has the status 500 and
the code in a header; a socket is closed with 4500, and its reason begins with the code. An agent that was moved to
another server is told of in the same way: the status is 308, and the reason has its URL.
"""

from __future__ import annotations

from sapwood.errors import MigrationFailed, MovedAway, SapwoodError, StoredDataError

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
LONGEST_REASON = 123
"""Bytes of the reason in a close frame, at most."""


def final_code(error: BaseException) -> str:
    """Return the code of a final error, or an empty string if the error is not final."""
    return next((code for code, kind in KINDS.items() if isinstance(error, kind)), "")


def close_reason(code: str, text: str) -> str:
    """Return the reason that a socket is closed with."""
    return f"{code}{SEPARATOR}{text}"


def moved_reason(url: str) -> str:
    """Return the reason that the socket of an agent is closed with that was moved to another server."""
    reason = close_reason(MovedAway.code, url)
    return reason if len(reason.encode()) <= LONGEST_REASON else MovedAway.code


def moved_away(url: str) -> MovedAway:
    """Return the error of a client whose agent was moved to this URL."""
    where = f" Its address there is {url}." if url else ""
    return MovedAway(f"The agent was moved to another server.{where}", url=url)


def from_close(code: int, reason: str) -> SapwoodError | None:
    """Return the final error that a socket was closed with, or `None` if it was closed for another reason."""
    name, _, text = reason.partition(SEPARATOR)
    if code == CLOSE_CODE and name == MovedAway.code:
        return moved_away(text)
    kind = KINDS.get(name) if code == CLOSE_CODE else None
    return None if kind is None else kind(text)
