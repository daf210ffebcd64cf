"""The uvicorn server of a process: when it counts as started, and how it shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, MutableMapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn

from sapwood.address import kebab
from sapwood.admin.upgrade import Upgrades
from sapwood.app import App
from sapwood.cli.operator_file import FILE, write_operator_file
from sapwood.cli.predecessor import Predecessor
from sapwood.cli.serve_options import ServeOptions, url_of
from sapwood.cli.successor import Recipient
from sapwood.cli.upgrade import Upgrade
from sapwood.cli.worker_upgrade import WorkerBefore, WorkerUpgrade
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.runs.http.events_http import OpenStreams
from sapwood.runtimes.workers.line import SupervisorLine
from sapwood.runtimes.workers.worker_messages import CLOSED
from sapwood.storage.availability import StorageUnavailable
from sapwood.studio.door import PATH as STUDIO
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.http_connection import HttpConnection
from sapwood.web.server import WebSockets, drain

log = logging.getLogger("sapwood.server")

TICK = 1.0
"""Seconds between two dates in the headers of responses, and between two looks at whether the node still works."""
LAST_ANSWERS = 3.0
"""Seconds that clients' sockets have to close: first their calls finish, then the clients confirm the close."""
LAST_REQUESTS = 1.0
"""Seconds that requests have to be answered before a successor takes over. Slow ones have been waited for."""
LOOK = 0.005


class Together:
    """Starts and stops one worker together with the others: while one has clients, all keep serving."""

    def __init__(
        self,
        app: ASGI,
        line: Connection,
        server: Callable[[], EventServer | None],
        grace: float,
        upgrade: WorkerUpgrade,
    ) -> None:
        self._app = app
        self._connection = line
        self._server = server
        self._grace = grace
        self._upgrade = upgrade

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        line = self._upgrade.line = SupervisorLine(
            self._connection, self._end, self._upgrade.settle, self._upgrade.hand_over
        )

        async def heard() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await line.drained(self._grace)
            return message

        async def said(message: MutableMapping[str, Any]) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                line.ready()

        try:
            await self._app(scope, heard, said)
        finally:
            line.close()

    def _end(self) -> None:
        if (server := self._server()) is not None and not server.should_exit:
            log.error("supervisor exited, worker shuts down")
            server.end()


class EventServer(uvicorn.Server):
    """A server that wakes an idle process once a second, and ends at once when it has to. uvicorn's polls for that.

    It can take over the work of a predecessor when it starts, and hand it to a successor when it ends.
    """

    def __init__(self, config: uvicorn.Config, app: App, upgrade: Upgrade | WorkerUpgrade | None = None) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None
        self._app = app
        self._upgrade = upgrade
        """How it is replaced by another one; `None` if it cannot be."""
        self._taking: asyncio.Task[None] | None = None
        self.successor: Recipient | None = None
        """What everything is handed to; `None` if the server just ends."""

    def hand_over(self, successor: Recipient) -> None:
        """End, and hand everything to the successor."""
        self.successor = successor
        self.end()

    async def take_over(self) -> None:
        """Continue what a predecessor left, if there is one, and let operators replace this server from now on."""
        if (upgrade := self._upgrade) is None:
            return
        with contextlib.suppress(UsageError):  # an app inside another one may not have begun yet
            self._app.node.shared(Upgrades).start = lambda: upgrade.start(lambda: self._app.node, self)
        connections, upgrade.connections = upgrade.connections, []
        await self._adopt(connections)
        if (predecessor := upgrade.predecessor) is not None:
            self._taking = asyncio.get_running_loop().create_task(self._take_connections(predecessor))

    async def _take_connections(self, predecessor: Predecessor | WorkerBefore) -> None:
        """Continue the connections of the predecessor as soon as it serves no more.

        What is read of them before would be missing if the predecessor had to continue.
        """
        await predecessor.serves(self.end)
        await self._adopt(predecessor.taken_connections())

    async def _adopt(self, connections: Iterable[tuple[int, bytes]]) -> None:
        """Continue connections that another server, or this one before, has accepted."""
        loop, config = asyncio.get_running_loop(), self.config

        def protocol(received: bytes) -> asyncio.Protocol:
            make = cast("Callable[..., HttpConnection]", config.http_protocol_class)
            made = make(config=config, server_state=self.server_state, app_state=self.lifespan.state)
            made.received_before = received
            return made

        async def adopt(descriptor: int, received: bytes) -> None:
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # the client is gone
                await loop.connect_accepted_socket(lambda: protocol(received), connection)

        # All at once: each waits for a turn of the loop, and all sockets connect again at this moment.
        await asyncio.gather(*(adopt(*found) for found in connections))

    async def _give(self, successor: Recipient) -> None:
        """Accept no client, and give away each connection that waits for a request, as soon as it does."""
        for server in self.servers:
            server.close()
        with contextlib.suppress(UsageError):
            self._app.node.is_leaving = True
            self._app.node.shared(OpenStreams).end()
        connections = self.server_state.connections
        sockets = [one for one in connections if isinstance(one, WebSockets) and one.drain()]
        end = asyncio.get_running_loop().time() + LAST_REQUESTS
        left: list[HttpConnection] = []
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(LOOK)  # at first for connections that were accepted just now
            left = [one for one in connections if isinstance(one, HttpConnection) and not _given(one, successor)]
            if not left and all(one.close_sent or one.disconnected for one in sockets):
                break
        for one in left:
            one.shutdown()  # with the answer that comes now
        await self.lifespan.shutdown()  # what is still running is answered that it has to be sent again
        successor.release()
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=LAST_REQUESTS)  # until they have said so

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._wake()

    def end(self) -> None:
        """Shut down, as after a signal."""
        self.should_exit = True
        self._wake()

    async def main_loop(self) -> None:
        loop, ending = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(ending.set)  # a signal interrupts the loop anywhere
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await ending.wait()


