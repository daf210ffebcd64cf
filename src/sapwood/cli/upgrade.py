"""The upgrade of one running server: from the request to the moment when the successor is given all."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from sapwood.cli.launch import Launch
from sapwood.cli.predecessor import Predecessor
from sapwood.cli.successor import Recipient, Successor, until_calls_are_short
from sapwood.errors import Refused
from sapwood.kernel.node.node import Node

log = logging.getLogger("sapwood.server")

RELEASE = version("sapwood")
"""The release that this process runs, also while another one is being installed."""


def in_progress(process: int) -> str:
    """Return why a second upgrade is refused."""
    return f"An upgrade is in progress. To cancel it, end process {process}, the new server."


class HandingServer(Protocol):
    """A server that can hand what it has to a successor, and end."""

    should_exit: bool
    started: bool

    def hand_over(self, successor: Recipient) -> None: ...


@dataclass(slots=True)
class Upgrade:
    """Replaces one server process."""

    launch: Launch
    listening: socket.socket
    token: str
    grace: float
    """Seconds to wait for slow calls, while everything is served."""
    predecessor: Predecessor | None
    """What this process took over from; `None` if it is the first."""
    connections: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """Connections to continue at the start, each with what the client has sent of a request."""
    successor: Successor | None = None
    _switch: asyncio.Task[None] | None = None
    _spare: socket.socket | None = None
    """The listening socket, to be used again if the successor ends before it serves."""

    async def start(self, node: Callable[[], Node], server: HandingServer) -> dict[str, Any]:
        """Start a new process, return once it is prepared, and then hand over. Raises `Refused` if it cannot start."""
        if self.successor is not None:
            raise Refused(in_progress(self.successor.process.pid))
        if server.should_exit:
            raise Refused("The server shuts down.")
        try:
            if self._spare is None:
                self._spare = self.listening.dup()
            self.successor = successor = Successor(self.launch)
        except (OSError, Refused) as error:
            log.error("upgrade: %s", error)
            raise Refused(str(error)) from error
        log.info("upgrade: starting a new server, process %d", successor.process.pid)
        first = () if self.predecessor is None else (self.predecessor.first.descriptor,)
        successor.inherit(self.listening.fileno(), *first, token=self.token)
        try:
            release = await successor.until_prepared()
        except BaseException as error:
            self.successor = None
            log.error("upgrade: %s", error)
            raise
        log.info("upgrade: process %d is prepared", successor.process.pid)
        self._switch = asyncio.get_running_loop().create_task(self._hand_over(node(), server, successor))
        return {"from": RELEASE, "to": release, "pid": successor.process.pid}

    async def _hand_over(self, node: Node, server: HandingServer, successor: Successor) -> None:
        await until_calls_are_short(node, self.grace, lambda: server.should_exit or not successor.is_alive)
        if server.should_exit:
            return
        if successor.is_alive:
            log.info("upgrade: handing over to process %d", successor.process.pid)
            server.hand_over(successor)
        else:
            log.error("upgrade: the new server has ended; this one continues")
            self.successor = None

    def abandon(self) -> None:
        """End a new process that is not given anything, and refuse clients: this server shuts down."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()  # otherwise clients would wait at it
        successor, self.successor = self.successor, None
        if successor is not None:
            successor.dismiss()

    def until_done(self) -> bool:
        """Wait until a successor serves. Returns `False` if it has ended instead: then this server listens again."""
        assert self.successor is not None
        if self.successor.until_serving():
            return True
        log.error("upgrade: the new server has ended before it served; this one continues")
        assert self._spare is not None
        self.connections = self.successor.given
        self.listening, self._spare, self.successor = self._spare, None, None
        return False
