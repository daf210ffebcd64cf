"""`logs`: the last log records of a process, and then new ones as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Event, MaybeAgent
from sapwood.admin.log_ring import LogEntry, LogRing
from sapwood.capabilities import redaction
from sapwood.web.stats import name_of

EVERY = 0.5
"""Seconds between two looks for new records."""
AT_ONCE = 500
"""Records in one event."""


class Logs(MaybeAgent):
    level: Literal["debug", "info", "warning", "error"] = "debug"
    after: int | dict[str, int] = 0


async def _logs(call: AdminCall, params: Logs) -> AsyncIterator[Event]:
    ring, worker = call.node.shared(LogRing), name_of(call.node)
    seen = params.after if isinstance(params.after, int) else params.after.get(worker, 0)
    if seen > ring.last:
        seen = 0  # of the process before
    about = None if params.address is None else str(Address.parse(params.address))
    severity = logging.getLevelNamesMapping()[params.level.upper()]
    is_first = True
    while True:
        page = ring.after(seen, AT_ONCE)
        seen = page[-1].number if page else seen
        meant = [one for one in page if one.severity >= severity and (about is None or one.is_about(about))]
        if meant or is_first:
            yield "records", {"records": [_shown(call, one, worker) for one in meant]}
        is_first = False
        await asyncio.sleep(0 if len(page) == AT_ONCE else EVERY)


def _shown(call: AdminCall, entry: LogEntry, worker: str) -> dict[str, object]:
    message, exception = entry.message, entry.exception
    if entry.logger == redaction.log.name:
        exception = None  # that the app's function failed: if it were called for this, it would fail and log again
    else:
        message, exception = call.content.text("log", message), call.content.text("log", exception)
    return {
        "number": entry.number,
        "time": entry.time,
        "level": entry.level,
        "logger": entry.logger,
        "message": message,
        "address": entry.address,
        "exception": exception,
        "worker": worker,
    }


def _joined(params: Logs, ends: Sequence[Answer]) -> Answer:
    return ends[0]


LOGS = Endpoint("logs", "content", Logs, stream=_logs, merge=_joined)
