"""Runs that a chat agent does: each is a turn of its conversation, under the run's own id."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.tools.tools import toolbox
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.mid_turn_messages import MidTurnMessages
from sapwood.chat.turn.tool_answers import Answers
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.execution.contract import Steered
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.question import Answer, Approvers, Author, Question


class ChatRuns:
    """The runs that the turns of one conversation do."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def start(self, run: str, input: Any) -> int:
        message = {"id": f"msg-{run}", "role": "user", "parts": [{"type": "text", "text": _in_words(input)}]}
        given = self._actor.of(RunExecutor).given(run)
        tools = given.asked.get("client_tools") if given is not None else None
        asking = self._actor.of(Intake)
        return asking.ask([message], id=run, body={"input": input}, client_tools=tools, run=run).number

    def cut(self, run: str, reason: str) -> None:
        self._actor.of(Conversation).cut(run, reason)

    def steer(self, run: str, key: str, text: str) -> Steered:
        return self._actor.of(MidTurnMessages).say(run, key, text)

    def stands(self, work: str) -> str | None:
        row = self._actor.of(ConversationRecord).turns.get(work)
        return None if row is None else row.status

    def failure(self, work: str) -> str | None:
        row = self._actor.of(ConversationRecord).turns.get(work)
        return row.reason if row is not None and row.status == "failed" else None

    def cancel(self, work: str, reason: str) -> None:
        self._actor.of(Conversation).cancel(work, reason)

    def wants(self, work: str) -> bool:
        return self._actor.of(Conversation).is_wanted(work)

    def why_not(self, work: str) -> str:
        return self._actor.of(Conversation).why_not(work)

    def waits(self, run: str) -> bool:
        turns = self._actor.of(ConversationRecord).turns
        row = turns.get(run)
        if row is None or row.status not in ("running", "waiting"):
            return False
        calls = [call.id for call in turns.calls(row.number)]
        if row.status == "waiting" or self._actor.of(OwnQuestions).waits(run, calls):
            return True
        return self._actor.of(RunMonitors).all_wait(WorkId.run(row.id))

    def rests(self, run: str) -> bool:
        record = self._actor.of(ConversationRecord)
        row = record.turns.get(run)
        return row is not None and (row.status == "waiting" or (row.status == "running" and record.rests(row.number)))

    def wake(self, work: str) -> None:
        record = self._actor.of(ConversationRecord)
        row = record.turns.get(work)
        if row is not None and row.status == "running" and record.rests(row.number):
            record.wake(row)

    def questions(self) -> list[Question]:
        return self._actor.of(Answers).questions()

    def question(self, id: str) -> Question | None:
        return self._actor.of(Answers).question(id)

    def answer(self, id: str, answer: Answer, author: Author) -> bool:
        return self._actor.of(Answers).answer(id, answer, author)

    def approvers(self, tool: str) -> Approvers | None:
        return self._actor.of(toolbox).approvers(tool)

    def current(self) -> str | None:
        row = self._actor.of(ConversationRecord).turns.running()
        return None if row is None else row.run


def _in_words(input: Any) -> str:
    """Return what the agent is told; what is one text with a name, such as a query, is said as that text."""
    if isinstance(input, dict) and len(fields := cast("dict[str, Any]", input)) == 1:
        (input,) = fields.values()
        return input if isinstance(input, str) else msgspec.json.encode(fields).decode()
    return input if isinstance(input, str) else msgspec.json.encode(input).decode()
