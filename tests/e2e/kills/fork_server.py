"""The process that servers are forked from: it has imported everything, so that a server starts in a moment.

    python -m tests.e2e.kills.fork_server FOLDER

Each line on standard input is a port and a number of workers, 0 for one process. The answer is the id of the process,
which does what `sapwood serve` does until it is killed. The end of the input ends the last server and this process.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

from tests.faults.worker_server import fork_spawned

from sapwood.cli import server_process
from sapwood.cli.serve_options import ServeOptions

TARGET = "tests.e2e.kills.site:app"
LATE = (
    "tests.e2e.kills.site",
    *server_process.NEEDED_BY_ALL,
    "anyio._backends._asyncio",
    "genai_prices.data",
    "prometheus_client.openmetrics.exposition",
    "sapwood.client.checked_transport",
    "sapwood.protocols.mcp_endpoint",
    "sapwood.web.gateway",
    "sapwood.web.metrics",
    "uvicorn.loops.uvloop",
)
"""What a server imports when it needs it."""


def start(folder: Path, port: int, workers: int) -> int:
    """Fork a server; return its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # its workers too, so that all of them can be killed at once
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(folder / "server.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644), 2)
        os.dup2(2, 1)
        util.spawnv_passfds = fork_spawned
        options = ServeOptions(TARGET, "127.0.0.1", port, data=str(folder / "data"), workers=workers or None)
        server_process.serve(options)
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    os._exit(code)


def reap(*_: object) -> None:
    """Take away servers that have ended, so that the test sees it, and their CPU time counts."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    folder = Path(sys.argv[1])
    for name in LATE:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, reap)
    print("ready", flush=True)
    last = 0
    for line in sys.stdin:
        port, workers = map(int, line.split())
        last = start(folder, port, workers)
        print(last, flush=True)
    if last:
        with suppress(ProcessLookupError):
            os.killpg(last, signal.SIGKILL)


if __name__ == "__main__":
    main()
