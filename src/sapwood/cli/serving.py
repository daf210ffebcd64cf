"""`serve` and `dev`: run the app in an HTTP server until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, cast
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.supervisors.statreload import StatReload

from sapwood.address import kebab
from sapwood.app import App, check_agents
from sapwood.cli.loading import Loaded, load
from sapwood.cli.terminal import error_line, log_to_stderr
from sapwood.errors import SapwoodError, Unavailable, UsageError
from sapwood.kernel.classes import known
from sapwood.runs.streaming import OpenStreams
from sapwood.runtimes.arranging import arrange, tidy
from sapwood.runtimes.local import sockets_that_fit
from sapwood.runtimes.workers.line import Line
from sapwood.runtimes.workers.placement import Sharing, shared_by
from sapwood.runtimes.workers.supervisor import CLOSED, WHERE, Seat, Supervisor
from sapwood.settings import Durability, Settings
from sapwood.storage.files import Files, FolderLock
from sapwood.timings import DEFAULTS, Timings
from sapwood.web.asgi import ASGI, Receive, Scope, Send
from sapwood.web.connection_limits import ConnectionLimits
from sapwood.web.http_connection import HttpConnection
from sapwood.web.operator import FILE, OperatorDoor
from sapwood.web.server import WebSockets, drain

log = logging.getLogger("sapwood.server")

LOOPBACK_ORIGINS = tuple(
    f"{scheme}://{host}:*" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "[::1]")
)
PINGS = 20.0
LAST_ANSWERS = 3.0
"""Seconds that clients' sockets have to close: first their calls finish, then the clients confirm the close."""
BYTES_PER_CHARACTER = 4
MOST_WORKERS = 256
BACKLOG = 2048
NEEDED_BY_ALL = ("sapwood.cli.serving", "uvicorn.lifespan.on", "sapwood.web.http_connection", "uvicorn.loops.auto")
"""Modules that every worker imports. The served program is not among them: it may start what cannot be shared."""
ASKED_TO_STOP = frozenset({signal.SIGINT, signal.SIGTERM})
NOT_WATCHED = frozenset({"node_modules", "__pycache__", "site-packages"})


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `serve` and `dev`. They are passed to another process, so they are plain values."""

    target: str
    host: str
    port: int
    insecure: bool = False
    dev: bool = False
    data: str | None = None
    access_log: bool = False
    log_level: str = "info"
    grace: float = 10.0
    workers: int | None = None
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    cluster: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of a node of a cluster."""
    timings: Timings = DEFAULTS
    """Loggers of the HTTP server and of the supervisor."""


def serve(options: Options) -> None:
    """Serve until a signal arrives."""
    listening = _listen(options)
    if options.workers is None:
        if options.pools:
            raise UsageError("--pool needs --workers: pools run beside other workers. Add --workers 1 or more.")
        _run(options, sockets=[listening])
    else:
        _supervise(options, options.workers, listening)


def _supervise(options: Options, workers: int, listening: socket.socket) -> None:
    if workers < 1 or workers + sum(options.pools.values()) > MOST_WORKERS:
        raise UsageError(
            f"--workers must be at least 1, and with all pools at most {MOST_WORKERS}, got {options.workers} "
            f"and {sum(options.pools.values())} for pools."
        )
    _log_to_stderr(options)
    app = load(options.target, options.data, **options.cluster).app
    if app.settings.durability == Durability.REPLICATED:
        raise UsageError(
            "--workers cannot be combined with a cluster: a node is one process. Start several nodes on the "
            "machine instead, each with its own --data and --port."
        )
    sharing = shared_by([known(cls) for cls in app.agents], workers, options.pools)
    _check_safe(options, app)
    check_agents(app)  # once, and not in each worker
    listening.listen(BACKLOG)  # so that nobody is refused while a worker starts
    folder, url = Path(app.settings.data), _url(options, listening)
    lock = FolderLock(folder)
    token = secrets.token_urlsafe(32)

    def ready() -> None:
        _write_secret(folder / FILE, {"url": url, "token": token, "pid": os.getpid()})
        many = f"{workers} workers" if workers > 1 else "one worker"
        for pool, size in sharing.pools.items():
            many += f" and {size} for {pool}"
        log.info("sapwood is running at %s with %s, data folder %s", url, many, folder)

    try:
        asyncio.run(_arrange(folder, sharing))
        supervisor = Supervisor(
            sharing,
            _work,
            (options, listening, token),
            folder,
            lock,
            grace=options.grace,
            silence=app.settings.fatal_after + options.timings.worker_silence_timeout,
            public=listening,
            imports=NEEDED_BY_ALL,
            when_ready=ready,
            timings=options.timings,
        )
        code = supervisor.run()
    finally:
        (folder / FILE).unlink(missing_ok=True)
        lock.release()
    log.info("sapwood has stopped")
    if code:
        sys.exit(code)


async def _arrange(folder: Path, sharing: Sharing) -> None:
    tidy(folder)
    arrange(folder, sharing, Files())


