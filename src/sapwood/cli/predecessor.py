"""The server that this process takes over from: `sapwood upgrade` made it start this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from sapwood.cli.launch import PREDECESSOR
from sapwood.errors import SapwoodError, Unavailable
from sapwood.runtimes.handover_line import (
    CONNECTION,
    FAILED,
    INHERITANCE,
    PREPARED,
    RELEASED,
    SERVING,
    HandoverLine,
    LineLost,
    Message,
)

log = logging.getLogger("sapwood.server")

LOOK = 0.5
GONE = "The server that this process was to take over from is gone."


class Giver:
    """A process that is taken over from, seen from the one that takes over."""

    def __init__(self, line: HandoverLine) -> None:
        self._line = line
        self._connections: list[tuple[int, bytes]] = []

    def _add(self, message: Message) -> None:
        """Keep a connection, if this is one."""
        if message.kind == CONNECTION:
            self._connections.append((self._line.take_file(), message.facts["received"]))

    def taken_connections(self) -> list[tuple[int, bytes]]:
        """Return the connections of clients that wait for their next request, with what they have sent of it."""
        taken, self._connections = self._connections, []
        return taken


class Predecessor(Giver):
    """The other server, seen from the one that takes over."""

    def __init__(self, line: HandoverLine) -> None:
        super().__init__(line)
        message = line.receive()
        assert message.kind == INHERITANCE
        self.facts: dict[str, Any] = message.facts
        self.listening = socket.socket(fileno=line.take_file())
        self._first = HandoverLine(socket.socket(fileno=line.take_file())) if message.files > 1 else line
        """To the first process of this server."""
        self.more: list[int] = []
        """Other open files: those that a supervisor is given."""
        for _ in range(self.facts["more"]):
            line.receive()
            self.more.append(line.take_file())
        self._is_released = False
        self._is_prepared = threading.Event()
        self._is_done = False
        """Whether this server serves."""

    @classmethod
    def found(cls) -> Predecessor | None:
        """Return the server that started this one to take over. `None` if this one was started otherwise."""
        line = os.environ.pop(PREDECESSOR, None)
        if line is None:
            return None
        end = socket.socket(fileno=int(line))
        end.set_inheritable(False)
        return cls(HandoverLine(end))

    @contextmanager
    def informed(self) -> Generator[None, None, None]:
        """Say why this server cannot start, if it cannot."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if self._is_done:
                raise
            text = str(error) if isinstance(error, SapwoodError) else f"{type(error).__name__}: {error}"
            if isinstance(error, SystemExit):
                text = f"it exits with {error.code}. See the log."
            with contextlib.suppress(LineLost):
                self._line.send(FAILED, error=text if text.endswith((".", "!", "?")) else f"{text}.")
            raise

    def watch(self) -> None:
        """End this process if the other one ends before all is prepared.

        An import may take long, and this process has the socket open: the port would stay in use.
        """
        threading.Thread(target=self._watch, daemon=True, name="predecessor").start()

    def _watch(self) -> None:
        watching = select.poll()
        watching.register(self._line.descriptor, getattr(select, "POLLRDHUP", select.POLLHUP))
        while not self._is_prepared.wait(LOOK):
            if watching.poll(0):
                log.error("%s", GONE)
                os._exit(1)

    def prepared(self) -> None:
        """Watch no more: from now on the line is read."""
        self._is_prepared.set()

    async def until_released(self) -> None:
        """Say that all is prepared, and return when the other server runs nothing any more."""
        if self._is_released:
            return
        self.prepared()
        try:
            self._line.send(PREPARED, version=version("sapwood"))
            while (message := await self._line.received()).kind != RELEASED:
                self._add(message)
        except LineLost:
            raise Unavailable(GONE) from None
        self._is_released = True

    async def serves(self, when_gone: Callable[[], object]) -> None:
        """Say that this server serves now. From then on it is notified when the first process is gone."""
        if not self._is_done:
            self._is_done = True
            with contextlib.suppress(LineLost):  # then the first process is gone, too
                self._line.send(SERVING)
        # Again after an upgrade that failed: then the loop is another one.
        asyncio.get_running_loop().add_reader(self._first.descriptor, self._lost, when_gone)

    def _lost(self, when_gone: Callable[[], object]) -> None:
        asyncio.get_running_loop().remove_reader(self._first.descriptor)
        log.error("the first process of this server is gone, server shuts down")
        when_gone()

    @property
    def line(self) -> HandoverLine:
        """The line to the other server."""
        return self._line

    @property
    def first(self) -> HandoverLine:
        """The line to the first process."""
        return self._first

    def introduce(self, server: int) -> bool:
        """Tell the first process which process serves from now on. Returns `False` if it cannot adopt that process."""
        if sys.platform != "linux":
            return False
        with contextlib.suppress(OSError):
            os.write(self._first.descriptor, struct.pack(">I", server))
        return True
