"""One run of AG-UI as server-sent events: what the client lacks, then the turn, until it ends or waits for answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from sapwood.errors import Aborted, Refused, Unavailable
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.protocols.ag_ui_events import Projection, call_id
from sapwood.protocols.ag_ui_input import RunInput
from sapwood.protocols.ag_ui_messages import Frame, Message, Messages, flat, key_of, result_in
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.json_patch import patch_of
from sapwood.runs.events.events import ENDS, Event
from sapwood.runs.tables.question import Question

VERSION = "1.0"
KEEP_ALIVE = b": nothing happened\n\n"
DELTAS = ("text-delta", "reasoning-delta", "tool-input-delta")
APPROVAL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "arguments": {"type": "object"},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
    "additionalProperties": False,
}
STOPPED = "The server stops. Run again with the same runId to continue."


def interrupt_id(question: Question) -> str:
    """Return the id by which clients answer a question: as it was shown, and no other."""
    return f"{question.full_id}#{question.digest[:16]}"


class RunStream:
    """The events of one run for one client."""

    def __init__(self, exchange: Exchange, given: RunInput) -> None:
        self._exchange, self._given = exchange, given
        self._ids = {"threadId": given.thread_id, "runId": given.run_id}
        self._state: Any = None
        self._waiting: set[Any] = set()
        """The paths of the agents that wait for answers."""

    async def nothing(self) -> AsyncGenerator[bytes, None]:
        """Yield the conversation to a client that connects while nothing runs."""
        yield _sse(self._started())
        async for frame in self._caught_up(flat(self._exchange.messages())):
            yield _sse(frame)
        yield _sse(self._finished({"type": "success"}))

    async def frames(self, turn: str, begin: str | None, last: str | None) -> AsyncGenerator[bytes, None]:
        """Yield a turn, as server-sent events.

        Args:
            turn: The id of the turn.
            begin: The cursor of the last event before this run; `None` if the run begins with the turn.
            last: The cursor of the last event that the client has; `None` if it does not continue a stream.
        """
        try:
            async for line in self._frames(turn, begin, last):
                yield line
        except (Aborted, Refused, Unavailable) as error:
            code = "refused" if isinstance(error, Refused) else "unavailable"
            yield _sse({"type": "RUN_ERROR", "message": str(error), "code": code})

    async def _frames(self, turn: str, begin: str | None, last: str | None) -> AsyncGenerator[bytes, None]:
        exchange, after = self._exchange, last or begin
        self._turn, self._is_resumed = turn, last is not None
        self._projection, self._messages = await self._standing(turn, after)
        if not self._is_resumed:
            yield _sse(self._started())
            if self._is_past(turn):
                async for frame in self._caught_up(flat(exchange.messages())):
                    yield _sse(frame)
                yield _sse(self._result(exchange.turn(turn)))
                return
        async with aclosing(exchange.events(turn, after=after, sort=not self._is_resumed)) as events:
            async for lines in self._followed(events):
                yield lines

    async def _followed(self, events: AsyncGenerator[Event | None, None]) -> AsyncGenerator[bytes, None]:
        exchange, is_told = self._exchange, self._is_resumed
        if not is_told and _has_begun(exchange, self._turn):
            is_told = True
            yield _lines([frame async for frame in self._preamble()], None)
        async for event in events:
            frames: list[Frame] = []
            if event is not None and not is_told:  # a turn that has waited for another
                is_told = True
                frames += [frame async for frame in self._preamble()]
            frames += [frame async for frame in self._told(event)]
            cursor, end = None if event is None else event.cursor, await self._over(event)
            if frames or end:
                yield _lines([*frames, *end], cursor)
            elif event is None:
                yield KEEP_ALIVE
            if end:
                return
        yield _sse({"type": "RUN_ERROR", "message": STOPPED, "code": "unavailable"})

    async def _over(self, event: Event | None) -> list[Frame]:
        """Return the end of the run, if its turn has ended or waits for this client."""
        exchange = self._exchange
        if event is not None and event.kind in ENDS and event.path == exchange.address.segments:
            return self._end(event)
        is_waiting = bool(self._waiting) and exchange.waits(self._turn)
        return await self._interrupted() if is_waiting else []

    async def _standing(self, turn: str, after: str | None) -> tuple[Projection, Messages]:
        """Return what a client knows of a turn up to an event."""
        exchange = self._exchange
        projection = Projection(exchange.message_of(turn), len(exchange.address.segments))
        messages = Messages()
        if after is not None:
            all_events, _ = await exchange.stored(turn)
            later, _ = await exchange.stored(turn, after=after)
            to_come = {_key(event) for event in later}
            for event in all_events:
                if _key(event) in to_come:
                    continue
                if event.kind == "retracted" and event.path == exchange.address.segments:
                    messages.forget(projection.retract(event.body["after"])[1])
                for frame in projection.of(event):
                    messages.take(frame)
        return projection, messages

    def _is_past(self, turn: str) -> bool:
        """Return whether a turn is over, and is not the last of the conversation or can no longer be replayed."""
        exchange = self._exchange
        if _is_open(exchange, turn):
            return False
        own = exchange.message_of(turn)
        return any(one["id"] == own for one in exchange.messages()[:-1]) or not exchange.can_replay(turn)

    # What the client lacks.

    async def _preamble(self) -> AsyncIterator[Frame]:
        for _ in self._results(only_client=True):
            pass  # what the page has answered is among the messages
        own = self._exchange.message_of(self._turn)
        stored = [one for one in self._exchange.messages() if one["id"] != own]
        async for frame in self._caught_up([*flat(stored), *self._messages.all()]):
            yield frame
        for frame in self._projection.resume():
            yield frame

    async def _caught_up(self, expected: Sequence[Message]) -> AsyncIterator[Frame]:
        """Yield the conversation and the state, as far as the client has others."""
        await self._exchange.settle()
        wanted = [key_of(one) for one in expected]
        known, given = set(wanted), [one for one in self._given.messages if one["role"] != "activity"]
        # What helpers have said in earlier turns is not known here, and the client may keep it.
        has = [key_of(one) for one in given if "subagentRunId" not in one or key_of(one) in known]
        if has != wanted:
            yield {"type": "MESSAGES_SNAPSHOT", "messages": list(expected)}
        self._state = self._exchange.state()
        if self._state is not None and self._state != self._given.state:
            yield {"type": "STATE_SNAPSHOT", "snapshot": self._state}

    # What happens.

    async def _told(self, event: Event | None) -> AsyncIterator[Frame]:
        if event is not None:
            async for frame in self._projected(event):
                yield frame
        async for frame in self._changed(event):
            yield frame

    async def _projected(self, event: Event) -> AsyncIterator[Frame]:
        if event.kind == "waiting":
            self._waiting.add(event.path)
        elif event.kind == "resumed":
            self._waiting.discard(event.path)
        elif event.kind == "retracted" and event.path == self._exchange.address.segments:
            async for frame in self._retracted(event):
                yield frame
            return
        for frame in self._projection.of(event):
            self._messages.take(frame)
            yield frame
            if frame["type"] == "TOOL_CALL_END" and "subagentRunId" not in frame:
                for more in self._results(only_client=True):
                    yield more

    async def _retracted(self, event: Event) -> AsyncIterator[Frame]:
        frames, gone = self._projection.retract(event.body["after"])
        self._messages.forget(gone)
        for frame in frames:
            yield frame
        if gone or self._is_resumed:
            await self._exchange.settle()
            own = self._exchange.message_of(self._turn)
            stored = [one for one in self._exchange.messages() if one["id"] != own]
            yield {"type": "MESSAGES_SNAPSHOT", "messages": [*flat(stored), *self._messages.all()]}

    def _results(self, *, only_client: bool = False) -> Iterator[Frame]:
        """Yield the results of the agent's tool calls that are stored and were not streamed: those of clients."""
        unanswered = dict(self._projection.unanswered)
        if only_client:
            names = {one["name"] for one in self._exchange.client_tools(self._turn)}
            unanswered = {id: name for id, name in unanswered.items() if name in names}
        answer = self._exchange.answer_of(self._turn) if unanswered else None
        for part in answer["parts"] if answer is not None else ():
            if part.get("toolCallId") in unanswered and (content := result_in(part)) is not None:
                for frame in self._projection.result(part["toolCallId"], content):
                    self._messages.take(frame)
                    yield frame

    async def _changed(self, event: Event | None) -> AsyncIterator[Frame]:
        """Yield how the state of the agent has changed."""
        if event is not None and (event.kind == "chunk" and event.body["type"] in DELTAS):
            return
        state = self._exchange.state()
        if state == self._state:
            return
        await self._exchange.settle()
        before, self._state = self._state, state
        if before is None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": state}
        else:
            yield {"type": "STATE_DELTA", "delta": patch_of(before, state)}

    # How it ends.

    async def _interrupted(self) -> list[Frame]:
        """Return the end of a run whose turn waits for this client; nothing if it waits for someone else."""
        exchange = self._exchange
        interrupts: list[Frame] = []
        raised: dict[str, list[str]] = {}
        calls: list[str] = []
        for question in await exchange.questions():
            subagent = self._projection.at(question.path)
            if question.path and subagent is None:
                continue  # another turn, or another run, asks it
            if question.kind == "client":
                calls.append(call_id(subagent, question.id))
                continue
            interrupts.append(_interrupt(question, subagent))
            if subagent is not None:
                raised.setdefault(subagent.id, []).append(interrupts[-1]["id"])
        if not interrupts and not calls:
            return []
        await exchange.settle()
        frames = [*self._results(), *self._projection.suspend(raised)]
        if interrupts:
            return [*frames, self._finished({"type": "interrupt", "interrupts": interrupts})]
        outcome: dict[str, Any] = {"type": "success"}
        if self._given.protocol_version is not None:
            outcome["pendingToolCallIds"] = calls
        return [*frames, self._finished(outcome)]

    def _end(self, event: Event) -> list[Frame]:
        """Return the end of a run whose turn has ended."""
        body: dict[str, Any] = event.body or {}
        turn = self._exchange.turn(self._turn)
        if turn is None:  # the conversation was cleared
            return [*self._projection.suspend({}), self._cancelled()]
        frames = [*self._results(), *self._projection.suspend({})]
        if event.kind in ("completed", "cancelled"):
            return [*frames, self._result(turn)]
        error = {"message": str(body.get("error") or event.kind), "code": body.get("reason") or event.kind}
        return [*frames, {"type": "RUN_ERROR", **error}]

    def _result(self, turn: Any) -> Frame:
        """Return the end of a turn, as it is stored."""
        if turn.status in ("cancelled", "skipped"):
            return self._cancelled()
        if turn.status != "completed":
            why = for_clients(turn.error) or "The turn failed."
            return {"type": "RUN_ERROR", "message": why, "code": turn.reason or turn.status}
        frame = self._finished({"type": "success"})
        return frame if turn.output is None else {**frame, "result": turn.output}

    def _cancelled(self) -> Frame:
        """Return the end of a run that was cancelled. Clients before 1.0 do not know this outcome."""
        return self._finished({"type": "cancelled"} if self._given.protocol_version is not None else None)

    def _started(self) -> Frame:
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION}

    def _finished(self, outcome: dict[str, Any] | None) -> Frame:
        return {"type": "RUN_FINISHED", **self._ids, **({} if outcome is None else {"outcome": outcome})}


