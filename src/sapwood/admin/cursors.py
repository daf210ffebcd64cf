"""The cursors of pages: what a row passes as `next`, and what the next request says after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from sapwood.errors import InvalidArguments

T = TypeVar("T")
WRONG = "`after` must be the `next` of the page before."


def number_in(text: str | None) -> int | None:
    """Return the number of a row."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidArguments(WRONG)
    return int(text)


def values_in(text: str, type: type[T]) -> T:
    """Return the values that a cursor was made of."""
    try:
        return msgspec.json.decode(text, type=type)
    except msgspec.DecodeError:
        raise InvalidArguments(WRONG) from None


def cursor(*values: Any) -> str:
    """Return a cursor made of several values."""
    return msgspec.json.encode(values).decode()


def cut_page(found: Sequence[T], limit: int, place: Callable[[T], int | str]) -> tuple[Sequence[T], str | None]:
    """Return the rows of a page, and its `next`. One row more than fits was read, if there is one."""
    page = found[:limit]
    return page, str(place(page[-1])) if len(found) > limit else None
