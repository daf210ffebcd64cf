"""One conversation: what is said joins it in turn, is answered one turn after the other, and is told to everybody.

A turn is a fiber, so it goes on after a crash. Where somebody has to be asked it stops, at
no cost, until the answer comes.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec

from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.schedules import Schedules
from sapwood.chat.chunks import Chunk, assembled, closed
from sapwood.chat.driving import CANCELLED, Driver
from sapwood.chat.stream import ChatStream
from sapwood.chat.transcript import Transcript, UIMessage
from sapwood.chat.turns import Row, Turns
from sapwood.errors import Refused, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.kernel.sockets import Socket
from sapwood.when import After
from sapwood.wire import chat as wire

POLICIES = ("queue", "latest", "merge", "drop", "debounce", "interrupt")
SETTLED = 0.03
"""Seconds between the last chunk of a continuation and the end: sooner, clients keep it as a message of its own."""
UNANSWERED = "Nobody answered; the user said something else instead."


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of a chat agent."""

    id: str
    """What it is called by."""
    status: str
    """`queued`, `running`, `waiting`, `completed`, `error`, `aborted` or `skipped`."""
    text: str = ""
    """What was said, all text of it."""
    output: Any = None
    """What it ended with: the text, or what `output_type` asks for, as what JSON has."""
    error: str | None = None
    """What went wrong."""
    steps: int = 0
    """How often the model was asked."""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    """Requests, tokens and cost, by model; a cost of None is one that nobody knows."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A tool call that waits for a person."""

    id: str
    """The tool call's id: what to approve or deny."""
    tool: str
    """The tool's name."""
    arguments: Any
    """What it would be called with."""


