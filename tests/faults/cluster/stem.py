"""The process that all others are forked from, so that no node waits for an interpreter to start.

Whoever is started here dies with it: nothing is left behind by a run that was killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import traceback
from typing import Any, NoReturn

from tests.faults.cluster import mutants
from tests.faults.cluster.network import enter

APP = "tests.faults.cluster.app:app"
PORT = 8000
DEEPEST = 30
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""


class Stem:
    """It has to be made before there is a loop, or a thread."""

    def __init__(self, mutant: str | None = None) -> None:
        ours, its = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            _grow(its, mutant)
        its.close()
        self._asking = ours.makefile("rw")

    def run(self, command: list[str], *, network: str, log: str, environ: dict[str, str] | None = None) -> int:
        """Start a program in a network; return its process."""
        return self._ask("run", network, log, environ or {}, command)

    def serve(self, *, network: str, log: str, environ: dict[str, str], data: str, grace: float) -> int:
        """Start a node in a network; return its process."""
        return self._ask("serve", network, log, environ, data, grace)

    def code(self, pid: int) -> int | None:
        """Return how a process ended; None: it runs."""
        return self._ask("code", pid)

    def _ask(self, *what: Any) -> Any:
        self._asking.write(json.dumps(what) + "\n")
        self._asking.flush()
        return json.loads(self._asking.readline())

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _grow(asked: socket.socket, mutant: str | None) -> NoReturn:
    """Start what is asked for, and say of each how it ended."""
    try:
        _die_with_parent()
        import tests.faults.cluster.app  # pyright: ignore[reportUnusedImport] # noqa: F401

        import sapwood.cli.server_process  # pyright: ignore[reportUnusedImport] # noqa: F401

        lines = asked.makefile("rw")
        codes: dict[int, int] = {}
        for line in lines:
            what, *about = json.loads(line)
            if what == "code":
                answer = _code(about[0], codes)
            else:
                answer = _start(asked, mutant, what, *about)
                codes.pop(answer, None)  # numbers of processes come again: this is not the one that ended
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    os._exit(1)


def _code(pid: int, codes: dict[int, int]) -> int | None:
    if pid not in codes:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes.get(pid)


def _start(
    asked: socket.socket, mutant: str | None, what: str, network: str, log: str, environ: dict[str, str], *about: Any
) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        asked.close()
        _die_with_parent()
        said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        enter(network)
        os.environ.update(environ)
        if what == "run":
            (command,) = about
            os.execvp(command[0], command)
        mutants.apply(mutant)
        _tell_epochs()
        _serve(*about)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            os.write(2, end.code.encode() + b"\n")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    os._exit(code)


def _serve(data: str, grace: float) -> None:
    from sapwood.cli.serve_options import ServeOptions
    from sapwood.cli.server_process import serve

    signal.signal(signal.SIGUSR1, _tell_tasks)
    serve(ServeOptions(APP, "0.0.0.0", PORT, insecure=True, data=data, grace=grace))


def _tell_tasks(number: int, frame: Any) -> None:
    """Write to the log what every task of this node waits for."""
    for task in asyncio.tasks._all_tasks:  # pyright: ignore[reportAttributeAccessIssue]
        lines: list[str] = []
        at: Any = task.get_coro()
        while at is not None and len(lines) < DEEPEST:
            where = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
            told = f"{where.f_code.co_filename}:{where.f_lineno} {where.f_code.co_name}" if where else repr(at)[:200]
            lines.append(f"    {told}")
            at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)
        os.write(2, "\n".join([f"TASK {task.get_name()}", *lines, ""]).encode())


def _tell_epochs() -> None:
    """Have agents know by which ownership they write."""
    from tests.faults.cluster.app import epochs

    from sapwood.runtimes.cluster.ownership.ownership import Ownership

    make = Ownership.__init__

    def made(self: Ownership, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        epochs.append(self.epoch_of)

    Ownership.__init__ = made


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
