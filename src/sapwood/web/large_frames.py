"""The large frames of one WebSocket: what they hold of the budget of the process, and how long they may take.

A frame counts as soon as more of it has come than an ordinary one has, and until the app asks for the next one. What
does not fit into the budget is not read: it waits at the client.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from sapwood.web.frame_budget import FrameBudget


class LargeFrames:
    """The large frames of one socket."""

    seconds = 300.0
    """How long one frame may take to arrive, after it was let in."""

    def __init__(
        self,
        budget: FrameBudget,
        ordinary: int,
        largest: int,
        loop: AbstractEventLoop,
        resume: Callable[[], None],
        cut: Callable[[], None],
    ) -> None:
        self.ordinary = ordinary
        self._budget = budget
        self._largest = largest
        self._loop = loop
        self._resume = resume
        self._cut = cut
        self._arriving = False
        """Whether the frame that arrives now was counted, or waits for it."""
        self.is_waiting = False
        self._counted = 0
        """How many frames are counted: the one that arrives, and those that the app has."""
        self._with_app = 0
        self._timer: TimerHandle | None = None

    def came(self, size: int) -> bool:
        """So much of a frame has come; return `False` if no more is to be read now."""
        if size > self.ordinary and not self._arriving:
            self._arriving = True
            self.is_waiting = not self._budget.take(self._largest, self._granted)
            if not self.is_waiting:
                self._begin()
        return not self.is_waiting

    def _granted(self) -> None:
        self.is_waiting = False
        self._begin()
        self._resume()

    def _begin(self) -> None:
        self._counted += 1
        self._timer = self._loop.call_later(self.seconds, self._cut)

    def complete(self) -> None:
        """The frame that arrives is complete."""
        if self.is_waiting:  # all of it had been sent at once
            self._budget.forget(self._granted)
            self.is_waiting = False
        self._arriving = False
        self._stop_timer()

    def delivered(self, size: int) -> None:
        """The app has got a frame, and is done with those before."""
        if size > self.ordinary and self._with_app < self._counted:
            self._with_app += 1

    def asked(self) -> None:
        """The app asks for the next frame."""
        self._give(self._with_app)
        self._with_app = 0

    def end(self) -> None:
        """The socket is closed, and the app has ended."""
        self.lost()
        self._give(self._counted)

    def lost(self) -> None:
        """Nothing more will arrive."""
        self._stop_timer()
        if self.is_waiting:
            self._budget.forget(self._granted)
            self.is_waiting = self._arriving = False
        elif self._arriving:
            self._arriving = False
            self._give(1)

    def _give(self, count: int) -> None:
        self._counted -= count
        for _ in range(count):
            self._budget.give(self._largest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
