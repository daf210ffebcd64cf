"""Servers in processes of their own, for whatever is measured over a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PORT = "PORT"
"""Stands for the port among the arguments of a process."""


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_listening(port: int) -> None:
    """Return when a server listens at a port."""
    for _ in range(3000):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError("the server did not start")


@contextmanager
def started(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a program until this block ends."""
    one = subprocess.Popen(command, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
    try:
        yield one
    finally:
        one.send_signal(signal.SIGTERM)
        try:
            one.wait(60)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def memory_of(process: int) -> int:
    """Return the bytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def process(file: str, *arguments: str) -> Generator[int, None, None]:
    """Run a benchmark as a process that listens; yield at which port."""
    port = free_port()
    filled = [str(port) if argument == PORT else argument for argument in arguments]
    with started(sys.executable, file, *filled):
        until_listening(port)
        yield port


def serve(app: Any, port: int, **more: Any) -> None:
    """Serve an app in this process, as plainly as can be, until the process is told to end."""
    import uvicorn

    options: dict[str, Any] = {"ws": "websockets-sansio", **more}
    config = uvicorn.Config(
        app,
        port=port,
        log_level="error",
        access_log=False,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        **options,
    )
    uvicorn.Server(config).run()