def _work(seat: Seat, options: Options, listening: socket.socket, token: str) -> None:
    """Be one worker: serve, until the supervisor says that it is enough."""
    pool = seat.sharing.pool(seat.number)
    _log_to_stderr(options, f"worker {seat.number} {pool and f'({pool}) '}")
    try:
        loaded = load(options.target, options.data)
        loaded.app.share(seat.share())
    except SapwoodError as error:
        sys.exit(error_line(error))
    _answer_where(loaded.app, seat)
    # Clients of all others would wait whenever one of a pool computes, so those take none.
    _serve(options, loaded, token, [] if pool else [listening], seat)


def _answer_where(app: App, seat: Seat) -> None:
    """When the supervisor asks where a worker is that says nothing: end if that is an agent's fault, and say where."""

    def asked(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(UsageError):  # it has not begun
            app.node.watchdog.end_if_stuck()

    signal.signal(WHERE, asked)
    # Written in any case, also where no Python runs any more.
    faulthandler.register(WHERE, file=seat.stacks.descriptor, all_threads=True, chain=True)


def develop(options: Options, folder: Path) -> None:
    """Serve, and restart whenever a file changes."""
    _log_to_stderr(options)
    listening = _listen(options)
    config = uvicorn.Config("", reload=True, reload_dirs=[str(folder)], log_config=None)
    Watch(config, functools.partial(_run, options), [listening]).run()


class Watch(StatReload):
    """Watches the files of the project for changes, but not installed packages."""

    def should_restart(self) -> list[Path] | None:
        # A server that could not start is mended by the next change; one that was killed would be waited for in vain,
        # while its clients hang at a port that is still open.
        ended = self.process.exitcode or 0
        if ended < 0 and -ended not in ASKED_TO_STOP:
            raise UsageError(f"The server was killed by {signal.Signals(-ended).name}. Start it again.")
        return super().should_restart()

    def iter_py_files(self) -> Iterator[Path]:
        for start in self.config.reload_dirs:
            for folder, below, names in os.walk(start):
                below[:] = [one for one in below if _is_written_by_hand(Path(folder, one))]
                yield from (Path(folder, name) for name in names if name.endswith((".py", ".sql")))


def _is_written_by_hand(folder: Path) -> bool:
    return (
        not folder.name.startswith(".")
        and folder.name not in NOT_WATCHED
        and not (folder / "pyvenv.cfg").exists()
        and not (folder / "trees").exists()
    )


def _run(options: Options, sockets: list[socket.socket] | None) -> None:
    assert sockets is not None
    _log_to_stderr(options)
    try:
        loaded = load(options.target, options.data, **options.cluster)
        app = loaded.app
        if options.dev:
            app.configure(check_state=True, origins=(*app.settings.origins, *LOOPBACK_ORIGINS))
        _check_safe(options, app)
        check_agents(app)
    except SapwoodError as error:
        if not options.dev:
            raise
        sys.exit(f"{error_line(error)}\nRetrying when a file changes.")
    _serve(options, loaded, secrets.token_urlsafe(32), sockets)


def _serve(
    options: Options, loaded: Loaded, token: str, sockets: list[socket.socket], seat: Seat | None = None
) -> None:
    app = loaded.app
    door: ASGI = OperatorDoor(loaded.asgi, lambda: app.node, token)
    if is_loopback(options.host) and not options.insecure and (options.dev or app.authenticate is None):
        door = HostCheck(door, app.settings.allowed_hosts)
    server: uvicorn.Server | None = None
    if seat is not None:
        door = Together(door, seat.line, lambda: server, options.grace)
    config = uvicorn.Config(
        door,
        http=cast("type[asyncio.Protocol]", _http(app.settings, options.timings)),
        ws=WebSockets,
        ws_per_message_deflate=False,
        ws_ping_interval=PINGS,
        ws_ping_timeout=PINGS,
        # A message that is too long for the app is refused by the app, which says so.
        ws_max_size=BYTES_PER_CHARACTER * app.settings.frame_bytes + 1,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(options.grace)),
        lifespan="on",
    )
    server = Server(config, options, app, token, sockets[0]) if seat is None else Silent(config, app, seat.line)
    server.run(sockets=sockets)
    if not server.started or (isinstance(server, Server) and server.is_over):
        sys.exit(1)


def _http(settings: Settings, timings: Timings) -> Callable[..., HttpConnection]:
    """Return what uvicorn makes HTTP connections with."""
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "")  # as uvicorn reads it: whose X-Forwarded-For counts
    limits = ConnectionLimits(
        sockets_that_fit(settings.connections),
        settings.connections_per_address,
        ProxyHeadersMiddleware(cast(Any, None), trusted).trusted_hosts,
        log_interval=timings.connection_log_interval,
    )
    return functools.partial(HttpConnection, limits=limits, timings=timings)


