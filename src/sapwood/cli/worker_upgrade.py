"""The upgrade of one worker: it hands everything to the worker of the same number of a new server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sapwood.app import App
from sapwood.cli.predecessor import Giver
from sapwood.cli.successor import LOOK, Recipient, until_calls_are_short
from sapwood.cli.upgrade import RELEASE, HandingServer
from sapwood.errors import Refused
from sapwood.kernel.node.node import Node
from sapwood.runtimes.handover_line import HandoverLine, LineLost
from sapwood.runtimes.workers.line import SupervisorLine
from sapwood.runtimes.workers.supervisor import Seat
from sapwood.runtimes.workers.worker_messages import HANDED_OVER, RESUME

log = logging.getLogger("sapwood.server")


class WorkerBefore(Giver):
    """The worker of the old server, seen from the one that takes over from it."""

    def __init__(self, line: HandoverLine, supervisor: Callable[[], SupervisorLine]) -> None:
        super().__init__(line)
        self._supervisor = supervisor
        self._is_released = False

    async def until_released(self) -> None:
        """Say that all is prepared, and return when the old workers run nothing any more."""
        if self._is_released:
            return
        collecting = asyncio.ensure_future(self._collect())
        try:
            await self._supervisor().until_released()
        finally:
            collecting.cancel()
            await asyncio.wait([collecting])
        try:
            while (message := self._line.received_now()) is not None:
                self._add(message)
        except LineLost:
            pass  # all has come
        self._is_released = True

    async def _collect(self) -> None:
        """Take the connections as they come: not all of them fit into the line."""
        try:
            while True:
                self._add(await self._line.received())
        except LineLost:
            pass

    async def serves(self, when_gone: Callable[[], object]) -> None:
        """Return when all workers serve: until then the old ones may serve these clients again."""
        if self._connections:
            await self._supervisor().until_all_serve()


class WorkerUpgrade:
    """Replaces one worker."""

    def __init__(self, seat: Seat, app: App, grace: float, listening: socket.socket | None) -> None:
        self._seat = seat
        self._app = app
        self._grace = grace
        self.listening = listening
        """The public socket; `None` in a pool."""
        self._spare: socket.socket | None = None
        self._spare_for_workers = seat.listening
        """The sockets, to be used again if the new server ends before it serves."""
        before = seat.predecessor
        self.predecessor = None if before is None else WorkerBefore(_line(before.descriptor), lambda: self.line)
        self.connections: list[tuple[int, bytes]] = []
        """Connections to continue at the start."""
        self.server: Callable[[], HandingServer | None] = lambda: None
        self._recipient: Recipient | None = None
        self._switch: asyncio.Task[None] | None = None
        self._supervisor_line: SupervisorLine | None = None

    @property
    def line(self) -> SupervisorLine:
        """The line to the supervisor, while the server runs."""
        assert self._supervisor_line is not None
        return self._supervisor_line

    @line.setter
    def line(self, line: SupervisorLine) -> None:
        self._supervisor_line = line

    async def start(self, node: Callable[[], Node], server: HandingServer) -> dict[str, Any]:
        """Have the supervisor start a new server; return once it is prepared. Raises `Refused` if it cannot start."""
        answer = json.loads(await self.line.upgrade())
        if "error" in answer:
            raise Refused(answer["error"])
        return {"from": RELEASE, **answer}

    def abandon(self) -> None:
        """Do nothing: the supervisor does."""

    def settle(self) -> None:
        """Say when no slow call runs here, because the supervisor asks."""
        self._switch = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        server = self.server()
        assert server is not None
        while not (server.started or server.should_exit):  # noqa: ASYNC110 - uvicorn sets no event at a restart
            await asyncio.sleep(LOOK)
        if not server.should_exit:
            await until_calls_are_short(self._app.node, self._grace, lambda: server.should_exit)
        self.line.settled()

    def hand_over(self) -> None:
        """Hand everything to the new worker, because the supervisor says so."""
        server = self.server()
        if server is None or server.should_exit:
            return
        try:
            self._spare = None if self.listening is None else self.listening.dup()
            self._spare_for_workers = self._seat.listening.dup()
            self._recipient = Recipient(_line(self._seat.successor.descriptor))
        except OSError as error:  # the others wait for this one
            log.error("upgrade: this worker cannot hand over its connections and ends: %s", error)
            server.should_exit = True
            return
        server.hand_over(self._recipient)

    def resumed(self) -> Seat | None:
        """Say that all was handed over; return the seat to serve with again, or `None` if the new server serves."""
        recipient, self._recipient = self._recipient, None
        if recipient is None:
            return None
        try:
            self._seat.line.send_bytes(HANDED_OVER)
            os.set_blocking(self._seat.line.fileno(), True)  # the loop, which has ended, had changed that
            if self._seat.line.recv_bytes() != RESUME:
                return None
        except (EOFError, OSError):
            return None
        self.connections, self.listening = recipient.given, self._spare
        self._seat = replace(self._seat, listening=self._spare_for_workers)
        return self._seat


def _line(descriptor: int) -> HandoverLine:
    return HandoverLine(socket.socket(fileno=socket.dup(descriptor)))
