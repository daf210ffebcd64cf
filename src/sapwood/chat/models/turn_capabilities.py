"""Gives the run-level hooks of Pydantic AI's capabilities the meaning of a turn: once, however many steps it has.

Pydantic AI takes each half of a step for a run. So what it holds are stand-ins: they hand on all
hooks but those of a run, which are called from here.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
from abc import ABCMeta
from asyncio import CancelledError, Future, Task
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

OF_A_RUN = ("before_run", "after_run", "wrap_run", "on_run_error")
"""The hooks that mean a whole run."""


class TurnCapabilities:
    """The capabilities of one turn, from its start or its resumption until it ends, waits or is interrupted.

    `wrap_run` is entered once in this time, and `for_run` is called once. In between, the context variables that they
    set are set in every step.
    """

    def __init__(self, agent: Any, capabilities: Sequence[Any]) -> None:
        from pydantic_ai.capabilities import AbstractCapability, CombinedCapability, DynamicCapability

        self.agent = agent
        """The user's own `pydantic_ai.Agent`, with a stand-in for its capabilities. `None` if there is none."""
        self.of_step: list[Any] = []
        """Stand-ins for the capabilities of the class, for each step."""
        self.context: Any = None
        """The context of the last step: what run-level hooks receive."""
        self._parts: dict[int, Any] = {}
        """The instances of this turn, in the order of their capabilities."""
        self._count = 0
        self.has_run_hooks = False
        """Whether any of them is a stand-in."""
        self._whole: Any = None
        self._task: Task[Any] | None = None
        self._over: Future[tuple[Any, BaseException | None]] | None = None
        self._variables: Mapping[contextvars.ContextVar[Any], Any] = {}
        root: Any = getattr(agent, "_root_capability", None)
        if root is not None and _has_hooks(root):
            self.agent = copy.copy(agent)
            self.agent._root_capability = CombinedCapability(self._of_step(root.capabilities))
        if capabilities:
            given: list[Any] = [
                one if isinstance(one, AbstractCapability) else DynamicCapability(one) for one in capabilities
            ]
            self.of_step = self._of_step(CombinedCapability(given).capabilities)

    def _of_step(self, capabilities: Sequence[Any]) -> list[Any]:
        """Return what Pydantic AI is given for capabilities: each on its own, as some have to be first or last."""
        first = self._count
        self.has_run_hooks = self.has_run_hooks or any(_has_hooks(one) for one in capabilities)
        self._count += len(capabilities)
        return [
            _stand_in(one.__class__)(one, self, first + at) if _has_hooks(one) else one
            for at, one in enumerate(capabilities)
        ]

    @classmethod
    def of(cls, agent: Any, capabilities: Sequence[Any]) -> TurnCapabilities | None:
        """Return the capabilities of an agent of the user's and of a class, or `None` if nothing needs them."""
        root: Any = getattr(agent, "_root_capability", None)
        return cls(agent, capabilities) if capabilities or (root is not None and _has_hooks(root)) else None

    async def for_turn(self, part: int, capability: Any, context: Any) -> Any:
        """Return the instance of a capability for this turn; it is made once."""
        if part not in self._parts:
            self._parts[part] = await capability.for_run(context)
        return self._parts[part]

    def entered(self, context: Any) -> None:
        """A step begins: its context variables become those that `wrap_run` and `before_run` have set."""
        self.context = context
        for variable, value in self._variables.items():
            variable.set(value)

    async def start(self, history: Sequence[ModelMessage], *, is_new: bool) -> Any:
        """Enter `wrap_run`, and call `before_run` if the turn `is_new`.

        Return the result if `wrap_run` has returned one instead.
        """
        from pydantic_ai.capabilities import CombinedCapability

        if self.context is None:  # the functions that make capabilities have made none with such hooks
            return None
        self.context.prompt = _prompt_of(history)
        self._whole = CombinedCapability([self._parts[part] for part in sorted(self._parts)])
        loop = asyncio.get_running_loop()
        ready: Future[None] = loop.create_future()
        self._over = over = loop.create_future()
        outer = contextvars.copy_context()

        async def run() -> Any:
            if not ready.done():
                if is_new:
                    await self._whole.before_run(self.context)
                inner = contextvars.copy_context()
                self._variables = {one: inner[one] for one in inner if one not in outer or outer[one] is not inner[one]}
                ready.set_result(None)
            result, error = await asyncio.shield(over)
            if error is not None:
                result = await self._whole.on_run_error(self.context, error=error)
                if isinstance(error, CancelledError):
                    raise error
            return await self._whole.after_run(self.context, result=result)

        self._task = task = loop.create_task(self._whole.wrap_run(self.context, handler=run))
        try:
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        except CancelledError:
            await self.close(None)
            raise
        return task.result() if task.done() and not ready.done() else None

    def enqueued(self) -> list[ModelMessage]:
        """Return what `before_run` has enqueued for the model, once."""
        pending: list[Any] | None = self.context.pending_messages
        found: list[Any] = [message for one in list[Any](pending or ()) for message in one.messages]
        if pending:
            pending.clear()
        return found

    @property
    def has_started(self) -> bool:
        return self._task is not None and not self._task.done()

    async def end(self, output: Any, result: Any = None) -> Any:
        """Call `after_run`, and leave `wrap_run`; return the output that they make of this one."""
        from pydantic_ai.run import AgentRunResult

        assert self._task is not None
        assert self._over is not None
        if not self._over.done():
            self._over.set_result((result if result is not None else AgentRunResult(output), None))
        try:
            await asyncio.wait({self._task})
        except CancelledError:
            await self.close(None)
            raise
        return self._task.result().output

    async def fail(self, error: Exception) -> Any:
        """Call `on_run_error`, and leave `wrap_run`. Return the result, or raise what counts."""
        assert self._task is not None
        assert self._over is not None
        if not self._over.done():
            self._over.set_result((None, error))
        try:
            await asyncio.wait({self._task})
        except CancelledError:
            await self.close(None)
            raise
        if self._task.cancelled():
            raise error
        return self._task.result()

    async def cancel(self, timeout: float) -> None:
        """Call `on_run_error` of a turn that was cancelled, and leave `wrap_run`, within so many seconds."""
        assert self._task is not None
        assert self._over is not None
        if not self._over.done():
            self._over.set_result((None, CancelledError()))
        self._task.add_done_callback(_retrieve)
        await asyncio.wait({self._task}, timeout=timeout)
        await self.close(None)

    async def close(self, timeout: float | None) -> None:
        """Cancel `wrap_run`: the turn waits, or is interrupted. Without a timeout, do not wait for its end."""
        task, self._variables = self._task, {}
        if task is None or task.done():
            return
        task.add_done_callback(_retrieve)
        task.cancel()
        if timeout is not None:
            await asyncio.wait({task}, timeout=timeout)


