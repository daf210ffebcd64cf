"""`slow`: the last methods that held up all agents of a process, and where they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Params
from sapwood.admin.merged import joined
from sapwood.web.stats import name_of


async def _slow(call: AdminCall, _: Params) -> Answer:
    rows: list[dict[str, Any]] = [
        {
            "address": str(one.slow.address),
            "method": one.slow.method,
            "seconds": one.seconds,
            "at": one.at,
            "worker": name_of(call.node),
            "stack": call.content.text("stack", one.slow.stack),
        }
        for one in reversed(list(call.node.watchdog.recent))
    ]
    return {"rows": rows, "unanswered": []}


def _merged(params: Params, answers: Sequence[Answer]) -> Answer:
    found = joined(params, answers)
    found["rows"] = sorted(found["rows"], key=lambda row: -row["at"])
    return found


SLOW = Endpoint("slow", "look", Params, _slow, merge=_merged)
