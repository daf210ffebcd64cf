"""What the runs ask of the class of their agent: agents, chat agents and remote agents answer differently."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, cast

from sapwood.capabilities.connections import ClientHooks
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.runs.execution.contract import RunBackend
from sapwood.runs.tables.question import Approvers
from sapwood.runs.tables.runs_table import Run


class TurnCause(NamedTuple):
    """For whom a turn is executed."""

    user: str | None = None
    """The id of the user whose message began it."""
    run: str | None = None
    """The run that the turn is."""


class RunHooks(ClientHooks, Protocol):
    """The upcalls of the runs of one agent."""

    has_conversation: ClassVar[bool]
    """Whether run results can be posted to the conversation of the agent."""

    @staticmethod
    def remote_url(kind: AgentClass) -> str | None:
        """Return the URL of the agents on another server that execute the runs of a class. `None` means none do."""
        ...

    @staticmethod
    def approvers_of(kind: AgentClass, tool: str) -> Approvers | None:
        """Return who may approve calls of a tool of a class. `None` means that it does not say."""
        ...

    @staticmethod
    def read_output(kind: AgentClass, text: str) -> Any:
        """Return the stored output of a run of a class; raise `InvalidResult` if it does not fit."""
        ...

    def run_backend(self) -> RunBackend:
        """Return what executes the runs of the agent."""
        ...

    def turn_cause(self, turn: str | None = None) -> TurnCause | None:
        """Return for whom a turn is executed, by default the one that runs now; `None` if there is none."""
        ...

    def owner(self) -> str | None:
        """Return the id of the user for whom the agent does everything; `None` if it works for several, or for none."""
        ...

    async def limit_settled(self, turn: str) -> None:
        """Resume a turn that waited until a person allowed more of a limit."""
        ...

    def post_result(self, run: Run[Any]) -> None:
        """Post the result of a run, or that it was interrupted, to the conversation of the agent."""
        ...


def class_hooks(kind: AgentClass) -> type[RunHooks]:
    """Return the hooks of a class of agents, as runs see them."""
    return cast("type[RunHooks]", kind.hooks)


def run_hooks(actor: Actor) -> RunHooks:
    """Return the hooks of an agent, as its runs see them."""
    return cast("RunHooks", actor.hooks)