class HistoryCopy:
    """A history that capabilities may change: what they have changed in a prompt is known afterwards."""

    def __init__(self, history: Sequence[ModelMessage]) -> None:
        self._history = history
        self.messages: list[Any] = [replace(one, parts=[copy.copy(part) for part in one.parts]) for one in history]
        self._parts = [list(one.parts) for one in self.messages]

    def changes(self) -> dict[int, ModelMessage]:
        """Return the requests whose prompts were changed in place, by their places in the history."""
        found: dict[int, Any] = {}
        for at, (before, parts) in enumerate(zip(self._history, self._parts, strict=True)):
            if before.kind == "request" and any(
                part.part_kind == "user-prompt" and part != old for part, old in zip(parts, before.parts, strict=True)
            ):
                found[at] = replace(before, parts=parts)
        return found


@functools.cache
def _stand_in_class() -> Any:
    from pydantic_ai.capabilities import WrapperCapability

    class StandIn(WrapperCapability[Any]):
        """Hands on all hooks of a capability but those of a run."""

        def __init__(self, wrapped: Any, turn: TurnCapabilities, part: int) -> None:
            super().__init__(wrapped=wrapped)
            self._turn = turn
            self._part = part

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or "wrapped" not in self.__dict__:
                raise AttributeError(name)
            return getattr(self.__dict__["wrapped"], name)

        def get_ordering(self) -> Any:
            return self.wrapped.get_ordering()

        async def for_run(self, ctx: Any) -> Any:
            found = await self._turn.for_turn(self._part, self.wrapped, ctx)
            if not _has_hooks(found, OF_A_RUN):
                return found
            if hasattr(found, "dynamic_toolset"):  # of a function, which knows it by this class
                inner = _stand_in(found.wrapped.__class__)(found.wrapped, self._turn, self._part)
                return replace(found, wrapped=inner)
            return _stand_in(found.__class__)(found, self._turn, self._part)

        async def before_run(self, ctx: Any) -> None:
            pass

        async def after_run(self, ctx: Any, *, result: Any) -> Any:
            return result

        async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
            self._turn.entered(ctx)
            return await handler()

        async def on_run_error(self, ctx: Any, *, error: BaseException) -> Any:
            raise error

    return StandIn


@functools.cache
def _stand_in(of: Any) -> Any:
    """Return the class of stand-ins for capabilities of a class: others that look for that class find them."""
    stand_in: Any = type(f"{of.__name__}StandIn", (_stand_in_class(),), {})
    ABCMeta.register(of, stand_in)
    return stand_in


def _has_hooks(root: Any, hooks: Sequence[str] = (*OF_A_RUN, "for_run")) -> bool:
    from pydantic_ai.capabilities import AbstractCapability, WrapperCapability

    base: Any = AbstractCapability
    wrapper: Any = WrapperCapability
    leaves: list[Any] = []
    root.apply(leaves.append)
    for one in leaves:
        is_wrapper = isinstance(one, wrapper)
        if is_wrapper and _has_hooks(one.wrapped, hooks):
            return True
        known: Any = wrapper if is_wrapper else base
        if any(getattr(one.__class__, hook) is not getattr(known, hook) for hook in hooks):
            return True
    return False


def _retrieve(task: Task[Any]) -> None:
    """Take note of how a task ended that nothing waits for."""
    if not task.cancelled():
        task.exception()


def _prompt_of(history: Sequence[ModelMessage]) -> Any:
    """Return what the user said last."""
    for message in reversed(history):
        found: list[Any] = [part.content for part in message.parts if part.part_kind == "user-prompt"]
        if found:
            texts = [one if isinstance(one, str) else list(one) for one in found]
            return (
                texts[0]
                if len(texts) == 1
                else [item for one in texts for item in ([one] if isinstance(one, str) else one)]
            )
    return None
