"""The hooks of every agent: fibers, states and clients reach the runs and questions through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sapwood.address import Address
from sapwood.capabilities.child_states import ChildStates
from sapwood.capabilities.connections import Speech
from sapwood.capabilities.limit_warnings import LimitWarnings
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.ports.work_id import WorkId
from sapwood.periods import LimitWarning
from sapwood.runs.backends.method_backend import SERVE, MethodRuns
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import RunBackend
from sapwood.runs.execution.executor import FOLLOW, RunExecutor
from sapwood.runs.execution.run_hooks import TurnCause
from sapwood.runs.http.events_http import Watchers
from sapwood.runs.http.file_transfers import FileTransfers
from sapwood.runs.http.http_server import RunsFromOutside
from sapwood.runs.http.method_list import ListedMethods
from sapwood.runs.questions.limit_questions import EXTEND, LimitQuestions
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.outputs import read_output
from sapwood.runs.tables.own_questions import OWN_QUESTIONS, OwnQuestions
from sapwood.runs.tables.question import Approvers
from sapwood.runs.tables.runs_table import RUNS, Run


class DefaultHooks:
    """The hooks of an agent without a conversation. Its runs are calls of `on_run`."""

    has_conversation: ClassVar[bool] = False
    speeches: ClassVar[tuple[Callable[[Actor], Speech], ...]] = (
        RunClients,
        Watchers,
        Questions,
        ListedMethods,
        FileTransfers,
        RunsFromOutside,
    )

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    @staticmethod
    def check_approvers(agent_class: type) -> None:
        """Accept a class: it has no tools."""

    @staticmethod
    def remote_url(kind: AgentClass) -> str | None:
        return None

    @staticmethod
    def approvers_of(kind: AgentClass, tool: str) -> Approvers | None:
        return None

    @staticmethod
    def read_output(kind: AgentClass, text: str) -> Any:
        return read_output(kind, text)

    def run_backend(self) -> RunBackend:
        return MethodRuns(self._actor)

    def fiber_ended(self, work: WorkId, *, is_done: bool) -> None:
        if self._actor.database.has(RUNS):
            self._actor.of(Runs).let_go(work, is_done=is_done)

    def fiber_failed(self, method: str, arguments: Mapping[str, Any], error: str) -> None:
        if method == FOLLOW:
            self._actor.of(Outcomes).gave_up(arguments["run"], error)
        elif method == SERVE:
            self._actor.of(RunExecutor).ended(arguments["run"], "failed", error=error)
        elif method == EXTEND:
            self._actor.of(LimitQuestions).gave_up(arguments["limit"], error)

    def close_questions(self, work: WorkId) -> None:
        if self._actor.database.has(OWN_QUESTIONS) and self._actor.of(OwnQuestions).close(work):
            self._actor.of(Questions).answered()

    def questions_closed(self, owners: Sequence[Address]) -> None:
        self._actor.of(Questions).closed_below(owners)

    def limit_near(self, warning: LimitWarning) -> None:
        self._actor.of(LimitWarnings).add(warning)

    def state_changes(self) -> None:
        self._actor.of(ChildStates).changed()

    def turn_cause(self, turn: str | None = None) -> TurnCause | None:
        """Return `None`: the agent has no turns."""

    def owner(self) -> str | None:
        """Return `None`: the agent may work for several users."""

    async def limit_settled(self, turn: str) -> None:
        """Do nothing: the agent has no turns."""

    def post_result(self, run: Run[Any]) -> None:
        """Do nothing: the agent has no conversation."""
