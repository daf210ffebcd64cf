"""What the kernel needs to exchange messages with other nodes."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Protocol


class Exchange(Protocol):
    """One conversation with another node, seen from one of its ends.

    Messages arrive in order, each once, or the conversation fails as a whole. The side that opened it may send several
    messages after the first; the other side sends the last one.
    """

    def send(self, message: bytes) -> Awaitable[None] | None:
        """Send a message; return what to await before the next one, None: nothing.

        The other end grants credit as it takes messages, so no more is sent than it takes.
        """
        ...

    async def receive(self) -> bytes | None:
        """Return the next message. `None` means that was the last one. Raises what the other end failed with.

        `Unavailable` if the other node is gone.
        """
        ...

    def reply(self) -> Future[bytes]:
        """Return what is done with the only message that comes; it fails with what `receive` raises."""
        ...

    def end(self, message: bytes | None = None) -> None:
        """Say the last message, if any, and no more."""
        ...

    def fail(self, error: Exception) -> None:
        """Have the other end raise this error instead of receiving more; it keeps its type."""
        ...

    def drop(self) -> None:
        """Ask the other end to stop what it does for us, and listen to nothing it still says."""
        ...

    async def stop(self) -> None:
        """Ask the other end to stop what it does for us, and return when it has."""
        ...

    def when_stopped(self, act: Callable[[], object]) -> None:
        """Act when the other end asks us to stop, or is gone; at once if it has."""
        ...


Answer = Callable[[bytes, Exchange], None]
"""Takes the first message of an exchange that another node opened. It has to end the exchange sooner or later."""


class Transport(Protocol):
    """Carries exchanges between nodes."""

    async def open(self, node: str, verb: str, message: bytes, *, items: int = 0) -> Exchange:
        """Begin an exchange with a node: say what it is about, and the first message.

        `items`: how many messages the other end may send before the first is taken; 0: as many as fit into a number of
        bytes. `NotBegun` if the node cannot be reached for too long.
        """
        ...

    def open_now(self, node: str, verb: str, message: bytes) -> Exchange | None:
        """Begin an exchange without waiting for anything. `None` means `open` would have to wait."""
        ...

    def answer(self, verb: str, answer: Answer) -> None:
        """Have exchanges about this answered here."""
        ...

    @property
    def held_up(self) -> int:
        """How many exchanges may not send more now, until the other end has taken what it was sent."""
        ...
