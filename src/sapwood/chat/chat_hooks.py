"""The hooks of a chat agent: its runs are turns, and results of runs are messages of its conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from sapwood.capabilities.connections import Speech
from sapwood.chat.client_protocol import ClientProtocol
from sapwood.chat.runs import ChatRuns
from sapwood.chat.store.outputs import Output
from sapwood.chat.store.record import DRIVE, ConversationRecord
from sapwood.chat.tools.tools import approvers_of, check_approvers
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.limit_waits import LimitWaits
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.runs.default_hooks import DefaultHooks
from sapwood.runs.execution.contract import RunBackend
from sapwood.runs.execution.run_hooks import TurnCause
from sapwood.runs.tables.question import Approvers
from sapwood.runs.tables.runs_table import Run


class ChatHooks(DefaultHooks):
    """The hooks of an agent that has a conversation."""

    has_conversation: ClassVar[bool] = True
    speeches: ClassVar[tuple[Callable[[Actor], Speech], ...]] = (ClientProtocol, *DefaultHooks.speeches)

    @staticmethod
    def check_approvers(agent_class: type) -> None:
        check_approvers(agent_class)

    @staticmethod
    def approvers_of(kind: AgentClass, tool: str) -> Approvers | None:
        return approvers_of(kind.cls, tool)

    @staticmethod
    def read_output(kind: AgentClass, text: str) -> Any:
        output: Output = cast(Any, kind.cls)._output
        return output.read(text)

    def run_backend(self) -> RunBackend:
        return ChatRuns(self._actor)

    def fiber_failed(self, method: str, arguments: Mapping[str, Any], error: str) -> None:
        if method == DRIVE:
            self._actor.of(Conversation).gave_up(arguments["number"], error)
        else:
            super().fiber_failed(method, arguments, error)

    def turn_cause(self, turn: str | None = None) -> TurnCause | None:
        record = self._actor.found(ConversationRecord)
        if record is None:
            return None
        row = record.turns.running() if turn is None else record.turns.get(turn)
        return None if row is None else TurnCause(row.user, row.run)

    async def limit_settled(self, turn: str) -> None:
        self._actor.of(LimitWaits).settle(turn)

    def post_result(self, run: Run[Any]) -> None:
        self._actor.of(Intake).note_run(run)
