"""The part of every agent class that the framework calls: what it asks of the agent, and what it runs in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from sapwood.capabilities.child_states import ChildStates
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_base import AgentBase
from sapwood.kernel.trees.limit_extensions import LimitPeriod
from sapwood.mcp_client.connections import McpConnections
from sapwood.mcp_client.sign_ins import EndedSignIn
from sapwood.mcp_client.tool_calls import CancelledTask, ToolCalls
from sapwood.periods import LimitWarning, with_local_times
from sapwood.runs.backends.method_backend import MethodRuns
from sapwood.runs.default_hooks import DefaultHooks
from sapwood.runs.dispatch.cleanup import Sweeper
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import RunHooks
from sapwood.runs.questions.limit_questions import LimitQuestions
from sapwood.runs.remote.remote_sessions import RemoteSessions
from sapwood.runs.tables.runs_table import Run


class AgentInternals(AgentBase):
    """What the framework needs of an agent. Subclasses of `Agent` cannot override it."""

    _actor: Actor
    _hooks_class: ClassVar[Callable[[Actor], RunHooks]] = DefaultHooks
    """What the packages below call, where agents and chat agents differ."""

    def __init__(self, actor: Actor | None = None) -> None:
        if actor is None:
            name = type(self).__name__
            raise UsageError(
                f"{name} cannot be created by calling the class. Write await app.get_agent({name}, name), or "
                f"await self.sub_agent({name}, name) inside another agent."
            )
        self._actor = actor
        self.deps = actor.host.deps

    @classmethod
    def _type_arguments(cls) -> Mapping[Any, Any]:
        """Return the types that the type variables of the framework's own methods stand for in copies."""
        return {}

    @classmethod
    def _check_setup(cls, *, has_users: bool) -> None:
        """Refuse, when an app starts, a class that cannot work in this environment, or in an app that has users."""

    async def _sapwood_tell_state(self) -> None:
        """Tell the parent the state; the framework's own."""
        await self._actor.of(ChildStates).tell()

    async def _sapwood_follow_run(self, run: str) -> None:
        """Follow a run to its end; the framework's own."""
        await self._actor.of(RunMonitors).follow(run)
        await self._actor.of(Sweeper).run_ended()

    async def _sapwood_run_finished(self, run: Run) -> None:
        """Call the hook for the end of a run; the framework's own."""
        await self._actor.agent.on_run_finish(self._actor.of(Outcomes).reported(run))

    async def _sapwood_limit_near(self, warning: LimitWarning) -> None:
        """Call the hook for a limit that comes near; the framework's own."""
        await self._actor.agent.on_limit_near(with_local_times(warning))  # what is stored has lost its zone

    async def _sapwood_extend_limit(self, limit: LimitPeriod) -> None:
        """Ask a person for more of a limit of this agent; the framework's own."""
        await self._actor.of(LimitQuestions).extend(limit)

    async def _sapwood_sweep_runs(self) -> None:
        """Take away the runs that are not to be kept any longer; the framework's own."""
        await self._actor.of(Sweeper).sweep()

    async def _sapwood_serve_run(self, run: str) -> None:
        """Do a run; the framework's own."""
        await cast("MethodRuns", self._actor.of(RunExecutor).worker).drive(run)

    async def _sapwood_run_result(self, run: Run) -> Run:
        """Return a run of this agent once it is over; the framework's own."""
        return await self._actor.of(Runs).result(run)

    async def _sapwood_full_input(self, run: Run) -> Any:
        """Return the whole input of a run of this agent; the framework's own."""
        return await self._actor.of(Runs).full_input(run)

    async def _sapwood_cancel_mcp_task(self, task: CancelledTask) -> None:
        """Tell an MCP server that a task is no longer wanted; the framework's own."""
        await self._actor.of(ToolCalls).cancel_task(task)

    async def _sapwood_end_mcp_sign_in(self, sign_in: EndedSignIn) -> None:
        """Connect to an MCP server whose user has signed in; the framework's own."""
        await self._actor.of(McpConnections).end_sign_in(sign_in.server)

    async def _sapwood_send_stop(
        self, owner: str, session: str, reason: str, until: float, memo: str | None = None
    ) -> None:
        """Ask another server to stop a run; the framework's own."""
        await self._actor.of(RemoteSessions).send_stop(owner, session, reason, until, memo)
