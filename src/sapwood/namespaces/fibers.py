"""`self.fibers`: the fibers of an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, cast

from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.fiber_rows import Fiber
from sapwood.kernel.actors.actor import Actor

P = ParamSpec("P")
R = TypeVar("R")


class AgentFibers:
    """The fibers of this agent. `self.start_fiber(…)` starts one in the background.

    A fiber is named by its key or by its id.
    """

    def __init__(self, actor: Actor) -> None:
        self._fibers = actor.of(Agenda).fibers

    @property
    def current(self) -> Fiber:
        """The fiber that runs this code, with its last checkpoint."""
        return self._fibers.current()

    async def run(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function as a fiber, wait for it, and return its result.

        If the process dies, `on_fiber_recovered` is called after the restart. A method of this agent is then called
        again with the same arguments.
        """
        return cast(R, await self._fibers.run(name, function, args, kwargs))

    async def result(self, fiber: str) -> Any:
        """Wait for the end of a fiber and return its result. Raises `FiberFailed` if it did not complete."""
        return await self._fibers.result(fiber)

    def get(self, fiber: str) -> Fiber | None:
        """Return a fiber by its key or its id."""
        return self._fibers.get(fiber)

    def cancel(self, fiber: str) -> bool:
        """Cancel a fiber. Returns `False` if it does not exist or has ended."""
        return self._fibers.cancel(fiber)

    def resume(self, fiber: str) -> bool:
        """Continue a fiber that failed or was interrupted; completed steps do not run again.

        Returns `False` if there is no such fiber.
        """
        return self._fibers.resume(fiber)

    def resolve(self, fiber: str, result: object = None) -> bool:
        """Complete a fiber with this result and cancel what still runs of it. Returns `False` if it has ended."""
        return self._fibers.resolve(fiber, result)

    def delete(self, fiber: str | None = None, *, status: str | None = None) -> int:
        """Delete fibers that have ended: this one, those of a status, or all. Returns their number."""
        return self._fibers.delete(fiber, status)

    def list(self, status: str | None = None, *, limit: int = 1000) -> list[Fiber]:
        """Return the fibers, oldest first; with `status`, those of this status."""
        return self._fibers.list(status, limit)
