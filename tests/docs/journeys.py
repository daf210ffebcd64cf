"""Records the way of a call: the modules of sapwood whose functions carry it, from task to task, to a user's method."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import sapwood

SOURCE = Path(sapwood.__file__).parent
TESTING = "testing"
"""The package whose clock stands for the timer of the event loop."""


class Handoff(NamedTuple):
    """How a task was created."""

    creator: asyncio.Task[Any] | None
    modules: list[str]
    """The modules of the functions that were active, outermost first."""


class Journey(NamedTuple):
    """The modules that a call passes, in order, by task."""

    tasks: list[list[str]]

    @property
    def modules(self) -> set[str]:
        return set(chain.from_iterable(self.tasks))

    @property
    def returns(self) -> int:
        """How often it enters a room that it has left."""
        rooms = _without_repeats([str(Path(one).parent) for one in chain.from_iterable(self.tasks)])
        return len(rooms) - len(set(rooms))

    def since(self, module: str) -> Journey:
        """Return the part that begins with this module."""
        first = next(number for number, task in enumerate(self.tasks) if module in task)
        start = self.tasks[first]
        return Journey([start[start.index(module) :], *self.tasks[first + 1 :]])


class JourneyRecorder:
    """Notes which functions are active when a task is created, and when a call arrives."""

    def __init__(self) -> None:
        self._handoffs: dict[asyncio.Task[Any], Handoff] = {}
        self.journey: Journey | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(self._create_task)
        try:
            yield
        finally:
            loop.set_task_factory(before)

    def _create_task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any) -> Any:
        task = asyncio.Task(work, loop=loop, **more)
        # The function that creates the task is the handoff itself.
        self._handoffs[task] = Handoff(asyncio.current_task(loop), _modules(sys._getframe(1))[:-1])
        return task

    def arrived(self) -> None:
        """Note the journey of the call that has reached this place."""
        tasks, task = [_modules(sys._getframe(1))], asyncio.current_task()
        while task is not None and (handoff := self._handoffs.get(task)) is not None:
            tasks.append(handoff.modules)
            task = handoff.creator
        self.journey = Journey([_without_repeats(one) for one in reversed(tasks) if one])


def _modules(frame: FrameType | None) -> list[str]:
    """Return the modules of sapwood whose functions are active, outermost first."""
    found: list[str] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(SOURCE) and (module := file.relative_to(SOURCE)).parts[0] != TESTING:
            found.append(module.as_posix())
        frame = frame.f_back
    return found[::-1]


def _without_repeats(names: Sequence[str]) -> list[str]:
    return [name for name, _ in groupby(names)]
