"""The events of the runs below a remote run, as the agent that stands for it stores them: checked, numbered, bounded.

The other server is not trusted. An event is stored below the path of this agent, whatever it says. What has the wrong
type, or is too long, is cut or left out. The oldest events make room for new ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from sapwood.address import Address, PathSegment, checked_name
from sapwood.errors import InvalidName
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.events.events import ENDS, Event, tell
from sapwood.runs.remote.transport import NESTED_KINDS, NestedEvent, NestedEvents, NestedKind
from sapwood.runs.tables.runs_table import failure, preview
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema
from sapwood.wire import frames
from sapwood.wire import remote as wire

log = logging.getLogger(__name__)

NESTED = Schema("sapwood.runs", "nested")
MAX_EVENTS = 1000
"""Maximum number of events that are stored."""
MAX_BYTES = 2 * 1024 * 1024
"""Maximum size of all events that are stored."""
ROW_BYTES = 64
"""What a row counts for beside its texts."""
LATEST = 2.0**40
"""No event happened later than this."""
MAX_TOOL_CALL = 200
DROPPED_FIRST = {"progress": 0, "milestone": 1}


class NestedLog:
    """The events of the runs below the remote run that one agent stands for."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database
        self._closed = False
        self._has_left_out = False

    def cursor(self) -> str | None:
        """Return where the stream of the other server resumes."""
        if not self._db.has(NESTED):
            return None
        rows = self._db.execute("SELECT cursor FROM sapwood_nested_position")
        return rows[0][0] if rows else None

    def take(self, told: NestedEvents, run: str, session: str | None) -> None:
        """Store events, in this slice, and tell them. `run` is the run here, and `session` its name there."""
        if self._closed:
            return
        self._db.ensure(NESTED)
        found = [one for one in map(_checked, told.events[: wire.MAX_NESTED_EVENTS]) if one is not None]
        if len(found) < len(told.events) and not self._has_left_out:
            self._has_left_out = True  # once: the other server may send as many as it likes
            log.warning("invalid or too many events of nested runs, left out address=%s", self._actor.address)
        self._add((one, _parent(one, run, session)) for one in found)
        if isinstance(told.cursor, str) and len(told.cursor) <= wire.MAX_CURSOR:  # pyright: ignore[reportUnnecessaryIsInstance] - a transport may be wrong
            self._db.execute("INSERT OR REPLACE INTO sapwood_nested_position VALUES (1, ?)", told.cursor)

    def close(self, kind: NestedKind, reason: str) -> None:
        """The run is over: end, in this slice, the nested runs whose ends were not told. Nothing is taken after it."""
        self._closed = True
        if not self._db.has(NESTED):
            return
        running: dict[tuple[PathSegment, ...], dict[str, Event]] = {}
        for _, event in read(self._db, (), 0):
            runs = running.setdefault(event.path, {})
            if event.kind in ENDS:
                runs.pop(event.run_id or "", None)
            else:
                runs[event.run_id or ""] = event
        now = self._actor.host.clock.now()
        left = [event for runs in running.values() for event in runs.values()]
        self._add((_end(event, kind, reason, now), event.parent_run_id) for event in left)

    def _add(self, events: Iterable[tuple[NestedEvent, str | None]]) -> None:
        for one, parent in events:
            path, body = str(Address(one.path)), fitted(one.kind, one.body)
            if one.kind == "progress" or one.kind in ENDS:  # the last report counts, and none after the end
                self._db.execute(
                    "DELETE FROM sapwood_nested_events WHERE kind = 'progress' AND run = ? AND path = ?",
                    one.run_id,
                    path,
                )
            size = ROW_BYTES + len(path) + len(one.run_id.encode()) + len((parent or "").encode()) + len(body)
            self._db.execute(
                "INSERT INTO sapwood_nested_events (run, path, parent, seq, at, kind, bytes, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                one.run_id,
                path,
                parent,
                one.seq,
                one.at,
                one.kind,
                size,
                body.decode(),
            )
            whole = (*self._actor.address.segments, *one.path)
            told = msgspec.json.decode(body)
            tell(
                self._actor,
                Event(whole, one.run_id, parent, one.seq, one.at, one.kind, told, remote=len(one.path)),
            )
        self._make_room()

    def _make_room(self) -> None:
        """Delete the oldest events until the rest fits: first progress, then milestones, then starts and ends."""
        ((count, size),) = self._db.execute("SELECT count(*), total(bytes) FROM sapwood_nested_events")
        if count <= MAX_EVENTS and size <= MAX_BYTES:
            return
        rows = self._db.execute("SELECT kind, number, bytes FROM sapwood_nested_events")
        for _, number, bytes in sorted((DROPPED_FIRST.get(row[0], 2), row[1], row[2]) for row in rows):
            if count <= MAX_EVENTS and size <= MAX_BYTES:
                return
            self._db.execute("DELETE FROM sapwood_nested_events WHERE number = ?", number)
            count, size = count - 1, size - bytes


