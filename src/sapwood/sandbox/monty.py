"""Runs code in Monty: a separate Python implementation in Rust, without access to files, network or the host.

Each stretch of code, from the start or a host function's answer to the next call, has its
own process, which ends with it. Monty writes down where the code is when it calls; a
fresh process continues from there.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import os
import sys
import typing
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from sapwood.clock import outside_work
from sapwood.errors import StoredDataError, UsageError
from sapwood.sandbox.contract import Answer, CodeFailure, CodeLimits, Ended, Kind, Paused, Task, printed_too_much

if TYPE_CHECKING:
    from pydantic_monty import AsyncMontySession, Frame, ResourceLimits

GRACE = 2.0
"""Seconds after which a process is killed that did not notice that its time was up."""
CODE = "<python-input-0>"
"""What Monty calls the code."""
MISSING = "Running code needs Monty. Install it with: pip install 'sapwood[sandbox]'."
OF_LIMITS: Mapping[str, str] = {
    "feed time limit exceeded": "The code ran longer than {seconds:g} seconds.",
    "memory limit exceeded": "The code used more than {memory_bytes} bytes of memory.",
    "the worker exceeded its memory limit": "The code used more than {memory_bytes} bytes of memory.",
    "maximum recursion depth exceeded": "The code exceeded the recursion depth of {depth}.",
    "suspension limit": "The code requested unavailable names too often.",
}
KINDS: Mapping[str, Kind] = {
    "NameError": "unknown",
    "ModuleNotFoundError": "unknown",
    "PermissionError": "forbidden",
}


class Monty:
    """Runs code in Monty, which the extra `sandbox` installs. What `run_code` uses unless it is told otherwise.

    It is most of the language and a part of the standard library: no `yield`, no inheritance, no packages. At most
    `processes` of them run at once, by default one for each core; more wait.
    """

    def __init__(self, *, processes: int | None = None) -> None:
        self._processes = processes or max(2, os.cpu_count() or 1)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def start(self, task: Task) -> Paused | Ended:
        """Run code from its beginning."""
        limits = task.limits
        allowed: ResourceLimits = {
            "max_feed_duration_secs": limits.seconds,
            "max_memory": limits.memory_bytes,
            "max_recursion_depth": limits.depth,
        }
        async with self._session(task, allowed) as session:
            stretch = Stretch(task)
            begun = session.feed_start(task.code, inputs={**task.inputs}, print_callback=stretch.hear)
            return await stretch.run(begun)

    async def resume(self, task: Task, snapshot: bytes, answer: Answer) -> Paused | Ended:
        """Continue where the code called a host function. Its limits, and what it took of them, are in the snapshot."""
        pydantic_monty = await _library()
        async with self._session(task) as session:
            try:
                kept = READ(snapshot)
                stretch = Stretch(task, kept.owed)
                paused = await session.load_snapshot(kept.dump, print_callback=stretch.hear)
            except (pydantic_monty.MontyError, msgspec.MsgspecError) as error:
                raise StoredDataError(f"The stored snapshot of interrupted code cannot be decoded: {error}") from None
            return await stretch.run(stretch.answer(paused, answer))

    @asynccontextmanager
    async def _session(
        self, task: Task, limits: ResourceLimits | None = None
    ) -> AsyncGenerator[AsyncMontySession, None]:
        pydantic_monty = await _library()
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = asyncio.Semaphore(self._processes)
        async with turns:
            with outside_work(loop):
                async with (
                    pydantic_monty.AsyncMonty(max_processes=1, request_timeout=task.limits.seconds + GRACE) as pool,
                    pool.checkout(limits=limits, os_policy={"sleep": "zero"}) as session,
                ):
                    yield session


class Snapshot(msgspec.Struct):
    """Where code is that called a host function."""

    dump: bytes
    """Monty's own."""
    owed: dict[int, Answer]
    """Answers that the code awaits and has not received yet, because other parts of it still run; by Monty's number
    of the call."""


READ = msgspec.msgpack.Decoder(Snapshot).decode


