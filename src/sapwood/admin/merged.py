"""Joins what several nodes answer to one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from sapwood.admin.endpoint import Answer, Page, Params


def joined(_: Params, answers: Sequence[Answer]) -> Answer:
    """Return what several nodes say as one answer: lists are joined, numbers added."""
    found: Answer = {}
    for answer in answers:
        for key, value in answer.items():
            if isinstance(value, bool):
                found[key] = value and found.get(key, True) if key == "ready" else value or found.get(key, False)
            elif isinstance(value, int | list):
                found[key] = found[key] + value if key in found else value
            else:
                found[key] = value
    return found


def by_page(cursor: Callable[[dict[str, Any]], Any], text: Callable[[Any], str] = str) -> Any:
    """Return a merge of pages whose rows are in the order of `cursor` everywhere, so one cursor is good for all.

    `text` makes the cursor of a row into what the next request passes as `after`.
    """

    def merge(params: Page, answers: Sequence[Answer]) -> Answer:
        found = joined(params, answers)
        rows = sorted(found["rows"], key=cursor)
        has_more = len(rows) > params.limit or any(answer["next"] is not None for answer in answers)
        found["rows"] = rows = rows[: params.limit]
        found["next"] = text(cursor(rows[-1])) if has_more and rows else None
        return found

    return merge


by_address = itemgetter("address")
