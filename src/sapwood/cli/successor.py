"""The process that takes over from this server: it is started and prepared while this one serves, and then given all.

In this order: the listening socket, before it imports the app; each connection of a client that waits for its next
request; the data folder. Until it serves, this process can serve again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from sapwood.cli.launch import Launch
from sapwood.errors import Refused
from sapwood.kernel.node.node import Node
from sapwood.runtimes.handover_line import (
    CONNECTION,
    INHERITANCE,
    PREPARED,
    RELEASED,
    SERVING,
    HandoverLine,
    LineLost,
)

SLOW = 0.5
"""Seconds from which on a call is slow. The others are waited for when the server has stopped accepting."""
LOOK = 0.02
END_TIMEOUT = 5.0


class Recipient:
    """A process that takes over, seen from the one that it takes over from."""

    def __init__(self, line: HandoverLine) -> None:
        self.line = line
        self.given: list[tuple[int, bytes]] = []
        """The connections that it was given. They stay open here until it serves."""

    def give(self, descriptor: int, received: bytes) -> None:
        """Give it the connection of a client, and what the client has sent of a request."""
        self.given.append((descriptor, received))
        with contextlib.suppress(LineLost):
            self.line.send(CONNECTION, descriptor, received=received)

    def release(self) -> None:
        """Tell it that this process has given all, and runs nothing any more."""
        with contextlib.suppress(LineLost):
            self.line.send(RELEASED)


class Successor(Recipient):
    """A server that this one has started to take over. It may be a supervisor with workers."""

    def __init__(self, launch: Launch) -> None:
        line, far_end = HandoverLine.pair()
        super().__init__(line)
        try:
            self.process = launch.start(far_end.descriptor)
        except OSError as error:
            line.close()
            raise Refused(f"The new server cannot be started: {error}. This server continues.") from error
        finally:
            far_end.close()

    def inherit(self, *files: int, more: Sequence[int] = (), **facts: object) -> None:
        """Give it what it needs to prepare itself. One that has ended says so when it is waited for."""
        with contextlib.suppress(LineLost):
            self.line.send(INHERITANCE, *files, more=len(more), **facts)
            for file in more:
                self.line.send(INHERITANCE, file)

    async def until_prepared(self) -> str:
        """Return its version once it has imported and checked the app. Raises `Refused` if it cannot."""
        why = "The new server ended before it was prepared. See the log."
        try:
            message = await self.line.received()
            if message.kind == PREPARED:
                return message.facts["version"]
            why = f"The new server cannot start: {message.facts['error']}"
        except LineLost:
            pass
        except asyncio.CancelledError:
            self.dismiss()
            raise
        await asyncio.to_thread(self.end)
        raise Refused(f"{why} This server continues.")

    @property
    def process_id(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def until_serving(self) -> bool:
        """Wait until it serves. Returns `False` if it has ended instead, or could not be given all."""
        serves = False
        with contextlib.suppress(LineLost):
            while not serves and not self.line.is_lost:
                serves = self.line.receive().kind == SERVING
        if not serves:
            self.end()
        return serves

    def dismiss(self) -> None:
        """Tell it to end."""
        self.line.close()  # it ends by that, too
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it, and return when it has ended, with its workers and all else that it started."""
        self.dismiss()
        try:
            self.process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        end = time.monotonic() + END_TIMEOUT
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none is left
            while time.monotonic() < end:
                os.killpg(self.process.pid, signal.SIGKILL)
                time.sleep(LOOK)


async def until_calls_are_short(node: Node, seconds: float, is_over: Callable[[], bool]) -> None:
    """Return when no call runs that has been running for a while, or after so many seconds.

    What a successor waits for then is over soon: a slow call of one client delays no other client.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    before: dict[int, object] = {}
    while loop.time() < end and not is_over():
        seen = loop.time()
        before = {id(call): call for call in _calls(node)}
        while loop.time() < seen + SLOW and before and not is_over():
            await asyncio.sleep(LOOK)
            running = {id(call) for call in _calls(node)}
            before = {key: call for key, call in before.items() if key in running}
        if not before:
            return


def _calls(node: Node) -> list[object]:
    """Return the calls that a caller waits for. Scheduled work continues in the successor."""
    return [
        call
        for tree in node.trees.values()
        for actor in tree.actors.values()
        for call in actor.calls
        if call.work is None
    ]