def _interrupt(question: Question, subagent: Any) -> Frame:
    told: Frame = {"id": interrupt_id(question)}
    if subagent is not None:
        told["subagentRunId"] = subagent.id
    path = [{"type": one.type, "name": one.name} for one in question.path]
    if question.kind == "approval":
        arguments = msgspec.json.encode(question.arguments).decode()
        return {
            **told,
            "reason": "tool_call",
            "message": f"Allow {question.tool}({arguments})?",
            "toolCallId": call_id(subagent, question.id),
            "responseSchema": APPROVAL_SCHEMA,
            "metadata": {"tool": question.tool, "arguments": question.arguments, "path": path},
        }
    schema = question.schema or {"type": "string"}
    if question.options is not None:
        schema = {"type": "string", "enum": list(question.options)}
    about = {"message": question.prompt, "responseSchema": schema, "metadata": {"kind": question.kind, "path": path}}
    return {**told, "reason": "input_required", **about}


def _is_open(exchange: Exchange, turn: str) -> bool:
    found = exchange.turn(turn)
    return found is not None and found.status in ("queued", "running", "waiting")


def _has_begun(exchange: Exchange, turn: str) -> bool:
    found = exchange.turn(turn)
    return found is not None and found.status != "queued"


def _key(event: Event) -> tuple[Any, ...]:
    body = event.body if event.kind in ("milestone", "progress") else None
    return (event.path, event.run_id, event.seq, event.kind, str(body))


def _sse(frame: Frame, cursor: str | None = None) -> bytes:
    id = f"id: {cursor}\n".encode() if cursor else b""
    return id + b"data: " + msgspec.json.encode(frame) + b"\n\n"


def _lines(frames: Sequence[Frame], cursor: str | None) -> bytes:
    """Return the events of one event of the turn: only the last has the cursor after it."""
    last = len(frames) - 1
    return b"".join(_sse(frame, cursor if at == last else None) for at, frame in enumerate(frames))
