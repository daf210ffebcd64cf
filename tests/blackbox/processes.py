"""The processes of a server with workers, found in /proc by a variable of their environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from signal import SIGKILL, Signals

from tests.blackbox.server import Server


class Family:
    """A server, its fork server and its workers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._mark = f"BLACKBOX_EFFECTS={server.effects}".encode()

    def members(self) -> dict[int, str]:
        """Return the processes but the server's own, with their command lines."""
        found: dict[int, str] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != self._server.pid:
                with contextlib.suppress(OSError):
                    if self._mark in (process / "environ").read_bytes().split(b"\0"):
                        found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        return found

    def fork_server(self) -> int:
        return next(pid for pid in self.members() if self._is_fork_server(pid))

    def workers(self) -> list[int]:
        """Return the workers: children of the fork server, which have its command line."""
        members = self.members()
        helpers = [pid for pid in members if self._is_fork_server(pid) or "resource_tracker" in members[pid]]
        return [pid for pid in members if pid not in helpers]

    def send(self, pid: int, signal: Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal)

    def kill(self) -> None:
        """End what is left."""
        for pid in self.members():
            self.send(pid, SIGKILL)

    def _is_fork_server(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            return "forkserver" in command and _parent(pid) == self._server.pid
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
