"""Runs each tool call of a model once: what came of it is stored, and found again after a crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sapwood.chat.store.chunks import json_of
from sapwood.chat.store.file_references import revived
from sapwood.chat.tools.tools import Toolbox
from sapwood.errors import NotCopyable
from sapwood.kernel.marshal.copier import json_to_copy
from sapwood.mcp_client.tool_calls import when_sent_again

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart

INTERRUPTED = (
    "The tool call was interrupted: the process that ran it ended before it returned. It may or may not have had an "
    "effect. Tell the user, or check before you call it again."
)


class Journal(Protocol):
    """Remembers which tool calls were begun and how they ended."""

    async def begun(self, id: str, name: str, input: str) -> tuple[str, str | None, str | None] | None:
        """Note that a call begins; return status, result and error if it had begun before."""
        ...

    def begun_again(self, id: str) -> None:
        """Note that a call is repeated that a crash interrupted."""
        ...

    async def ended(self, id: str, *, result: str | None = None, error: str | None = None) -> None: ...

    async def kept(self) -> None:
        """Return when what was noted is kept."""
        ...

    async def until_leased(self) -> None:
        """Return when the node holds its lease, so that a tool may act."""
        ...


class ToolTurn(Protocol):
    """What the tool calls of a turn need of it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def toolbox(self) -> Toolbox: ...

    @property
    def within(self) -> Callable[[str, str], AbstractContextManager[None]]: ...

    @property
    def before_tool_call(self) -> Callable[[str, dict[str, Any]], Any]: ...

    @property
    def after_tool_call(self) -> Callable[[str, dict[str, Any], Any], Any]: ...

    @property
    def stored_bytes(self) -> Callable[[Any], Awaitable[Any]]: ...

    @property
    def tool_raised(self) -> Callable[[str, Exception], str]: ...


def _note_again(turn: ToolTurn, id: str, name: str) -> None:
    """Note that a call is repeated, unless it continues where it was."""
    if not turn.toolbox.resumes(name):
        turn.journal.begun_again(id)


@contextmanager
def _noting(again: Callable[[], None]) -> Generator[None, None, None]:
    """Call this if a call in the block is sent to a server again."""
    token = when_sent_again.set(again)
    try:
        yield
    finally:
        when_sent_again.reset(token)


def Journalled(turn: ToolTurn) -> Any:  # noqa: N802 - it makes a class, which needs Pydantic AI to be imported
    from pydantic_ai import ModelRetry, ToolFailed
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import (
        ApprovalRequired,
        CallDeferred,
        SkipToolExecution,
        ToolFailedError,
        ToolRetryError,
    )

    class Journalled(AbstractCapability[Any]):
        """Around all others: what they make of a tool call is part of what is remembered of it."""

        def get_ordering(self) -> Any:
            return CapabilityOrdering(position="outermost")

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
            id, name, journal = call.tool_call_id, call.tool_name, turn.journal
            if tool_def.kind == "output":
                await journal.until_leased()
                return await handler(args)
            noted = await journal.begun(id, name, msgspec.json.encode(json_of(args)).decode())
            if noted is not None:
                status, result, error = noted
                if status == "done":
                    return revived(msgspec.json.decode(result or "null"))
                if status == "failed":
                    raise ToolFailed(error or "")
                if status == "running" and not turn.toolbox.is_idempotent(name):
                    await journal.ended(id, error=INTERRUPTED)
                    raise ToolFailed(INTERRUPTED)
                _note_again(turn, id, name)
            await journal.kept()
            try:
                try:
                    with turn.within(id, name), _noting(lambda: journal.begun_again(id)):
                        value = await turn.toolbox.run(id, lambda: handler(args))
                except SkipToolExecution as skipped:
                    value = skipped.result
                value = await turn.stored_bytes(value)
            except (ModelRetry, ToolRetryError, ApprovalRequired, CallDeferred, ToolFailed, ToolFailedError) as error:
                if isinstance(error, ToolFailed | ToolFailedError):
                    await journal.ended(id, error=str(error))
                raise
            except Exception as error:
                told = turn.tool_raised(name, error)
                await journal.ended(id, error=told)
                raise ToolFailed(told) from error
            await _store(turn, id, name, value)
            return value

        async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:
            call = output_context.tool_call
            if call is None or not output_context.has_function or ctx.partial_output:
                return await handler(output)
            return await _output(
                turn, call, lambda: turn.toolbox.run_output(call.tool_call_id, lambda: handler(output))
            )

    return Journalled()


async def _store(turn: ToolTurn, id: str, name: str, value: Any) -> None:
    """Remember the result of a tool call; raise if it is no value that can be stored."""
    from pydantic_ai import ToolFailed

    try:
        result = json_to_copy(json_of(value), "its result").decode()
    except (ValueError, NotCopyable) as error:
        turn.tool_raised(name, error)
        is_json = isinstance(error, NotCopyable)
        told = f"{name} ran, but {error if is_json else f'its result is not a JSON value: {error}'}"
        await turn.journal.ended(id, error=told)
        raise ToolFailed(told) from error
    await turn.journal.ended(id, result=result)


def Hooked(turn: ToolTurn) -> Any:  # noqa: N802 - it makes a class, which needs Pydantic AI to be imported
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering

    class Hooked(AbstractCapability[Any]):
        """Inside all others: the hooks of the agent see the arguments with which a tool runs."""

        def get_ordering(self) -> Any:
            return CapabilityOrdering(position="innermost")

        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            await turn.before_tool_call(call.tool_name, args)
            await turn.journal.until_leased()
            return args

        async def after_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, result: Any) -> Any:
            await turn.after_tool_call(call.tool_name, args, result)
            return result

    return Hooked()


async def _output(turn: ToolTurn, call: ToolCallPart, function: Callable[[], Awaitable[Any]]) -> Any:
    """Return what the output function returns that a model has called; it runs once for each call."""
    from pydantic_ai import ModelRetry

    id, name, journal = call.tool_call_id, call.tool_name, turn.journal
    noted = await journal.begun(id, name, call.args_as_json_str())
    if noted is not None:
        status, result, _ = noted
        if status == "done":
            return msgspec.json.decode(result or "null")
        raise ModelRetry(INTERRUPTED)
    await journal.kept()
    with turn.within(id, name):
        value = await turn.toolbox.run_output(id, function)
    await journal.ended(id, result=json_to_copy(json_of(value), f"The result of {name}").decode())
    return value
