"""Runs code to its end, and resumes it if the process crashes.

Each time the code calls a host function, what the executor needs to continue is kept, then
the function is called, then its answer is kept. Work that resumes after a
crash calls this again with the same code, and continues from the last stored snapshot. Between two calls the code has
no visible effect, so it can run twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from sapwood.capabilities.steps import Steps, StoredProgress, Work
from sapwood.errors import SapwoodError, StoredDataError, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.runs.dispatch.run_request import ToolCall, tool_call
from sapwood.sandbox.bindings import Bindings, checked, plain
from sapwood.sandbox.contract import (
    Answer,
    CodeFailure,
    CodeLimits,
    CodeResult,
    Ended,
    Executor,
    Paused,
    Task,
    bound_failure,
    in_words,
    printed_too_much,
)
from sapwood.sandbox.monty import Monty
from sapwood.settings import Limits

DEFAULT = Monty()
USUAL_LIMITS = CodeLimits()
PAYLOAD = Limits().payload_bytes
SHOWN = 500
"""Characters of a value that cannot be passed on as it is."""


class CodeProgress(msgspec.Struct):
    """How far code got."""

    code: bytes
    """A digest of it: what is kept belongs to this code and no other."""
    calls: int = 0
    printed: str = ""
    snapshot: bytes | None = None
    """The snapshot for the executor. `None` means that the code has not called a function yet."""
    function: str = ""
    arguments: bytes = b""
    """What it called last, and with what."""
    answer: Answer | None = None
    """The answer to that call. `None` means that there is none yet."""
    counted: tuple[int, int] = (0, 0)
    """How many runs and sleeps came before: what host functions do next is numbered as if they all had been called."""
    result: CodeResult | None = None
    """The result. `None` means that the code has not finished."""


async def run_code(
    code: str,
    bindings: Mapping[str, Callable[..., Any]] | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    limits: CodeLimits = USUAL_LIMITS,
    executor: Executor | None = None,
) -> CodeResult:
    """Run untrusted Python without files and network, with these functions only, and return its result.

    `bindings` are the functions it may call, by name: methods of this agent, of a stub, or any other. They get plain
    data that fits their annotations. `inputs` are predefined variables. Errors in the code are
    part of the result and are not raised.

    In a tool, in a fiber, and in a method that was scheduled or queued, it survives a crash: the code resumes at
    its last call of a host function, and calls that were answered are not made again. Mark such a tool as `idempotent`.
    """
    given, found = bindings or {}, inputs or {}
    checked(given, found)
    if not _is_text(code):
        return CodeResult(failure=CodeFailure("syntax", "The code contains unpaired surrogates and is not valid text."))
    place, actor = _place()
    bound = Bindings(given, PAYLOAD if actor is None else actor.limits.payload_bytes)
    task = Task(code, bound.names, {name: plain(value, PAYLOAD) for name, value in found.items()}, limits)
    return await CodeExecution(task, bound, executor or DEFAULT, place).run()


class CodeExecution:
    """One run of code."""

    def __init__(self, task: Task, bound: Bindings, executor: Executor, place: StoredProgress | None) -> None:
        self._task = task
        self._bound = bound
        self._executor = executor
        self._place = place
        """Where it is kept how far it got, or `None` if it is never begun again."""
        self._at = self._begin()

    async def run(self) -> CodeResult:
        """Run it to its end."""
        at = self._at
        while at.result is None:
            if at.snapshot is None:
                stretch = await self._executor.start(self._task)
            else:
                if at.answer is None:
                    await self._call()
                assert at.answer is not None
                stretch = await self._executor.resume(self._task, at.snapshot, at.answer)
            self._check_live()
            self._take(stretch)
            await self._keep()
        return at.result

    async def _call(self) -> None:
        at = self._at
        if self._place is not None:
            await self._place.actor.until_leased()
        token = inside.set(None if self._place is None else f"{self._place.name} {at.calls}")
        try:
            answer = self._bound.call(at.function, at.arguments)
            if not isinstance(answer, Answer):
                answer = await answer
                self._check_live()
        finally:
            inside.reset(token)
        # In the slice of a function that awaits nothing: what it wrote and that it did are kept together.
        at.answer = answer
        await self._keep()

    def _take(self, stretch: Paused | Ended) -> None:
        """Note how far it got, and whether it is over."""
        at, limits = self._at, self._task.limits
        at.printed += stretch.printed
        if len(at.printed.encode()) > limits.output_bytes:
            at.printed = at.printed.encode()[: limits.output_bytes].decode(errors="ignore")
            return self._end(failure=printed_too_much(limits))
        if isinstance(stretch, Ended):
            return self._end(stretch.value, stretch.failure)
        if at.calls >= limits.calls:
            return self._end(failure=CodeFailure("limit", f"The code may call functions {limits.calls} times."))
        packed = self._bound.pack(stretch.function, stretch.args, stretch.kwargs)
        if self._place is not None and len(stretch.snapshot) > self._place.actor.limits.payload_bytes:
            return self._end(
                failure=CodeFailure(
                    "limit", f"The code holds too much state to be stored: {len(stretch.snapshot)} bytes."
                )
            )
        at.calls += 1
        at.snapshot, at.function = stretch.snapshot, stretch.function
        at.arguments, at.answer = (b"", packed) if isinstance(packed, Answer) else (packed, None)
        return None

    def _end(self, value: Any = None, failure: CodeFailure | None = None) -> None:
        at, most = self._at, self._task.limits.output_bytes
        answered = at.answer
        if failure is not None and failure.kind != "limit" and answered is not None and answered.error is not None:
            name, said = answered.error
            # As the code words it: KeyError quotes, and one it does not know comes after one it does.
            if failure.message.endswith((f"{name}: {said}", f"{name}: {said!r}")):
                failure = CodeFailure("binding", f"{at.function}() raised {name}: {said}", failure.line)
        if failure is None:
            try:
                value = plain(value, most)
            except SapwoodError as error:
                if getattr(error, "limit", ""):
                    value, failure = None, CodeFailure("limit", f"The code returned more than {most} bytes.")
                else:
                    value = in_words(value)[:SHOWN]
        if failure is not None:
            failure = bound_failure(failure, most)
        at.result = CodeResult(None if failure is not None else value, at.printed, failure, at.calls)
        at.snapshot = at.answer = None
        at.printed, at.arguments = "", b""

    def _begin(self) -> CodeProgress:
        digest = hashlib.sha256(self._task.code.encode()).digest()
        stored = None if self._place is None else self._place.read()
        if self._place is None or stored is None:
            return CodeProgress(digest)
        try:
            progress = READ(stored)
        except msgspec.MsgspecError as error:
            raise StoredDataError(f"The stored progress of interrupted code cannot be decoded: {error}") from None
        if progress.code != digest:
            raise UsageError(
                "run_code() got different code after a restart: the code must be the same on every attempt. "
                "Compute it in a step()."
            )
        counter, work = _counter(self._place), self._place.work
        counter.runs = max(counter.runs, progress.counted[0])
        work.sleeps = max(work.sleeps, progress.counted[1])
        return progress

    async def _keep(self) -> None:
        if self._place is not None:
            self._place.actor.check_live()
            self._at.counted = (_counter(self._place).runs, self._place.work.sleeps)
            self._place.write(msgspec.msgpack.encode(self._at))
            await self._place.actor.leave()

    def _check_live(self) -> None:
        if self._place is not None:
            self._place.actor.check_live()


READ = msgspec.msgpack.Decoder(CodeProgress).decode


def _is_text(code: str) -> bool:
    try:
        code.encode()
    except UnicodeEncodeError:
        return False
    return True


inside: ContextVar[str | None] = ContextVar("sapwood_code", default=None)
"""The call of a host function that is under way, by which code that it has run is told from that of other calls."""


def _place() -> tuple[StoredProgress | None, Actor | None]:
    """Return where code that runs now keeps how far it got, and the agent it runs for."""
    call = current.get()
    actor = None if call is None else call.actor
    if not isinstance(actor, Actor):
        return None, None
    actor.check_use()
    asked = _asked(actor)
    what = inside.get() or ("run_code" if asked is None else f"run_code {asked.id}")
    return actor.of(Steps).place(what), actor


def _asked(actor: Actor) -> ToolCall | None:
    asked = tool_call.get()
    return asked if asked is not None and asked.actor is actor else None


def _counter(place: StoredProgress) -> ToolCall | Work:
    """Return what counts the runs that are given here."""
    return _asked(place.actor) or place.work
