"""What clients are told of an error: the text of errors that are meant for them, and a reference to the log for others.

A stored error keeps its true text, for code, models and operators. If it is internal, its text names its reference, and
`for_clients` replaces every text that does so where it leaves for a client.
"""

from __future__ import annotations

import re
from typing import Any, cast

from sapwood.errors import (
    Aborted,
    GaveUp,
    KeyReused,
    NotFound,
    OverLimit,
    Quarantined,
    Refused,
    RemoteRefused,
    SapwoodError,
    TimedOut,
    Unavailable,
)
from sapwood.kernel.marshal.exceptions import describe
from sapwood.randomness import Random, new_id
from sapwood.wire import final_errors

BY_KIND: tuple[tuple[type[SapwoodError], str], ...] = (
    (Unavailable, "Not available now. Try again later."),
    (Quarantined, "Not available now. Try again later."),
    (RemoteRefused, "Another server refused the request."),
    (KeyReused, "This idempotency key was used before with other contents."),
    (NotFound, "Not found."),
)
"""Errors that clients are told in these words: their own text may name hosts, files or other agents."""
AS_WRITTEN = (Refused, OverLimit, TimedOut, Aborted, GaveUp)
"""Errors whose own text is meant for clients."""
REFERENCE = re.compile(r"\[error reference ([0-9a-f]{8})\]")


def told_of(error: BaseException) -> str | None:
    """Return what clients are told of an error that is meant for them; `None` if it is internal."""
    for kind, text in BY_KIND:
        if isinstance(error, kind):
            return text
    return str(error) if isinstance(error, AS_WRITTEN) else None


def new_reference(random: Random) -> str:
    return new_id(random, 4)


def with_reference(text: str, reference: str) -> str:
    """Return the text of an internal error, for code and for operators."""
    return f"{text} [error reference {reference}]"


def internal_error(reference: str, code: str = "") -> str:
    """Return what clients are told of an internal error; `code` is that of a final one."""
    return f"{final_errors.TEXTS.get(code, 'Internal error')} (reference {reference})."


def code_for_clients(error: BaseException) -> str:
    """Return the code that clients get with an error, because a program acts on it; empty if they get none."""
    return Unavailable.code if isinstance(error, Unavailable) else final_errors.final_code(error)


def for_clients(value: Any) -> Any:
    """Return a stored error, or JSON with such errors in it, as clients may see it."""
    if isinstance(value, str):
        found = REFERENCE.search(value)
        return value if found is None else internal_error(found[1])
    if isinstance(value, dict):
        return {key: for_clients(one) for key, one in cast("dict[str, Any]", value).items()}
    return [for_clients(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def as_stored(error: BaseException, random: Random) -> tuple[str, str | None]:
    """Return the text of an error that ended a turn or a run, and its reference if the error is internal."""
    if isinstance(error, AS_WRITTEN) and told_of(error) == str(error):
        return str(error), None
    reference = new_reference(random)
    text = str(error) if isinstance(error, SapwoodError) else ""
    return with_reference(text or describe(error), reference), reference