class Conversation:
    """The conversation of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self.transcript = Transcript(actor.database, actor.host.clock)
        self.turns = Turns(actor.database, actor.host.clock)
        self.stream = ChatStream(actor, self.turns)
        self.driver = Driver(actor, self)
        self._over: dict[int, list[Future[None]]] = {}
        self._owner: Socket | None = None
        """Whose answer the running continuation goes on from."""

    def ask(
        self,
        messages: Sequence[UIMessage],
        *,
        id: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
        regenerate: bool = False,
        sender: Socket | None = None,
    ) -> Row:
        """Accept what somebody said, and have it answered when it is its turn."""
        self._actor.check_use()
        name = id or f"turn-{uuid4().hex[:12]}"
        if (known := self.turns.get(name)) is not None:
            return known
        policy = "queue" if regenerate else self._agent.concurrency
        busy = self.turns.running() is not None or bool(self.turns.queued())
        new = self._new(messages)
        if busy and policy == "drop":
            return self._skip(name, [message["id"] for message in new], sender)
        if busy and policy in ("latest", "merge", "debounce"):
            new = self._supersede(new, merge=policy != "latest")
        row = self.turns.add(
            name,
            f"msg-{uuid4().hex}",
            new,
            asked=[message["id"] for message in new] or self._last_asked(),
            body=msgspec.json.encode(body or {}).decode(),
            client_tools=msgspec.json.encode(client_tools or []).decode(),
        )
        if regenerate:
            self._take_back(messages)
        if busy and policy == "interrupt":
            self.cancel()
        if policy == "debounce":
            wish = After(timedelta(seconds=self._agent.debounce), key="begin turn")
            self._actor.of(Schedules).cancel("begin turn")
            self._actor.of(Schedules).add(wish, self._agent.begin_turn, (), {})
        elif not busy:
            self._begin(row, sender)
        return self._of(row.number)

    def _of(self, number: int) -> Row:
        row = self.turns.of(number)
        if row is None:
            raise Refused("The turn was cleared away.")
        return row

    def _new(self, messages: Sequence[UIMessage]) -> list[UIMessage]:
        """Return what is new of what a client has; what it says the assistant said is not believed."""
        for message in messages:
            if not isinstance(message.get("parts"), list) or not isinstance(message.get("role"), str):
                raise Refused("A message has a role and parts.")
        stored = {id for id, _ in self.transcript.ids()}
        stored |= {message["id"] for row in self.turns.queued() for message in msgspec.json.decode(row.said)}
        new = [message for message in messages if message["role"] == "user" and message.get("id") not in stored]
        return [message if message.get("id") else {**message, "id": f"msg-{uuid4().hex}"} for message in new]

    def _last_asked(self) -> list[str]:
        return [id for id, role in self.transcript.ids() if role == "user"][-1:]

    def _skip(self, name: str, asked: Sequence[str], sender: Socket | None) -> Row:
        row = self.turns.add(name, "", [], asked=asked, body="{}", client_tools="[]")
        self.turns.end(row.number, "skipped")
        if sender is not None:
            self.stream.tell_one(sender, wire.messages(self.transcript.text()))
            self.stream.tell_one(sender, wire.done(name, "skipped", asked=list(asked)))
        return self._of(row.number)

    def _supersede(self, new: Sequence[UIMessage], *, merge: bool) -> list[UIMessage]:
        """Skip the turns that wait; return what the new one has to answer."""
        kept: list[UIMessage] = []
        for row in self.turns.queued():
            if merge:
                kept += msgspec.json.decode(row.said)
            self._end_queued(row, "skipped")
        return [*kept, *new]

    def _end_queued(self, row: Row, status: str) -> None:
        self.turns.end(row.number, status)
        self.stream.tell(wire.done(row.stream, status, asked=row.asked_ids()))
        self._tell_over(row.number)

    def _take_back(self, messages: Sequence[UIMessage]) -> None:
        """Take back what follows the last message that the client still has."""
        kept = {message.get("id") for message in messages}
        ids = [id for id, _ in self.transcript.ids()]
        last = max((at for at, id in enumerate(ids) if id in kept), default=-1)
        if last >= 0:
            self.transcript.remove(ids[last + 1 :])

    def begin_next(self) -> None:
        """Let the next turn begin, if none runs."""
        queued = self.turns.queued()
        if self.turns.running() is not None:
            return
        if queued:
            self._begin(queued[0])
        else:
            self.stream.release_parked()

    def _begin(self, row: Row, sender: Socket | None = None) -> None:
        """Let a turn begin: what was said joins the conversation."""
        self._close_waiting()
        said: list[UIMessage] = msgspec.json.decode(row.said)
        for message in said:
            self.transcript.put(message)
        if said:
            self.transcript.add(said[-1]["id"], _request_of(said))
            self.stream.tell(wire.messages(self.transcript.text()), without=sender)
        self.turns.set(row.number, status="running", said="[]")
        self._drive(row.number)

    def _drive(self, number: int) -> None:
        self._actor.of(Agenda).fibers.launch(f"turn {number}", self._agent.drive_turn, (number,), {})

    def _close_waiting(self) -> None:
        """A turn that waits for an answer will not get it: it ends as it is."""
        from pydantic_ai.messages import ModelRequest, ToolReturnPart

        waiting = self.turns.waiting()
        if waiting is None:
            return
        calls = [call for call in self.turns.calls(waiting.number) if call.asked is not None]
        parts = [ToolReturnPart(call.name, UNANSWERED, tool_call_id=call.id, outcome="interrupted") for call in calls]
        if parts:
            self.transcript.add(waiting.message, ModelRequest(parts=[*parts]))
        message = self.transcript.get(waiting.message)
        if message is not None:
            self.transcript.put(closed(message))
        self.turns.end(waiting.number, "completed")
        self._tell_over(waiting.number)

    async def end(self, number: int, status: str, *, error: str | None = None) -> None:
        """Store the message a turn has made, tell everybody, and let the next turn begin."""
        row = self._of(number)
        if status == "completed":
            self.stream.put({"type": "finish"})
        self.stream.flush()
        chunks = self.stream.stored(number)
        message = assembled(chunks, self.transcript.get(row.message) or _assistant(row.message))
        if status in ("aborted", "error"):
            message = closed(message)
            self._keep_partial(row, chunks)
        if message["parts"]:
            self.transcript.put(message)
        if row.continues:
            await self._actor.leave()
            await asyncio.sleep(SETTLED)
            self._actor.check_live()
        if status == "waiting":
            self.turns.set(number, status="waiting", next_seq=self.stream.next_seq)
        else:
            self.turns.end(number, status, error)
        self.stream.tell(wire.messages(self.transcript.text()))
        self._tell_done(row, "completed" if status == "waiting" else status, error)
        self.stream.end()
        self._owner = None
        if status != "error":
            self._actor.database.execute("DELETE FROM sapwood_chunks WHERE turn = ?", number)
        self._tell_over(number)
        if status == "waiting":
            self._maybe_go_on(number)
        else:
            self.begin_next()
            await self._tell_agent(self.shown(self._of(number)))

    async def _tell_agent(self, turn: Turn) -> None:
        await self._agent.on_turn_end(turn)
        if turn.status == "completed":
            await self._agent.on_agent_complete(turn)
        elif turn.status in ("error", "aborted"):
            await self._agent.on_agent_fail(turn)

    def _tell_done(self, row: Row, outcome: str, error: str | None) -> None:
        text, is_error = ("", False) if error is None else (error, True)
        frame = wire.done(
            row.stream, outcome, asked=row.asked_ids(), body=text, error=is_error, continuation=bool(row.continues)
        )
        self.stream.tell(frame)

    def _keep_partial(self, row: Row, chunks: Sequence[Chunk]) -> None:
        """Have the model know what it had said when it was interrupted, and what became of its tool calls."""
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart

        history = self.transcript.of(row.message)
        last = history[-1] if history else None
        if last is not None and last.kind == "response":
            made = {call.id: call for call in self.turns.calls(row.number)}
            returns: list[Any] = []
            for part in last.parts:
                if isinstance(part, ToolCallPart):
                    call = made.get(part.tool_call_id)
                    is_done = call is not None and call.status == "done"
                    value = (
                        msgspec.json.decode(call.result or "null") if call is not None and is_done else "Interrupted."
                    )
                    outcome = "success" if is_done else "interrupted"
                    returns.append(
                        ToolReturnPart(part.tool_name, value, tool_call_id=part.tool_call_id, outcome=outcome)
                    )
            if returns:
                self.transcript.add(row.message, ModelRequest(parts=returns))
            return
        step = f"{row.steps + 1}-"
        said = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta" and chunk["id"].startswith(step)]
        if said:
            self.transcript.add(row.message, ModelResponse(parts=[TextPart("".join(said))], state="interrupted"))

    def _tell_over(self, number: int) -> None:
        for waiting in self._over.pop(number, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def over(self, number: int) -> Turn:
        """Return a turn once it is over, or waits for somebody. Whoever is cancelled meanwhile cancels the turn."""
        call = current.get()
        if call is not None and call.method.startswith("fiber turn "):
            raise UsageError("A turn cannot wait for the one after it. Queue or schedule the method that says more.")
        try:
            while True:
                row = self._of(number)
                if row.status not in ("queued", "running"):
                    return self.shown(row)
                waiting: Future[None] = self._actor.host.loop.create_future()
                self._over.setdefault(number, []).append(waiting)
                await waiting
                self._actor.check_live()
        except CancelledError:
            if self._actor.dropped is None:
                row = self.turns.of(number)
                self.cancel(None if row is None else row.id)
            raise

    async def listen(self, number: int) -> AsyncIterator[bytes]:
        """Yield what a turn streams, as JSON, until it is over or waits for somebody."""
        while self._of(number).status == "queued":
            await self.stream.begun(number)
        if self._of(number).status == "running":
            async for chunk in self.stream.listen(number):
                yield chunk
        row = self._of(number)
        if row.status == "error":
            yield msgspec.json.encode({"type": "error", "errorText": row.error})

    def shown(self, row: Row) -> Turn:
        """Return a turn as users see it."""
        message = self.transcript.get(row.message) if row.message else None
        parts: list[dict[str, Any]] = message["parts"] if message is not None else []
        return Turn(
            id=row.id,
            status=row.status,
            text="".join(str(part["text"]) for part in parts if part["type"] == "text"),
            output=None if row.output is None else msgspec.json.decode(row.output),
            error=row.error,
            steps=row.steps,
            usage=msgspec.json.decode(row.usage),
        )

    def export(self) -> dict[str, Any]:
        """Return everything that is known of the conversation, as what JSON has."""
        return {
            "messages": self.transcript.messages(),
            "model_messages": self.transcript.exported(),
            "turns": [msgspec.to_builtins(self.shown(row)) for row in self.turns.all()],
        }

    def cancel(self, id: str | None = None) -> bool:
        """Cancel a turn, for good; return whether there was one to cancel."""
        row = self.turns.running() if id is None else self._named(id)
        if row is None or not row.is_open:
            return False
        if row.status == "queued":
            self._end_queued(row, "aborted")
        elif row.status == "waiting":
            self._close_waiting()
        else:
            self.turns.set(row.number, error=CANCELLED)
            self.driver.cut_off()
        return True

    def _named(self, id: str) -> Row | None:
        active = self.stream.active
        return self.turns.of(active.number) if active is not None and active.stream == id else self.turns.get(id)

    def clear(self, sender: Socket | None = None) -> None:
        """Forget the whole conversation; what was about to be said is not said."""
        for row in self.turns.queued():
            self._end_queued(row, "skipped")
        self.cancel()
        self._close_waiting()
        self.transcript.clear()
        self.stream.release_parked()
        self.stream.tell(wire.cleared(), without=sender)

    def approvals(self) -> list[Approval]:
        """Return the tool calls that wait for a person."""
        waiting = self.turns.waiting()
        calls = self.turns.calls(waiting.number) if waiting is not None else []
        return [
            Approval(call.id, call.name, msgspec.json.decode(call.input))
            for call in calls
            if call.asked == "approval" and call.is_open
        ]

    def answer(
        self,
        id: str,
        kind: str,
        value: Any = None,
        *,
        go_on: bool = True,
        owner: Socket | None = None,
        client_tools: Sequence[Any] | None = None,
    ) -> bool:
        """Take the answer to a tool call that waits; the first counts. The turn goes on once all have theirs."""
        self._actor.check_use()
        call = self.turns.call(id)
        if call is None or not call.is_open:
            return False
        self.turns.answer_call(id, kind, value, go_on=go_on)
        row = self._of(call.turn)
        if client_tools is not None:
            self.turns.set(row.number, client_tools=msgspec.json.encode(client_tools).decode())
        message = self.transcript.get(row.message)
        if message is not None:
            message = _answered(message, id, kind, value)
            self.transcript.put(message)
            self.stream.tell(wire.updated(message))
        self._owner = owner or self._owner
        self._maybe_go_on(row.number)
        return True

    def _maybe_go_on(self, number: int) -> None:
        """Go on with a turn that waited, if everybody has answered and somebody wants it to."""
        row = self.turns.of(number)
        calls = [call for call in self.turns.calls(number) if call.asked is not None]
        if row is None or row.status != "waiting" or any(call.is_open for call in calls):
            return
        if any(call.go_on for call in calls):
            self.turns.set(number, status="running", continues=row.continues + 1)
            self._drive(number)

    def continue_last(self) -> Row:
        """Have the model go on with its last answer."""
        row = self.turns.last()
        if row is None or row.is_open:
            raise Refused("There is no turn to go on with.")
        self.turns.set(row.number, status="running", continues=row.continues + 1)
        self._drive(row.number)
        return self._of(row.number)

    def resume(self, socket: Socket, probe: object = None, *, asked: bool = True) -> None:
        """Tell a client what streams, if anything does."""
        stream, active, owner = self.stream, self.stream.active, self._owner
        about_to = self.turns.running()
        if active is not None:
            if asked and active.continues and owner is not None and owner is not socket and owner.is_open:
                frame = wire.about_stream(wire.RESUME_NONE, probe=probe, reason="continuation-owned")
                stream.tell_one(socket, frame)
            else:
                stream.offer(socket, active.stream, probe)
        elif about_to is not None:
            stream.park(socket, about_to.stream, probe)
        elif (failed := self._failed()) is not None:
            stream.offer(socket, failed.stream, probe)
        elif asked:
            stream.tell_one(socket, wire.about_stream(wire.RESUME_NONE, probe=probe, reason="idle"))

    def _failed(self) -> Row | None:
        """Return the last turn if it failed: whoever comes later is to see it."""
        last = self.turns.last()
        return last if last is not None and last.status == "error" else None

    def take(self, socket: Socket, id: str) -> None:
        """A client takes the offer of a replay."""
        stream, active, failed = self.stream, self.stream.active, self._failed()
        if active is not None:
            if active.stream == id:
                stream.replay(socket, active)
                stream.tell_one(socket, wire.replayed(active.stream, continuation=bool(active.continues)))
        elif failed is not None and failed.stream == id:
            stream.replay(socket, failed)
            stream.tell_one(socket, wire.done(id, body=failed.error or "", error=True))
        else:
            stream.tell_one(socket, wire.done(id, replay=True))


def _assistant(id: str) -> UIMessage:
    return {"id": id, "role": "assistant", "parts": []}


def _answered(message: UIMessage, id: str, kind: str, value: Any) -> UIMessage:
    """Return a message in which a tool call has its answer."""
    parts: list[dict[str, Any]] = [dict(part) for part in message["parts"]]
    for part in parts:
        if part.get("toolCallId") != id:
            continue
        if kind in ("approved", "denied"):
            part["approval"] = {"id": id, "approved": kind == "approved"}
            part["state"] = "approval-responded" if kind == "approved" else "output-denied"
        elif kind == "failed":
            part.update(state="output-error", errorText=value)
        else:
            part.update(state="output-available", output=value)
    return {**message, "parts": parts}


def _request_of(said: Sequence[UIMessage]) -> Any:
    """Return what the model is told of what users said."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    if all(part.get("type") == "text" for message in said for part in message["parts"]):
        texts = ["".join(part["text"] for part in message["parts"]) for message in said]
        return ModelRequest(parts=[UserPromptPart(text) for text in texts])
    from pydantic_ai.ui.vercel_ai import VercelAIAdapter
    from pydantic_ai.ui.vercel_ai.request_types import UIMessage as TheirMessage

    found = VercelAIAdapter.load_messages([TheirMessage.model_validate(message) for message in said])
    return ModelRequest(parts=[part for message in found for part in message.parts])  # pyright: ignore[reportArgumentType]
