"""Events on a wire: one JSON object each, one line each, or one server-sent event each."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from sapwood.errors import PathSegment

_text = msgspec.json.Encoder().encode

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
QUIET = {NDJSON: b"\n", SSE: b": nothing happened\n\n"}
"""What is sent now and then so that a connection is not taken for dead; readers skip it."""


class ShownEvent(Protocol):
    """An event, as far as a wire is concerned."""

    @property
    def path(self) -> tuple[PathSegment, ...]: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def parent_run_id(self) -> str | None: ...
    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> Any: ...
    @property
    def remote(self) -> int: ...


class Events:
    """Events as they are."""

    def of(self, event: ShownEvent) -> list[dict[str, Any]]:
        told = {
            "path": [{"type": step.type, "name": step.name} for step in event.path],
            "runId": event.run_id,
            "parentRunId": event.parent_run_id,
            "seq": event.seq,
            "at": milliseconds(event.at),
            "kind": event.kind,
            "body": event.body,
        }
        return [{**told, "remote": event.remote} if event.remote else told]


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def encoded(told: list[dict[str, Any]], cursor: str | None, media: str) -> bytes:
    """Return one event as it is sent; only its last part has the cursor from which a reader may continue."""
    parts: list[bytes] = []
    for at, one in enumerate(told):
        last = cursor if at == len(told) - 1 else None
        if media == SSE:
            parts.append((b"id: " + last.encode() + b"\n" if last else b"") + b"data: " + _text(one) + b"\n\n")
        else:
            parts.append(_text({**one, "cursor": last} if last else one) + b"\n")
    return b"".join(parts)