class Stretch:
    """What code does from its start, or from an answer, to the next call of a host function or its end."""

    def __init__(self, task: Task, owed: dict[int, Answer] | None = None) -> None:
        self._task = task
        self._owed = owed or {}
        self._printed: list[str] = []
        self._left = task.limits.output_bytes
        self._flooded = False
        self._loop = asyncio.get_running_loop()
        self._full = asyncio.Event()

    def hear(self, stream: str, text: str) -> None:
        """Take what the code prints."""
        data = text.encode()
        self._printed.append(data[: self._left].decode(errors="ignore") if len(data) > self._left else text)
        self._left -= len(data)
        if self._left < 0:
            self._left, self._flooded = 0, True
            self._loop.call_soon_threadsafe(self._full.set)  # Monty calls this from its own thread
            raise MemoryError("too much was printed")

    async def run(self, begun: Awaitable[Any]) -> Paused | Ended:
        """Run it, and say what came of it. What it prints beyond its limit ends it at once."""
        work, full = asyncio.ensure_future(self._work(begun)), asyncio.ensure_future(self._full.wait())
        try:
            await asyncio.wait({work, full}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Ended(failure=printed_too_much(self._task.limits), printed="".join(self._printed))
            return work.result()
        finally:
            work.cancel()  # the session ends its process
            full.cancel()
            await asyncio.wait({work, full})

    async def _work(self, begun: Awaitable[Any]) -> Paused | Ended:
        pydantic_monty = await _library()
        try:
            at = await begun
            while True:
                if isinstance(at, pydantic_monty.MontyComplete):
                    return Ended(at.output, printed="".join(self._printed))
                if isinstance(at, pydantic_monty.AsyncNameLookupSnapshot):
                    name = at.variable_name
                    at = await (at.resume(value=_named(name)) if name in self._task.names else at.resume())
                elif isinstance(at, pydantic_monty.AsyncFutureSnapshot):
                    at = await at.resume({id: _told(self._owed.pop(id, LOST)) for id in at.pending_call_ids})
                elif at.is_os_function:
                    at = await at.resume_not_handled()
                elif at.object_id is not None or at.function_name not in self._task.names:
                    told = f"name {at.function_name!r} is not defined"
                    at = await at.resume({"exc_type": "NameError", "message": told})
                else:
                    snapshot = msgspec.msgpack.encode(Snapshot(at.dump(), self._owed))
                    return Paused(snapshot, at.function_name, at.args, at.kwargs, "".join(self._printed))
        except pydantic_monty.MontyError as error:
            return Ended(failure=self._failure(error), printed="".join(self._printed))

    async def answer(self, paused: Any, answer: Answer) -> Any:
        """Give the code what its host function answered."""
        if not self._is_awaited(paused):
            return await paused.resume(_told(answer))
        self._owed[paused.call_id] = answer
        return await paused.resume({"future": ...})

    def _is_awaited(self, paused: Any) -> bool:
        """Return whether the code says `await` before the call: both ways are right."""
        at = paused.position
        before = self._task.code.encode()[: at.start] if at.filename == CODE else b""
        return paused.allow_eager_await or before.rstrip().endswith(b"await")

    def _failure(self, error: Any) -> CodeFailure:
        limits = self._task.limits
        if self._flooded:
            return printed_too_much(limits)
        kind = type(error).__name__
        if kind == "MontyCrashedError":
            if error.timed_out:
                return CodeFailure("limit", OF_LIMITS["feed time limit exceeded"].format(seconds=limits.seconds))
            return CodeFailure("crashed", str(error))
        frames: list[Frame] = error.traceback() if hasattr(error, "traceback") else []
        line = frames[-1].line if frames else None
        if kind == "MontySyntaxError":
            return CodeFailure("syntax", error.display("msg"), line)
        return _raised(error.display("type-msg") if hasattr(error, "display") else str(error), line, limits)


EVERY = ("Exception", "BaseException")
LOST = Answer(error=("RuntimeError", "The awaited value is unknown."))


def _told(answer: Answer) -> Any:
    """Return an answer as Monty takes it."""
    if answer.error is None:
        return {"return_value": answer.value}
    name, message = answer.error
    known = typing.get_args(sys.modules["pydantic_monty"].ExcType)
    if name in known:
        return {"exc_type": name, "message": message}
    above = [kind.__name__ for kind in getattr(builtins, name, RuntimeError).__mro__[1:]]
    nearest = next((one for one in above if one in known and one not in EVERY), "RuntimeError")
    return {"exc_type": nearest, "message": f"{name}: {message}"}


def _raised(text: str, line: int | None, limits: CodeLimits) -> CodeFailure:
    name, _, said = text.partition(": ")
    for begins, sentence in OF_LIMITS.items():
        if said.startswith(begins):
            told = sentence.format(seconds=limits.seconds, memory_bytes=limits.memory_bytes, depth=limits.depth)
            return CodeFailure("limit", told, line)
    kind = "syntax" if said.startswith("The monty syntax parser does not") else KINDS.get(name, "raised")
    return CodeFailure(kind, text, line)


def _named(name: str) -> Any:
    """Return what stands for a host function inside: only its name goes there."""

    def stand_in() -> None: ...

    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in


async def _library() -> Any:
    """Return Monty's own module; importing it takes a moment, which the loop does not wait for."""
    found = sys.modules.get("pydantic_monty")
    if found is not None and hasattr(found, "__all__"):
        return found
    try:
        return await asyncio.to_thread(importlib.import_module, "pydantic_monty")
    except ImportError as error:
        raise UsageError(MISSING) from error