def _given(connection: HttpConnection, successor: Recipient) -> bool:
    """Give a connection to the successor; return `False` if a request of it is being answered."""
    if (found := connection.detach()) is None:
        return False
    successor.give(*found)
    return True


class QuietServer(EventServer):
    """The server of one worker. The supervisor prints its URL."""

    def __init__(self, config: uvicorn.Config, app: App, line: Connection, upgrade: WorkerUpgrade) -> None:
        super().__init__(config, app, upgrade)
        self._line = line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            await self.take_over()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.successor is not None:
            await self._give(self.successor)
            return
        for server in self.servers:
            server.close()
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._line.send_bytes(CLOSED)
        await _drain(self, self._app)
        await super().shutdown(sockets=sockets)


async def _drain(server: uvicorn.Server, app: App) -> None:
    """Accept no client, tell clients to reconnect once they are answered, and release what other nodes may run."""
    began, grace = time.monotonic(), server.config.timeout_graceful_shutdown or 0
    for one in server.servers:
        one.close()
    with contextlib.suppress(UsageError):  # an app inside another one may not have begun yet
        app.node.is_leaving = True
        app.node.shared(OpenStreams).end()  # they would keep the server from ending
    connections = list(server.server_state.connections)
    for connection in connections:
        if not isinstance(connection, WebSockets):
            connection.shutdown()  # after the answer it is about to give
    await drain(connections, LAST_ANSWERS)
    with contextlib.suppress(UsageError):
        if app.node.cluster is not None:
            await app.node.cluster.leave(max(1.0, began + grace - time.monotonic()))


class Server(EventServer):
    """A server that writes its URL to the log and to the data folder."""

    def __init__(
        self,
        config: uvicorn.Config,
        options: ServeOptions,
        app: App,
        token: str,
        listening: socket.socket,
        upgrade: Upgrade | None = None,
    ) -> None:
        super().__init__(config, app, upgrade)
        self._options = options
        self._token = token
        self._url = url_of(options, listening)
        self._file = Path(app.settings.data) / FILE
        self.is_over = False
        """Whether it ended on its own: its node can never answer again."""
        self.is_refused = False
        """Whether it ended because it could not write to its data folder at the start."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        starting = asyncio.current_task()
        assert starting is not None
        watching = asyncio.ensure_future(self._interrupt(starting))
        try:
            await super().startup(sockets=sockets)
        except CancelledError:
            if not self.should_exit or starting.uncancel():
                raise
        finally:
            watching.cancel()
        if self.started:
            try:
                write_operator_file(self._file.parent, self._url, self._token)
            except StorageUnavailable as error:
                log.error("server cannot start: %s", error)
                self.is_refused = self.should_exit = True
                return
            await self.take_over()
            pages = [f"{self._url}{path}" for path in page_paths(self._app)]
            log.info("sapwood is running at %s, data folder %s", self._url, self._app.settings.data)
            if self._options.dev and pages:
                log.info("open %s", " or ".join(pages))
            if self._options.dev:
                log.info("studio: %s%s/#t=%s", self._url, STUDIO, self._token)
            elif self._options.studio:
                log.info("studio: %s%s/, sign in with the token in %s", self._url, STUDIO, self._file)

    async def _interrupt(self, starting: asyncio.Task[Any]) -> None:
        """Cancel the start when the user wants to stop: it may wait for a cluster that does not answer."""
        while not self.should_exit:  # noqa: ASYNC110 - a signal sets no event
            await asyncio.sleep(0.1)
        starting.cancel()

    async def on_tick(self, counter: int) -> bool:
        with contextlib.suppress(UsageError):  # an app inside another one may not have begun yet
            if not self.should_exit and (why := self._app.node.is_over()) is not None:
                log.error("process exits: %s", why)
                self.is_over = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.successor is not None:
            await self._give(self.successor)
            return
        if self._upgrade is not None:
            self._upgrade.abandon()
        with contextlib.suppress(OSError):  # the file system may be read-only by now
            self._file.unlink(missing_ok=True)
        await _drain(self, self._app)
        await super().shutdown(sockets=sockets)
        log.info("sapwood has stopped")


def page_paths(app: App) -> list[str]:
    """Return the paths of pages to open: the app's own page, or roots that answer requests, with an example name."""
    if app.pages is not None and (app.pages / "index.html").exists():
        return ["/"]
    kinds = [known(cls) for cls in app.agents]
    return [f"/{app.settings.prefix}/{kebab(kind.type)}/main" for kind in kinds if kind.overrides("on_request")]
