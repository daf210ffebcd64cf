"""A cgroup for each stretch of code, where this process may make one: it counts all memory, the kernel's too."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
ENTER = 'echo $$ > "$0" 2>/dev/null; exec "$@"'
"""A shell that moves itself into a cgroup before it becomes the command: all that the command starts is in it, too."""
REMOVALS, REMOVAL_INTERVAL = 50, 0.01
"""How often a cgroup is tried to be removed, while its last processes end."""


def find_parent(own: Path = OWN, mount: Path = MOUNT) -> Path | None:
    """Return the folder in which cgroups with a memory limit may be made; `None` if there is none.

    The cgroup of this process has processes, so it can have no limited ones below it; the one above it may, if it was
    delegated: `Delegate=yes` and `DelegateSubgroup=` in systemd.
    """
    try:
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        here = mount / path.strip("/")
        for folder in (here.parent, here) if here != mount else (here,):
            if "memory" in (folder / "cgroup.subtree_control").read_text().split() and _is_writable(folder):
                return folder
    except (OSError, StopIteration):
        pass
    return None


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


class Cgroup:
    """One cgroup. `command` runs in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command as one that runs in the cgroup."""
        return ["/bin/sh", "-c", ENTER, str(self._folder / "cgroup.procs"), *command]

    def is_over_memory(self) -> bool:
        """Return whether the kernel has ended a process because there was too much memory in the cgroup."""
        with contextlib.suppress(OSError, ValueError):
            events = (self._folder / "memory.events").read_text().splitlines()
            return any(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
        return False

    def remove(self) -> None:
        """End what is left in the cgroup, and remove it. It may wait: call it in a thread."""
        _write(self._folder / "cgroup.kill", 1)
        for _ in range(REMOVALS):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(REMOVAL_INTERVAL)


def make_cgroup(parent: Path | None, memory: int, processes: int) -> Cgroup | None:
    """Make a cgroup with these limits; `None` if that is not possible."""
    if parent is None:
        return None
    folder = parent / f"sapwood-{uuid4().hex}"
    try:
        folder.mkdir()
    except OSError:
        return None
    cgroup = Cgroup(folder)
    if not _write(folder / "memory.max", memory):
        cgroup.remove()
        return None
    for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1), ("pids.max", processes)):
        _write(folder / name, value)
    return cgroup


def _write(file: Path, value: int) -> bool:
    try:
        file.write_text(str(value))
    except OSError:
        return False
    return True