class HostCheck:
    """Refuses requests and sockets whose `Host` is neither a loopback name nor a configured one.

    A foreign site can point its own domain name at this machine (DNS rebinding). A browser then treats the server as
    part of that site, and its pages could use every agent of an app without `authenticate`.
    """

    def __init__(self, app: ASGI, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = None if scope["type"] == "lifespan" else Headers(scope=scope).get("host")
        if host is None or self._is_known(host):  # every browser sends a host; some health checks send none
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = (
                "Expected the host 127.0.0.1, localhost or one of Settings(allowed_hosts=…). To allow another, add it "
                "to SAPWOOD_ALLOWED_HOSTS, or start the server with --insecure."
            )
            await PlainTextResponse(text, 421)(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name in self._hosts


class Together:
    """Starts and stops one worker together with the others: while one has clients, all keep serving."""

    def __init__(self, app: ASGI, line: Connection, server: Callable[[], uvicorn.Server | None], grace: float) -> None:
        self._app = app
        self._connection = line
        self._server = server
        self._grace = grace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        line = Line(self._connection, self._end)

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
            server.should_exit = True


class Silent(uvicorn.Server):
    """The server of one worker. The supervisor prints its URL."""

    def __init__(self, config: uvicorn.Config, app: App, line: Connection) -> None:
        super().__init__(config)
        self._app = app
        self._line = line

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._line.send_bytes(CLOSED)
        await _drain(self, self._app)
        await super().shutdown(sockets=sockets)


async def _drain(server: uvicorn.Server, app: App) -> None:
    """Let nobody in, tell everybody to come again when they are answered, and let go of what others may run."""
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
        if app.node.leave is not None:
            await app.node.leave(max(1.0, began + grace - time.monotonic()))


class Server(uvicorn.Server):
    """A server that writes its URL to the log and to the data folder."""

    def __init__(
        self, config: uvicorn.Config, options: Options, app: App, token: str, listening: socket.socket
    ) -> None:
        super().__init__(config)
        self._options = options
        self._app = app
        self._token = token
        self._url = _url(options, listening)
        self._file = Path(app.settings.data) / FILE
        self.is_over = False
        """Whether it ended by itself: its node can never answer again."""

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
            _write_secret(self._file, {"url": self._url, "token": self._token, "pid": os.getpid()})
            pages = [f"{self._url}{path}" for path in page_paths(self._app)]
            log.info("sapwood is running at %s, data folder %s", self._url, self._app.settings.data)
            if self._options.dev and pages:
                log.info("open %s", " or ".join(pages))

    async def _interrupt(self, starting: asyncio.Task[Any]) -> None:
        """Start no more when somebody wants to stop: it may wait for a cluster that does not answer."""
        while not self.should_exit:  # noqa: ASYNC110 - a signal tells nobody
            await asyncio.sleep(0.1)
        starting.cancel()

    async def on_tick(self, counter: int) -> bool:
        with contextlib.suppress(UsageError):  # an app inside another one may not have begun yet
            if not self.should_exit and (why := self._app.node.is_over()) is not None:
                log.error("process exits: %s", why)
                self.is_over = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
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


def _check_safe(options: Options, app: App) -> None:
    if options.insecure or app.authenticate is not None or is_loopback(options.host):
        return
    raise UsageError(
        f"Expected an app with authenticate to listen on {options.host}, got one without: every client that reaches it "
        "could use every agent. Set App(authenticate=…), listen on 127.0.0.1, or pass --insecure if a proxy in "
        "front of the server authenticates clients."
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _reachable(host: str) -> str:
    """Return a host that this machine reaches itself by."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"


def _url(options: Options, listening: socket.socket) -> str:
    return f"http://{_reachable(options.host)}:{listening.getsockname()[1]}"


def _listen(options: Options) -> socket.socket:
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port must be a number from 0 to 65535, got {options.port}.")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {options.host} port {options.port}: {error.strerror}. Choose another port with --port."
        ) from None
    listening.set_inheritable(True)
    return listening


def _write_secret(path: Path, value: dict[str, Any]) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    half = path.with_name(f"{path.name}.{os.getpid()}")
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    half.rename(path)


def _log_to_stderr(options: Options, who: str = "") -> None:
    log_to_stderr(options.log_level, f"%(asctime)s %(levelname)-7s {who}%(message)s", "%H:%M:%S")
    logging.getLogger("sapwood.access").setLevel(logging.INFO if options.access_log else logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("uvicorn.error").addFilter(RepeatFilter(options.timings.connection_log_interval))


class RepeatFilter:
    """A filter for log lines that unauthenticated clients can cause: each at most once per interval."""

    MESSAGES = frozenset({"Invalid HTTP request received.", "Unsupported upgrade request."})

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.msg not in self.MESSAGES:
            return True
        if record.created < self._next.get(record.msg, 0.0):
            return False
        self._next[record.msg] = record.created + self._interval
        return True


def _is_news(record: logging.LogRecord) -> bool:
    """Keep what uvicorn says of its own comings and goings out of a log of agents."""
    raised = record.exc_info[0] if record.exc_info is not None else None
    # It said so in a line before; or the supervisor did, of the worker that ended in the middle of an answer.
    cut_short = raised is not None and issubclass(raised, CancelledError | Unavailable)
    return record.levelno > logging.INFO and not cut_short
