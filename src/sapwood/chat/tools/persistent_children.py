"""The tools with which a model manages persistent children: spawn, send, terminate.

A child is what the runs table says of it: one run for each task, under one name. A request to
a child is recorded like any other tool call, and repeating it after a crash has no second
effect. If the child blocks, the driver of the turn executes the call, as for any other agent tool.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from sapwood.address import checked_name
from sapwood.capabilities.children import Children
from sapwood.chat.tools.agent_tools import PersistentAgent
from sapwood.errors import SapwoodError, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.dispatch.run_request import Detached, RunRequest, ToolCall, tool_call
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import Steered
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.runs_table import TERMINATED, Run, RunRow, shown

SPAWN, WAIT = "spawn_agent", "wait_for_result"
DEFERRED = frozenset({SPAWN, WAIT})
"""The tools whose calls a run may answer."""


class Companions:
    """The persistent children that the model of one chat agent keeps."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._runs = actor.of(Runs)
        self._outcomes = actor.of(Outcomes)
        declared = [one for one in actor.agent.tools if isinstance(one, PersistentAgent)]
        self._kinds = {one.name: one for one in declared}
        if min(len(self._kinds), len({one.cls for one in declared})) < len(declared):
            raise UsageError(
                f"{type(actor.agent).__name__} has two persistent_agent(…) tools with the same name or class. "
                "Remove one of them."
            )

    def tools(self) -> list[Any]:
        """Return the tools for the children that the agent declares; none if it declares none."""
        if not self._kinds:
            return []
        functions = [
            self.spawn_agent,
            self.send_message,
            self.list_children,
            self.get_child_status,
            self.terminate_child,
        ]
        if any(kind.blocks for kind in self._kinds.values()):
            functions.append(self.wait_for_result)
        return [self._tool(function) for function in functions]

    def _tool(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        from pydantic_ai import Tool

        # In the order in which the model has asked: it may spawn a child and tell it more in one breath.
        made = Tool(function, sequential=True)
        if function.__name__ == SPAWN:
            kinds = "\n".join(f"- {name} ({kind.mode}): {kind.description}" for name, kind in self._kinds.items())
            made.description = f"{made.description}\n\nThe kinds of agents:\n{kinds}"
            made.function_schema.json_schema["properties"]["agent"]["enum"] = [*self._kinds]
        return made

    async def spawn_agent(self, agent: str, name: str, message: str) -> Any:
        """Make a child agent that you keep, and give it its first task.

        A blocking one returns its result. A non-blocking one works beside you, and you are free at once.

        Args:
            agent: The kind of agent.
            name: What you will call it; no other child may have the name.
            message: What it is to do.
        """
        kind, call = self._kinds.get(agent), _call()
        if kind is None:
            raise _refusal("unknown_agent", f"Unknown kind of agent {agent!r}. Kinds: {', '.join(self._kinds)}.")
        try:
            checked_name(name)
        except (SapwoodError, UsageError) as error:
            raise _refusal("invalid_name", str(error)) from None
        runs = self._runs.registry.of_child(name)
        if runs and not _is_by(runs[0], call) and self._is_known(runs[-1]):
            raise _refusal(
                "name_taken", f"The name {name!r} is taken by a current or former child. Choose another name."
            )
        row = self._give(kind, name, message, call, waits=kind.blocks)
        if kind.blocks:
            raise _deferred()
        return await self._begun(kind, row)

    async def send_message(self, name: str, message: str) -> Any:
        """Tell a child something. If it is at work, it hears it before its next step; if not, it is its next task.

        You do not wait for what comes of it.

        Args:
            name: The child's name.
            message: What it is to know, or to do.
        """
        call = _call()
        row, kind = self._child(name)
        given = next((one for one in self._runs.registry.of_child(name) if _is_by(one, call)), None)
        if given is None:
            if row.cancelled == TERMINATED:
                raise _refusal("terminated", f"The child {name!r} was terminated. Spawn a new one.")
            steered = await self._steer(row, kind, f"{call.work.id}:{call.id}", message)
            if steered == "joined":
                return {"name": name, "status": "running", "delivered": "joined"}
            if steered == "deaf":
                raise _refusal(
                    "busy", f"The child {name!r} is busy and accepts no messages now. Wait until it has finished."
                )
        given = self._give(kind, name, message, call, waits=False)
        return {**await self._begun(kind, given), "delivered": "task"}

    async def list_children(self) -> Any:
        """List your children, with how each of them stands."""
        return [self._brief(row, kind) for row, kind in self._children()]

    async def get_child_status(self, name: str) -> Any:
        """Ask how a child stands: what it does, how far it is, and what came of its last task.

        Args:
            name: The child's name.
        """
        row, kind = self._child(name)
        run = shown(row)
        told = {**self._brief(row, kind), "task": run.input, "tasks": len(self._runs.registry.of_child(name))}
        progress, milestones = self._actor.of(RunClients).reported(row.id)
        told |= {"progress": progress} if progress is not None and not run.is_over else {}
        told |= {"milestones": [one["name"] for one in milestones]} if milestones else {}
        return told | (_outcome(run) if run.is_over else {})

    async def terminate_child(self, name: str) -> Any:
        """Stop a child for good, with all it has under way. What it knows is kept, but it is given nothing more.

        Args:
            name: The child's name.
        """
        row, kind = self._child(name)
        was_running = row.is_open or bool(row.still_running)
        self._runs.registry.set(row.id, cancelled=TERMINATED)
        if self._runs.cancel(row.id, TERMINATED):
            await self._runs.over(row.id)
        await self._runs.cancel_below(kind.cls, name, TERMINATED)
        return {"name": name, "status": TERMINATED, "was_running": was_running}

    async def wait_for_result(self, name: str) -> Any:
        """Wait until a blocking child has done its task, and return the result.

        Args:
            name: The child's name.
        """
        row, kind = self._child(name)
        if not kind.blocks:
            raise _refusal(
                "not_blocking", f"The child {name!r} works in the background. Continue, and ask for its status later."
            )
        if row.is_open:
            self._runs.adopt(row.id, _call().work)
            raise _deferred()
        run = shown(row)
        if not run.ok:
            raise _failed(run)
        return self.returned(run)

    def waited_for(self, work: WorkId, call: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return the run that a call waits for; after a crash it may have to be given again."""
        name = arguments["name"]
        if tool == WAIT:
            return self._child(name)[0].id
        asked = ToolCall(self._actor, call, work)
        return self._give(self._kinds[arguments["agent"]], name, arguments["message"], asked, waits=True).id

    def returned(self, run: Run) -> dict[str, Any]:
        """Return the result of a completed task for the model."""
        return {"name": run.agent.name, "status": run.status, **_outcome(run)}

    def _give(self, kind: PersistentAgent, name: str, message: str, call: ToolCall, *, waits: bool) -> RunRow:
        """Give a child its next task, or find the one that this call has given it."""
        wish = RunRequest(tool_call=call.id, work=call.work, child=name)
        if not waits:
            wish.detached = Detached(notify=not kind.blocks and kind.notify)
        return self._runs.give(kind.cls, message, wish)

    async def _begun(self, kind: PersistentAgent, row: RunRow) -> dict[str, Any]:
        """Return the report of a task for the model once the child has taken it: from there on it survives a crash."""
        await self._runs.begun(row.id)
        run = shown(self._outcomes.row(row.id))
        if run.is_over and not run.ok:
            raise _failed(run)
        return {"name": run.agent.name, "agent": kind.name, "status": run.status if run.is_over else "running"}

    async def _steer(self, row: RunRow, kind: PersistentAgent, key: str, message: str) -> Steered:
        """Say something to a child about the task it is at; it knows best whether it still is."""
        await self._runs.begun(row.id)
        child = await self._actor.of(Children).get(kind.cls, row.name)
        _, reply = child.handle("steer run", child.of(RunExecutor).steer, row.id, key, message)
        return await reply

    def _child(self, name: str) -> tuple[RunRow, PersistentAgent]:
        """Return the last run of a child, and its kind."""
        rows = self._runs.registry.of_child(name)
        kind = self._kind(rows[-1]) if rows else None
        if kind is None or not self._is_known(rows[-1]):
            names = [row.name for row, _ in self._children()]
            raise _refusal("unknown_child", f"You have no child {name!r}. Children: {', '.join(names) or 'none'}.")
        return rows[-1], kind

    def _children(self) -> list[tuple[RunRow, PersistentAgent]]:
        """Return the last run of each child, and its kind."""
        rows = self._runs.registry.last_of_children()
        return [(row, kind) for row in rows if (kind := self._kind(row)) is not None and self._is_known(row)]

    def _is_known(self, row: RunRow) -> bool:
        """Return whether there is, or was, the child that a run was given to: it may not have come into being."""
        types = self._actor.of(RunClients).types_of(row)
        return row.is_open or row.cancelled == TERMINATED or self._actor.registry.find(types, row.name) is not None

    def _kind(self, row: RunRow) -> PersistentAgent | None:
        kinds = self._kinds.values()
        return next((one for one in kinds if row.type in known(one.cls).type_ids), None)

    def _brief(self, row: RunRow, kind: PersistentAgent) -> dict[str, Any]:
        return {"name": row.name, "agent": kind.name, "mode": kind.mode, "status": self._status(row)}

    def _status(self, row: RunRow) -> str:
        if row.cancelled == TERMINATED:
            return TERMINATED
        if row.is_open and self._actor.of(RunMonitors).waits(row.id):
            return "waiting"
        return "running" if row.is_open else row.status


def _call() -> ToolCall:
    """Return the tool call that is made now."""
    call = tool_call.get()
    assert call is not None
    return call


def _is_by(row: RunRow, call: ToolCall) -> bool:
    """Return whether a run was given by this very call, before a crash."""
    return (row.tool_call, row.work_id) == (call.id, call.work)


def _outcome(run: Run) -> dict[str, Any]:
    if run.ok:
        return {"result": run.output if run.output is not None else run.summary}
    return {"error": run.failure()["error"]}


def _deferred() -> Exception:
    from pydantic_ai.exceptions import CallDeferred

    return CallDeferred()


def _refusal(code: str, error: str) -> Exception:
    """Return the error that the model gets for something that is refused."""
    return _told({"ok": False, "status": "refused", "code": code, "error": error, "retryable": False})


def _failed(run: Run) -> Exception:
    return _told({"name": run.agent.name, **run.failure()})


def _told(failure: Mapping[str, Any]) -> Exception:
    from pydantic_ai import ToolFailed

    return ToolFailed(msgspec.json.encode(failure).decode())
