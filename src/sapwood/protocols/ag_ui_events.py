"""Events of a turn as events of AG-UI. Every stream is complete in itself: what it mentions, it has begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.address import Address, PathSegment
from sapwood.protocols.ag_ui_messages import DENIED, Frame, reasoning_id, result_id, text_id, text_of
from sapwood.runs.events.events import ENDS, Event

Path = tuple[PathSegment, ...]
WORDS = {"text": "TEXT_MESSAGE", "reasoning": "REASONING_MESSAGE"}
SUSPENDED = {"type": "suspended"}


@dataclass(slots=True)
class Subagent:
    """A run of a sub-agent that a client was told of."""

    id: str
    path: Path
    """The path of the agent, from the agent that the client talks to."""
    started: Frame


@dataclass(slots=True)
class Spoken:
    """A text, a reasoning or a tool call that has begun and not ended."""

    kind: str
    id: str
    who: str | None
    first: int
    """The number of the event that began it."""
    name: str = ""
    """The name of the tool."""
    is_empty: bool = True


class Projection:
    """Makes the events of AG-UI of those of one turn."""

    def __init__(self, message: str, depth: int) -> None:
        self._message = message
        """The id of the message that the turn writes."""
        self._depth = depth
        self._open: dict[tuple[str | None, str], Spoken] = {}
        self._counts: dict[str | None, Counter[str]] = {None: Counter()}
        self._own: list[Spoken] = []
        """What the agent itself has said."""
        self.subagents: dict[str, Subagent] = {}
        """The sub-agents that work, in the order of their starts."""
        self._closed: set[str] = set()
        self.positions: dict[tuple[Path, str | None], int] = {}
        """The number of the last event of every run and turn."""
        self.unanswered: dict[str, str] = {}
        """The tool calls of the agent itself that have no result, with the names of the tools."""
        self._answered: set[str] = set()
        self._called: set[str] = set()
        """The tool calls that were told whole. A turn that continues after an answer streams its call again."""

    def of(self, event: Event) -> Iterator[Frame]:
        """Yield what an event is in AG-UI."""
        self.positions[event.path, event.run_id] = event.seq
        who = self._who(event)
        if event.kind in ("waiting", "resumed", "retracted") or (who is None and event.kind in ("started", *ENDS)):
            return
        if who is not None and event.kind in ENDS:
            yield from self._end(who, event)
            return
        if who is not None and who not in self.subagents and who not in self._closed:
            yield self._start(who, event)
        if event.kind == "chunk":
            for frame in self._chunk(who, event.body, event.seq):
                yield frame if who is None else {**frame, "subagentRunId": who}
        elif event.kind in ("progress", "milestone"):
            yield self._activity(who, event)

    def _who(self, event: Event) -> str | None:
        """Return the id of the sub-agent's work that an event is about; `None` for the agent itself."""
        path = event.path[self._depth :]
        if not path:
            return None
        return event.run_id or str(Address(path))

    # Sub-agents.

    def _start(self, id: str, event: Event) -> Frame:
        path = event.path[self._depth :]
        body: dict[str, Any] = event.body if event.kind == "started" else {}
        above = next((one for one in reversed(self.subagents.values()) if one.path == path[:-1]), None)
        parent = event.parent_run_id if event.parent_run_id in self.subagents else above.id if above else None
        frame: Frame = {"type": "SUBAGENT_STARTED", "subagentRunId": id, "name": path[-1].type}
        if parent is not None:
            frame["parentSubagentRunId"] = parent
        if body.get("toolCallId"):
            frame["parentToolCallId"] = _call_id(parent, body["toolCallId"])
        self.subagents[id] = Subagent(id, path, frame)
        return frame

    def _end(self, id: str, event: Event) -> Iterator[Frame]:
        if id not in self.subagents:
            return
        yield from self.close(id)
        del self.subagents[id]
        self._closed.add(id)
        if event.kind == "completed":
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": id, "result": event.body}
            return
        body: dict[str, Any] = event.body or {}
        told = {"message": str(body.get("error") or event.kind), "code": body.get("reason") or event.kind}
        yield {"type": "SUBAGENT_ERROR", "subagentRunId": id, **told}

    def suspend(self, interrupts: dict[str, list[str]]) -> Iterator[Frame]:
        """Yield the end of everything that is open, with the ids of the interrupts of each sub-agent."""
        for who in (*reversed(self.subagents), None):
            yield from self.close(who)
        for id in reversed(self.subagents):
            outcome = {**SUSPENDED, "interruptIds": interrupts[id]} if id in interrupts else SUSPENDED
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": id, "outcome": outcome}

    def resume(self) -> Iterator[Frame]:
        """Yield the start of everything that an earlier stream began: it continues in this one."""
        for one in self.subagents.values():
            yield one.started
        for one in self._open.values():
            who = {} if one.who is None else {"subagentRunId": one.who}
            yield {**_begun(one), **who}

    def at(self, path: Path) -> Subagent | None:
        """Return the sub-agent that works at a path."""
        return next((one for one in reversed(self.subagents.values()) if one.path == path), None)

    # What is said.

    def close(self, who: str | None) -> Iterator[Frame]:
        """Yield the ends of what one agent has begun to say."""
        for key, one in list(self._open.items()):
            if one.who == who:
                del self._open[key]
                yield _ended(one) if who is None else {**_ended(one), "subagentRunId": who}

    def retract(self, after: int) -> tuple[list[Frame], list[str]]:
        """Take back what the agent itself has said after an event: return what ends it, and the messages' ids."""
        gone = [one for one in self._own if one.first > after]
        self._own = [one for one in self._own if one.first <= after]
        self._counts[None].subtract(one.kind for one in gone)
        frames = list(self.close(None))
        for one in gone:
            self.unanswered.pop(one.id, None)
            self._answered.discard(one.id)
            self._called.discard(one.id)
        return frames, [id for one in gone for id in (one.id, result_id(one.id))]

    def _chunk(self, who: str | None, chunk: dict[str, Any], seq: int) -> Iterator[Frame]:
        kind: str = chunk["type"]
        word, _, what = kind.rpartition("-")
        if word in WORDS:
            yield from self._words(who, word, what, chunk, seq)
        elif kind.startswith("tool-"):
            yield from self._tool(who, kind, chunk, seq)
        elif kind.startswith("data-"):
            yield {"type": "CUSTOM", "name": kind, "value": chunk.get("data")}
        elif kind in ("file", "source-url", "source-document"):
            yield {"type": "CUSTOM", "name": kind, "value": {key: chunk[key] for key in chunk if key != "type"}}

    def _words(self, who: str | None, word: str, what: str, chunk: dict[str, Any], seq: int) -> Iterator[Frame]:
        key = (who, chunk["id"])
        one = self._open.get(key)
        if one is None:
            if what == "end":
                return
            one = self._begin(key, word, self._next_id(who, word), seq)
            yield _begun(one)
        if what == "delta":
            yield {"type": f"{WORDS[word]}_CONTENT", "messageId": one.id, "delta": chunk["delta"]}
        elif what == "end":
            del self._open[key]
            yield _ended(one)

    def _next_id(self, who: str | None, word: str) -> str:
        counts = self._counts.setdefault(who, Counter())
        counts[word] += 1
        return (text_id if word == "text" else reasoning_id)(who or self._message, counts[word])

    def _begin(self, key: tuple[str | None, str], kind: str, id: str, seq: int) -> Spoken:
        one = self._open[key] = Spoken(kind, id, key[0], seq)
        if key[0] is None:
            self._own.append(one)
        return one

    def _tool(self, who: str | None, kind: str, chunk: dict[str, Any], seq: int) -> Iterator[Frame]:
        id, key = _call_id(who, chunk["toolCallId"]), (who, chunk["toolCallId"])
        one = self._open.get(key)
        if kind in ("tool-input-start", "tool-input-available") and one is None and id not in self._called:
            one = self._begin(key, "tool", id, seq)
            one.name = chunk["toolName"]
            if who is None:
                self.unanswered[id] = one.name
            yield _begun(one)
        if one is not None and kind == "tool-input-delta":
            one.is_empty = False
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": chunk["inputTextDelta"]}
        elif one is not None and kind != "tool-input-start":
            if kind == "tool-input-available" and one.is_empty:
                arguments = msgspec.json.encode(chunk["input"]).decode()
                yield {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": arguments}
            del self._open[key]
            self._called.add(id)
            yield _ended(one)
        if kind in ("tool-output-available", "tool-output-error", "tool-output-denied", "tool-input-error"):
            yield from self.result(id, _result(kind, chunk))

    def result(self, id: str, content: str) -> Iterator[Frame]:
        """Yield the result of a tool call, unless it was told: a turn tells it again if it continues after a crash."""
        if self.unanswered.pop(id, None) is None and id in self._answered:
            return
        self._answered.add(id)
        told = {"messageId": result_id(id), "toolCallId": id, "role": "tool", "content": content}
        yield {"type": "TOOL_CALL_RESULT", **told}

    def _activity(self, who: str | None, event: Event) -> Frame:
        body: dict[str, Any] = event.body
        name = event.kind if event.kind == "progress" else f"milestone-{body.get('sequence')}"
        frame: Frame = {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": f"{who or self._message}-{name}",
            "activityType": f"sapwood.{event.kind}",
            "content": body,
            "replace": True,
        }
        return frame if who is None else {**frame, "subagentRunId": who}


def _call_id(who: str | None, id: str) -> str:
    """Return the id of a tool call: models count them by agent, clients want them to be unique."""
    return id if who is None else f"{who}/{id}"


def call_id(who: Subagent | None, id: str) -> str:
    """Return the id by which a client knows a tool call of a sub-agent, or of the agent itself."""
    return _call_id(None if who is None else who.id, id)


def _result(kind: str, chunk: dict[str, Any]) -> str:
    if kind == "tool-output-denied":
        return DENIED
    return text_of(chunk["output"] if kind == "tool-output-available" else chunk.get("errorText"))


def _begun(one: Spoken) -> Frame:
    if one.kind == "tool":
        return {"type": "TOOL_CALL_START", "toolCallId": one.id, "toolCallName": one.name}
    role = "assistant" if one.kind == "text" else "reasoning"
    return {"type": f"{WORDS[one.kind]}_START", "messageId": one.id, "role": role}


def _ended(one: Spoken) -> Frame:
    if one.kind == "tool":
        return {"type": "TOOL_CALL_END", "toolCallId": one.id}
    return {"type": f"{WORDS[one.kind]}_END", "messageId": one.id}