def read(database: Database, path: tuple[PathSegment, ...], after: int) -> Iterator[tuple[int, Event]]:
    """Yield the events after a number, each with its own, below the path of the agent that has stored them."""
    rows = database.execute(  # all at once: the database may be busy when the reader comes back
        "SELECT number, run, path, parent, seq, at, kind, body FROM sapwood_nested_events WHERE number > ?"
        " ORDER BY number",
        after,
    )
    for number, run, below, parent, seq, at, kind, body in rows:
        steps, told = Address.parse(below).segments, msgspec.json.decode(body)
        yield number, Event((*path, *steps), run, parent, seq, at, kind, told, remote=len(steps))


def fitted(kind: str, body: Any) -> bytes:
    """Return the body of an event as JSON, in the form that its kind has, and cut if it is too long."""
    for shorten in (lambda: body, lambda: preview(body), lambda: None):
        try:
            shaped = _shaped(kind, shorten())
            msgspec.msgpack.encode(shaped)  # it is copied to subscribers; JSON has numbers that this has not
            text = msgspec.json.encode(shaped)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):  # no JSON
            continue
        if len(text) <= wire.MAX_NESTED_BODY_BYTES and not frames.is_deep(text):
            return text
    return b"null"


def _shaped(kind: str, body: Any) -> Any:
    if kind == "completed":
        return body
    told = cast("dict[str, Any]", body if isinstance(body, dict) else {})
    if kind == "started":
        order, call = told.get("order"), told.get("toolCallId")
        shaped: dict[str, Any] = {"input": told.get("input"), "order": order if isinstance(order, int) else 0}
        if isinstance(call, str) and len(call) <= MAX_TOOL_CALL:
            shaped["toolCallId"] = call
        return shaped | ({"display": told["display"]} if "display" in told else {})
    if kind in ENDS:
        error = told.get("error")
        return {**told, "error": error if isinstance(error, str) else f"The run ended with {kind}."}
    return told


def _checked(told: Any) -> NestedEvent | None:
    """Return an event of another server; `None` if it cannot be one."""
    if not isinstance(told, NestedEvent) or told.kind not in NESTED_KINDS:
        return None
    try:
        path = tuple(PathSegment(checked_name(step.type), checked_name(step.name)) for step in told.path)
        for id in (told.run_id, *(() if told.parent_run_id is None else (told.parent_run_id,))):
            checked_name(id)
    except (InvalidName, TypeError, AttributeError):
        return None
    is_path = 0 < len(path) <= wire.MAX_NESTED_PATH and len(str(Address(path))) <= wire.MAX_NESTED_PATH_BYTES
    is_number = type(told.seq) is int and 0 <= told.seq < wire.MAX_NUMBER
    is_time = type(told.at) in (int, float) and math.isfinite(told.at) and 0 <= told.at < LATEST
    return told if is_path and is_number and is_time else None


def _parent(event: NestedEvent, run: str, session: str | None) -> str | None:
    """Return the run that started a nested run. The name of the session is a secret, and is told to no client."""
    parent = event.parent_run_id
    return run if parent == session or (parent is None and len(event.path) == 1) else parent


def _end(event: Event, kind: NestedKind, reason: str, at: float) -> NestedEvent:
    """Return the end of a nested run that the other server did not tell."""
    assert event.run_id is not None
    is_given_up = kind == "interrupted"
    body = failure(event.path[-1].type, kind, error=None, reason=reason, still_running=is_given_up)
    return NestedEvent(event.path, event.run_id, cast("Any", kind), at, event.seq + 1, body)
