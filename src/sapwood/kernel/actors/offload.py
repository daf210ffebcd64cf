"""Work that must not hold up the loop: in a thread, in a process, or as a long query.

What goes there and what comes back are copies, so nothing of an agent is shared.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from sapwood.clock import report_work
from sapwood.errors import NotCopyable, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import running_step
from sapwood.storage.rows import Rows
from sapwood.storage.sql_errors import DatabaseDamage

READER_POLL = 0.01
"""Seconds between two attempts to get a reader, during a backup or an older query of the same agent."""
UNLEASED: Any = object()
"""What a thread returns that did not call the function: the node did not hold its lease."""


class Offload:
    """The threads and processes of one node."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="sapwood-thread")
        self._jobs: set[Future[Any]] = set()
        self._awaited = 0
        """How many results the loop has not got yet."""
        self._end_work_report = report_work(loop, lambda: self._awaited > 0 or bool(self._jobs))

    @property
    def waiting(self) -> int:
        """How many wait for a thread now."""
        return sum(not job.running() for job in self._jobs.copy())

    def _submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Have a thread do it as soon as one is free."""
        job = self._threads.submit(work, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    def _result(self, job: Future[Any]) -> asyncio.Future[Any]:
        """Return what the loop waits for."""
        result = asyncio.wrap_future(job)
        self._awaited += 1
        result.add_done_callback(self._count_result)
        return result

    def _count_result(self, _: object) -> None:
        self._awaited -= 1

    async def in_thread(
        self, actor: Actor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        args, kwargs = _copied((args, kwargs), "The arguments")
        step = running_step.get()

        def work() -> Any:
            running_step.set(step)
            if not actor.host.holds_lease():  # it may have ended while the job waited for a thread
                return UNLEASED
            return _copied(function(*args, **kwargs), f"The result of {_name(function)}")

        while True:
            await actor.until_leased()
            if (value := await self._result(self._submit(work))) is not UNLEASED:
                return value

    async def in_process(
        self, actor: Actor, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # Imported here: most agents never need it.
        from anyio import BrokenWorkerProcess, to_process

        _copied((function, args, kwargs), "The function and its arguments")
        await actor.until_leased()
        # Cancelling kills the worker: nothing else stops code that computes.
        try:
            return await to_process.run_sync(_apply, function, args, kwargs, cancellable=True)
        except BrokenWorkerProcess as error:
            raise UsageError(
                f"The process for {_name(function)} did not start or exited. It imports your program first: keep "
                'the code that starts the app under `if __name__ == "__main__":`.'
            ) from error

    async def read_sql(self, actor: Actor, sql: str, arguments: Sequence[object] | dict[str, object]) -> Rows:
        """Run one query off the loop, on the agent's database as it is now."""
        database, slices = actor.database, actor.home.slices
        while (reader := slices.reader(database)) is None:
            await asyncio.sleep(READER_POLL)
            actor.check_live()
        try:
            return await self._result(self._submit(reader.read, sql, arguments))
        except DatabaseDamage as damage:
            raise database.damaged(str(damage)) from damage
        finally:
            reader.cancel(Unavailable("read_sql() was cancelled."))
            database.readers.discard(reader)  # the thread may not have noticed yet, but its rows go nowhere

    def close(self) -> None:
        self._end_work_report()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _apply(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _copied(value: Any, what: str) -> Any:
    try:
        return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes, read back at once
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the object's own code raises
        raise NotCopyable(f"{what} cannot be copied: {error}") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
