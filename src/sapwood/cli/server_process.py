"""`serve` and `dev`: run the app in an HTTP server until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from sapwood.admin.door import AdminDoor
from sapwood.app import App, check_agents
from sapwood.cli.app_loader import LoadedApp, load
from sapwood.cli.file_watch import FileWatch
from sapwood.cli.first_process import become_first_process
from sapwood.cli.host_check import HostCheck
from sapwood.cli.http_servers import EventServer, QuietServer, Server, Together
from sapwood.cli.launch import Launch
from sapwood.cli.operator_file import FILE, write_operator_file
from sapwood.cli.predecessor import Predecessor
from sapwood.cli.serve_options import ServeOptions, activated_socket, at_address_of, is_loopback, listen, url_of
from sapwood.cli.server_log import errors_in_log, exit_with, log_server
from sapwood.cli.successor import Successor
from sapwood.cli.upgrade import Upgrade
from sapwood.cli.worker_upgrade import WorkerUpgrade
from sapwood.errors import SapwoodError, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.runtimes.local import sockets_that_fit
from sapwood.runtimes.repartition import arrange, tidy
from sapwood.runtimes.workers.placement import ShardPlan, shared_by
from sapwood.runtimes.workers.supervisor import WHERE, Seat, Supervisor
from sapwood.runtimes.workers.supervisor_upgrade import WorkersBefore
from sapwood.settings import DEV_HISTORY, Durability, Settings
from sapwood.storage.availability import StorageUnavailable, probe
from sapwood.storage.files import Files, FolderLock
from sapwood.studio.door import StudioDoor
from sapwood.timings import Timings
from sapwood.web.asgi_types import ASGI
from sapwood.web.connection_limits import ConnectionLimits
from sapwood.web.frame_budget import FrameBudget
from sapwood.web.http_connection import HttpConnection
from sapwood.web.server import WebSockets

log = logging.getLogger("sapwood.server")

LOOPBACK_ORIGINS = tuple(
    f"{scheme}://{host}:*" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "[::1]")
)
PINGS = 20.0
BYTES_PER_CHARACTER = 4
MOST_WORKERS = 256
BACKLOG = 2048
NEEDED_BY_ALL = (
    "sapwood.cli.server_process",
    "uvicorn.lifespan.on",
    "sapwood.web.http_connection",
    "uvicorn.loops.auto",
)
"""Modules that every worker imports. The served program is not among them: it may start what cannot be shared."""


def serve(options: ServeOptions) -> None:
    """Serve until a signal arrives."""
    predecessor = Predecessor.found()
    if predecessor is not None:
        predecessor.watch()
    with errors_in_log(options), contextlib.nullcontext() if predecessor is None else predecessor.informed():
        _serve_app(options, predecessor)


def _serve_app(options: ServeOptions, predecessor: Predecessor | None) -> None:
    inherited = activated_socket() if predecessor is None else predecessor.listening
    launch = Launch.of_this_process()
    if inherited is not None:
        options = at_address_of(inherited, options)
    listening = inherited or listen(options)
    if options.workers is not None:
        _supervise(options, options.workers, listening, launch, predecessor)
        return
    if options.pools:
        raise UsageError("--pool needs --workers: pools run beside other workers. Add --workers 1 or more.")
    token = secrets.token_urlsafe(32) if predecessor is None else predecessor.facts["token"]
    loaded = _loaded(options)
    if loaded.app.settings.durability == Durability.REPLICATED:
        _serve(options, loaded, token, [listening])
        return
    if predecessor is not None:
        loaded.app.share(None, predecessor)
    upgrade = Upgrade(launch, listening, token, options.grace, predecessor)
    while True:
        _serve(options, loaded, token, [upgrade.listening], upgrade=upgrade)
        if (successor := upgrade.successor) is None:
            return
        if upgrade.until_done():
            _leave_to(successor, predecessor)


def _leave_to(successor: Successor, predecessor: Predecessor | None) -> NoReturn:
    """End, as a successor serves: the first process stays, and becomes a small program that waits for the server."""
    log.info("upgrade: process %d serves now", successor.process.pid)
    logging.shutdown()
    if predecessor is None or not predecessor.introduce(successor.process.pid):
        become_first_process(successor.process.pid, successor.line)
    os._exit(0)  # at once: the successor has all, and libraries that clean up may harm what it uses


def _supervise(
    options: ServeOptions, workers: int, listening: socket.socket, launch: Launch, predecessor: Predecessor | None
) -> None:
    if workers < 1 or workers + sum(options.pools.values()) > MOST_WORKERS:
        raise UsageError(
            f"--workers must be at least 1, and with all pools at most {MOST_WORKERS}, got {options.workers} "
            f"and {sum(options.pools.values())} for pools."
        )
    log_server(options)
    app = load(options.target, options.data, **options.cluster).app
    if app.settings.durability == Durability.REPLICATED:
        raise UsageError(
            "--workers cannot be combined with a cluster: a node is one process. Start several nodes on the "
            "machine instead, each with its own --data and --port."
        )
    sharing = shared_by([known(cls) for cls in app.agents], workers, options.pools)
    _check_safe(options, app)
    check_agents(app)  # once, and not in each worker
    _check_writable(Path(app.settings.data))
    listening.listen(BACKLOG)  # so that no client is refused while a worker starts
    folder, url = Path(app.settings.data), url_of(options, listening)
    before: WorkersBefore | None = None
    if predecessor is None:
        token, lock = secrets.token_urlsafe(32), FolderLock(folder)
    else:
        inherited, *lines = predecessor.more
        if len(lines) != sharing.count:
            raise UsageError(
                f"The new code has {sharing.count} workers and the running server {len(lines)}: pools have changed. "
                "Restart the server instead."
            )
        token, lock = predecessor.facts["token"], FolderLock(folder, inherited=inherited)
        facts = {"version": version("sapwood"), "pid": os.getpid()}
        before = WorkersBefore(predecessor.line, predecessor.first, lines, facts)
    successor: Successor | None = None

    def start_successor(lines: Sequence[int]) -> Successor:
        nonlocal successor
        successor = Successor(launch)
        log.info("upgrade: starting a new server, process %d", successor.process_id)
        first = () if predecessor is None else (predecessor.first.descriptor,)
        successor.inherit(listening.fileno(), *first, more=[lock.descriptor, *lines], token=token)
        return successor

    def ready() -> None:
        try:
            write_operator_file(folder, url, token)
        except StorageUnavailable as error:
            log.error("commands cannot find this server: %s", error)
        many = f"{workers} workers" if workers > 1 else "one worker"
        for pool, size in sharing.pools.items():
            many += f" and {size} for {pool}"
        log.info("sapwood is running at %s with %s, data folder %s", url, many, folder)

    supervisor: Supervisor | None = None
    if predecessor is not None:
        predecessor.prepared()
    try:
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
            prepare_folder=lambda: asyncio.run(_arrange(folder, sharing)),
            start_successor=start_successor,
            predecessor=before,
            timings=options.timings,
        )
        code = supervisor.run()
        if supervisor.is_replaced:
            assert successor is not None
            if supervisor.is_asked_to_stop:
                successor.process.send_signal(signal.SIGTERM)
            _leave_to(successor, predecessor)
    finally:
        if before is None or before.is_done:  # otherwise the file is the predecessor's
            with contextlib.suppress(OSError):  # the file system may be read-only by now
                (folder / FILE).unlink(missing_ok=True)
        lock.release()
    log.info("sapwood has stopped")
    if code:
        sys.exit(code)


async def _arrange(folder: Path, sharing: ShardPlan) -> None:
    tidy(folder)
    arrange(folder, sharing, Files())


def _work(seat: Seat, options: ServeOptions, listening: socket.socket, token: str) -> None:
    """Be one worker: serve, until the supervisor says that it is enough."""
    _keep_files()
    pool = seat.sharing.pool(seat.number)
    log_server(options, seat.number, pool)
    with errors_in_log(options):
        _serve_share(seat, options, listening, token, pool)


def _serve_share(seat: Seat, options: ServeOptions, listening: socket.socket, token: str, pool: str) -> None:
    try:
        loaded = load(options.target, options.data)
        # Clients of all others would wait whenever one of a pool computes, so those take none.
        upgrade = WorkerUpgrade(seat, loaded.app, options.grace, None if pool else listening)
        loaded.app.share(seat.share(), upgrade.predecessor)
    except SapwoodError as error:
        exit_with(error, options)
    _answer_where(loaded.app, seat)
    while True:
        _serve(options, loaded, token, [] if upgrade.listening is None else [upgrade.listening], seat, upgrade)
        if (again := upgrade.resumed()) is None:
            return
        loaded.app.share(again.share())


def _answer_where(app: App, seat: Seat) -> None:
    """When the supervisor asks where a worker is that says nothing: end if that is an agent's fault, and say where."""

    def asked(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(UsageError):  # it has not begun
            app.node.watchdog.end_if_stuck()

    signal.signal(WHERE, asked)
    # Written in any case, also where no Python runs any more.
    faulthandler.register(WHERE, file=seat.stacks.descriptor, all_threads=True, chain=True)


def develop(options: ServeOptions, folder: Path) -> None:
    """Serve, and restart whenever a file changes."""
    log_server(options)
    with errors_in_log(options):
        listening = listen(options)
    config = uvicorn.Config("", reload=True, reload_dirs=[str(folder)], log_config=None)
    token = secrets.token_urlsafe(32)  # one for all restarts, so that an open studio stays signed in
    FileWatch(config, functools.partial(_run_watched, options, token), [listening]).run()


def _run_watched(options: ServeOptions, token: str, sockets: list[socket.socket] | None) -> None:
    _keep_files()
    with errors_in_log(options):
        _run(options, sockets, token)


def _keep_files() -> None:
    """Keep the files and sockets that this process was given from the programs that it starts.

    A program that outlives us, such as the process of a sandbox, would hold the port and the data folder.
    """
    for file in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - they are numbers
        if file > 2:  # all but standard input, output and error
            with contextlib.suppress(OSError):  # the listing itself is closed by now
                os.set_inheritable(file, False)


def _run(options: ServeOptions, sockets: list[socket.socket] | None, token: str) -> None:
    assert sockets is not None
    try:
        loaded = _loaded(options)
    except SapwoodError as error:
        exit_with(error, options, "Retrying when a file changes.")
    _serve(options, loaded, token, sockets)


def _loaded(options: ServeOptions) -> LoadedApp:
    """Import the app, and refuse one that cannot be served."""
    log_server(options)
    loaded = load(options.target, options.data, **options.cluster)
    app = loaded.app
    if options.dev:
        app.configure(check_state=True, origins=(*app.settings.origins, *LOOPBACK_ORIGINS))
        if app.settings.history is None and app.settings.durability != Durability.REPLICATED:
            app.configure(history=DEV_HISTORY)
    _check_safe(options, app)
    check_agents(app)
    return loaded


def _serve(
    options: ServeOptions,
    loaded: LoadedApp,
    token: str,
    sockets: list[socket.socket],
    seat: Seat | None = None,
    upgrade: Upgrade | WorkerUpgrade | None = None,
) -> None:
    app = loaded.app
    door: ASGI = AdminDoor(loaded.asgi, lambda: app.node, token)
    if options.dev or options.studio:
        door = StudioDoor(door, app.settings.allowed_hosts, lambda: app.node, checks_host=not options.insecure)
    if is_loopback(options.host) and not options.insecure and (options.dev or app.authenticate is None):
        door = HostCheck(door, app.settings.allowed_hosts)
    server: EventServer | None = None
    if seat is not None:
        assert isinstance(upgrade, WorkerUpgrade)
        door = Together(door, seat.line, lambda: server, options.grace, upgrade)
        upgrade.server = lambda: server
    try:
        _check_writable(Path(app.settings.data))
    except StorageUnavailable as error:
        log.error("server cannot start: %s", error)
        sys.exit(STARTUP_FAILURE)
    budget = FrameBudget(app.settings.file_frames_bytes)
    config = uvicorn.Config(
        door,
        http=cast("type[asyncio.Protocol]", _http(app.settings, options.timings)),
        ws=cast("type[asyncio.Protocol]", functools.partial(WebSockets, budget=budget)),
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
    if isinstance(upgrade, WorkerUpgrade):
        assert seat is not None
        server = QuietServer(config, app, seat.line, upgrade)
    else:
        server = Server(config, options, app, token, sockets[0], upgrade)
    server.run(sockets=sockets)
    if isinstance(server, Server) and server.is_refused:
        sys.exit(STARTUP_FAILURE)
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


def _check_safe(options: ServeOptions, app: App) -> None:
    if options.insecure or app.authenticate is not None or is_loopback(options.host):
        return
    raise UsageError(
        f"Expected an app with authenticate to listen on {options.host}, got one without: every client that reaches it "
        "could use every agent. Set App(authenticate=…), listen on 127.0.0.1, or pass --insecure if a proxy in "
        "front of the server authenticates clients."
    )


def _check_writable(folder: Path) -> None:
    """Raise `StorageUnavailable` if the data folder, which may not exist yet, cannot be written now."""
    existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if (refusal := probe(existing)) is not None:
        raise StorageUnavailable(f"The data folder {str(folder)!r} cannot be written. {refusal}", refusal.reason)
