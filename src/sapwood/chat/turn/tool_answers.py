"""Tool calls that wait for an answer, and the answers. A turn continues once all its calls are answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sapwood.chat.store.chunks import answered
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.turn_rows import ToolCall, TurnRow
from sapwood.chat.store.turns import CLIENT_SOON
from sapwood.chat.store.user_messages import check
from sapwood.chat.tools.tools import toolbox
from sapwood.chat.turn.finish import TurnFinish
from sapwood.chat.turn.intake import Intake
from sapwood.errors import Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.decisions import Decisions
from sapwood.runs.tables.question import Answer, Author, Question
from sapwood.wire import chat as wire

GO_ON = "Go on where you stopped."
"""The instruction for the model alone when it continues an answer that was complete."""


class Answers:
    """Resumes the turns of one conversation that wait for answers."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._accepting = actor.of(Intake)

    def questions(self) -> list[Question]:
        """Return the tool calls that wait for an answer."""
        waiting = self._turns.waiting()
        calls = self._turns.calls(waiting.number) if waiting is not None else []
        return [self._question(call) for call in calls if call.is_open and call.answerer in ("approval", "client")]

    def approvals(self) -> list[Question]:
        """Return the tool calls that wait for a person."""
        return [one for one in self.questions() if one.kind == "approval"]

    def answer(
        self,
        id: str,
        answer: Answer,
        author: Author,
        *,
        go_on: bool = True,
        owner: Socket | None = None,
        client_tools: Sequence[Any] | None = None,
    ) -> bool:
        """Take the answer to a tool call that waits; the first counts. The turn continues once all have theirs."""
        self._actor.check_use()
        call, kind, value = self._turns.call(id), answer.kind, answer.value
        if call is None or not call.is_open:
            return False
        # Only the agent itself returns the result of its own tools.
        if (kind == "approved" and call.answerer != "approval") or (kind == "done" and call.answerer == "approval"):
            return False
        if kind == "approved" and value is not None:
            # As they will be read: invalid arguments are refused while the client can still correct them.
            self._actor.of(toolbox).check(call.name, msgspec.json.decode(msgspec.json.encode(value)))
        row = self._record.row(call.turn)
        if row.run is not None and not self._actor.of(RunExecutor).is_wanted(row.run):
            reason = self._actor.of(RunExecutor).why_not(row.run)
            self._actor.of(TurnFinish).close_waiting("cancelled", reason)  # it was not told that its run is over
            return False
        if row.run is not None and not any(one.is_open for one in self._turns.calls(row.number) if one.id != id):
            # Before anything is written here: in a crash between the two, they find that it still waits.
            self._actor.of(RunExecutor).wake_above(row.run)
        if call.answerer == "approval":
            self._actor.of(Decisions).answered(self._question(call), answer, author)
        self._turns.answer_call(id, kind, value, go_on=go_on)
        if client_tools is not None:
            self._turns.set(row.number, client_tools=msgspec.json.encode(client_tools).decode())
        message = self._transcript.get(row.message)
        if message is not None:
            message = answered(message, id, kind, value)
            self._transcript.put(message)
            self._stream.tell(wire.updated(message))
        self._stream.owner = owner or self._stream.owner
        self.maybe_go_on(row.number)
        self._actor.of(Questions).answered()
        return True

    def turn_answered_by(self, messages: Sequence[UIMessage]) -> TurnRow | None:
        """Return the turn that waits or runs, if a client's messages end with the message of that turn."""
        last = messages[-1] if messages else {}
        row = self._turns.running() or self._turns.waiting()
        if row is None or last.get("id") != row.message:
            return None
        check(last)
        return row

    def question(self, id: str) -> Question | None:
        """Return the open question about a tool call."""
        call = self._turns.call(id)
        if call is None or not call.is_open or call.answerer not in ("approval", "client", CLIENT_SOON):
            return None
        return self._question(call)

    def _question(self, call: ToolCall) -> Question:
        kind = "approval" if call.answerer == "approval" else "client"
        question = Question.about(call.id, call.name, msgspec.json.decode(call.input), kind)
        # The class does not know them, so that nobody else does while this agent sleeps.
        return replace(question, roles=self._actor.of(toolbox).roles_of_server(call.name))

    def maybe_go_on(self, number: int) -> None:
        """Resume a waiting turn if all its questions are answered and it was asked to resume."""
        row = self._turns.of(number)
        calls = [call for call in self._turns.calls(number) if call.answerer is not None]
        if row is None or row.status != "waiting" or row.waits_for_limit or any(call.is_open for call in calls):
            return
        if any(call.auto_continue for call in calls):
            self._stream.go_on(number)
            self._turns.set(number, status="running", continues=row.continues + 1)
            self._record.launch(number)
        elif self._turns.queued():
            self._accepting.begin_next()

    def continue_last(self) -> TurnRow:
        """Have the model continue its last answer."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        row = self._record.last_turn()
        if row is None or row.is_open:
            raise Refused("There is no turn to continue.")
        history = self._transcript.history()
        if history and history[-1].kind == "response":
            self._transcript.add(row.message, ModelRequest(parts=[UserPromptPart(GO_ON)]))
        self._stream.go_on(row.number)
        # If it was a run, that is over: what follows is between the agent and its clients.
        ended = dict.fromkeys(("error", "reason", "cancelled", "output", "run"))
        self._turns.set(row.number, status="running", continues=row.continues + 1, **ended)
        self._record.launch(row.number)
        return self._record.row(row.number)


def answers_in(message: UIMessage) -> Iterator[tuple[str, Answer]]:
    """Yield the answers that the parts of a message hold, with the ids of the tool calls."""
    for part in message["parts"]:
        if (answer := _answer_in(part)) is not None:
            yield str(part.get("toolCallId")), answer


def _answer_in(part: dict[str, Any]) -> Answer | None:
    match part.get("state"):
        case "approval-responded" | "output-denied":
            approval: dict[str, Any] = part["approval"] if isinstance(part.get("approval"), dict) else {}
            if approval.get("approved") is True:
                return Answer("approved")
            reason = approval.get("reason")
            return Answer("denied", None if reason is None else str(reason))
        case "output-available":
            return Answer("done", part.get("output"))
        case "output-error":
            return Answer("failed", str(part.get("errorText")))
        case _:
            return None
