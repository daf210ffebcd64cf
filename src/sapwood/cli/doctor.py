"""`doctor`: checks of this machine. Each check prints one line, and each failed check its remedy."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import apsw

from sapwood.cli.operator_file import FILE
from sapwood.cli.quantities import size
from sapwood.errors import FolderInUse, StoredDataError
from sapwood.kernel.node.arrivals import Arrivals
from sapwood.kernel.node.data_folder import TREES, odd_in
from sapwood.kernel.node.forwards import Forwards
from sapwood.kernel.node.release_record import REMEDY, newer_release
from sapwood.storage.files import Files, FolderLock, is_open_to_others

OPEN_FILES = 4096
FREE_BYTES = 1024**3
SLOW_SYNC = 0.010
SYNCS = 20
EXTRAS = {
    "server": ("starlette", "uvicorn", "websockets", "uvloop"),
    "auth": ("pyjwt",),
    "chat": ("pydantic-ai-slim",),
    "remote": ("httpx2",),
    "cluster": ("nats-py", "obstore"),
    "temporal": ("temporalio",),
    "sandbox": ("pydantic-monty",),
    "mcp": ("mcp",),
    "erase": ("cryptography",),
    "metrics": ("prometheus-client",),
    "evals": ("pydantic-evals",),
    "otel": ("opentelemetry-sdk",),  # the API comes with others, and does nothing alone
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    found: str
    remedy: str | None = None
    """The remedy. `None` means that the check passed."""
    fatal: bool = False


def examine(data: Path) -> Iterator[Finding]:
    """Run all checks, cheapest first."""
    yield Finding("Python", ".".join(map(str, sys.version_info[:3])))
    yield Finding("SQLite", apsw.sqlite_lib_version() + f" (apsw {apsw.apsw_version()})")
    yield _open_files(data)
    yield from _folder(data)
    yield from _extras()
    yield _bubblewrap()


def _open_files(data: Path) -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("open files", "not limited on this system")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft}, may be raised to {hard}"
    if (server := _server_limit(data)) is not None:
        pid, hard = server
        text = f"{hard} for the running server, process {pid}"
    if hard < OPEN_FILES:
        remedy = (
            f"An awake agent needs two open files. Allow {OPEN_FILES} or more, with `ulimit -n` or LimitNOFILE= "
            "in systemd."
        )
        return Finding("open files", text, remedy)
    return Finding("open files", text)


def _server_limit(data: Path) -> tuple[int, int] | None:
    """Return the process of the server that runs on a data folder, and how many files it may open.

    Returns `None` if none runs, or the system does not tell. A server raises its own limit as far as it goes.
    """
    try:
        pid = int(json.loads((data / FILE).read_text())["pid"])
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (hard,) = [line.split()[4] for line in limits if line.startswith("Max open files")]
        return pid, sys.maxsize if hard == "unlimited" else int(hard)
    except (OSError, ValueError, KeyError):
        return None


def _bubblewrap() -> Finding:
    from sapwood.sandbox.cgroup import find_parent

    what = "Bubblewrap"
    if shutil.which("bwrap") is None:
        return Finding(what, "not installed")
    if find_parent() is not None:
        return Finding(what, "installed; code runs in a cgroup with a memory limit")
    return Finding(what, "installed; cgroups are not available, so process limits bound the memory of code")


def _folder(data: Path) -> Iterator[Finding]:
    where = data if data.exists() else data.absolute().parent
    what = f"data folder {data}"
    try:
        seconds = _sync_time(where)
    except OSError as error:
        user = getattr(os, "getuid", lambda: "this one")()
        remedy = f"Give user {user} write access to {where}, or choose another folder with --data."
        yield Finding(what, f"cannot be written: {error.strerror}", remedy, fatal=True)
        return
    if data.exists():
        yield _lock(data, what)
        yield _access(data)
        yield _release(data)
        yield from _odd_entries(data)
        yield from _moves(data)
    else:
        yield Finding(what, "is created at the first start")
    free = shutil.disk_usage(where).free
    yield Finding(
        "free on its disk",
        size(free),
        None if free > FREE_BYTES else ("Free disk space: agents stop when the disk is full."),
    )
    text = f"{seconds * 1e3:.2f} ms"
    remedy = "With durability='disk', every reply waits this long. Use a faster disk, or durability='process'."
    yield Finding("fsync time of its disk", text, None if seconds < SLOW_SYNC else remedy)


def _lock(data: Path, what: str) -> Finding:
    try:
        FolderLock(data).release()
    except FolderInUse as error:
        if (data / FILE).exists():
            return Finding(what, "in use by a running server")
        return Finding(what, "in use", str(error))
    except OSError as error:
        return Finding(
            what,
            f"cannot be locked: {error.strerror}",
            "Give this user write access to the file `lock` in it.",
            fatal=True,
        )
    if (data / FILE).exists():
        return Finding(
            what, "writable, free", "The last server was killed or crashed. No data is lost; start it again."
        )
    return Finding(what, "writable, free")


def _access(data: Path) -> Finding:
    mode = f"mode {stat.S_IMODE(data.stat().st_mode):04o}"
    if is_open_to_others(data):
        remedy = f"Other users of this machine can read it. As its owner, run `chmod 0700 {data}`."
        return Finding("access to it", mode, remedy)
    return Finding("access to it", f"{mode}, this user only")


def _release(data: Path) -> Finding:
    newer = newer_release(data)
    return Finding("release of its data", newer or "not newer than this one", newer and REMEDY)


def _odd_entries(data: Path) -> Iterator[Finding]:
    try:
        for entry in odd_in(data):
            yield Finding("entry of it", entry.problem, entry.remedy, fatal=entry.has_data)
    except FileNotFoundError:
        return  # no agent has stored anything yet
    except OSError as error:
        yield Finding(f"folder {TREES} in it", f"cannot be read: {error.strerror}", "Move it elsewhere.", fatal=True)
    for problem in Forwards(data, Files()).damaged():
        remedy = (
            "Restore the file from a copy. Or remove it, unless a folder of that name is beside it: the former address "
            "is free then."
        )
        yield Finding("entry of it", str(problem), remedy)


def _moves(data: Path) -> Iterator[Finding]:
    """Yield the moves between servers that are not complete."""
    for arrival in Arrivals(data, Files()).all():
        if isinstance(arrival, StoredDataError):
            remedy = "Restore the file from a copy. The other server repeats its request."
            yield Finding("entry of it", str(arrival), remedy)
        elif arrival.state == "sealed":
            yield Finding(
                "tree that arrives", f"{arrival.root} waits for the server that sends it", "Start that server."
            )
    for forward in Forwards(data, Files()).every():
        if forward.ticket is not None:
            told = f"{forward.former} is being moved to {forward.ticket.url}, which has not answered yet"
            yield Finding("tree that leaves", told, "Start that server.")


def _sync_time(folder: Path) -> float:
    """Return what one sync costs, in the middle of several."""
    times: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".sapwood-doctor-") as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)[SYNCS // 2]


def _extras() -> Iterator[Finding]:
    try:
        declared = " ".join(requires("sapwood") or ())
    except PackageNotFoundError:
        declared = ""
    for extra, packages in EXTRAS.items():
        if declared and f"extra == '{extra}'" not in declared.replace('"', "'"):
            continue
        there = [f"{package} {found}" for package in packages if (found := _version(package))]
        if len(there) == len(packages):
            yield Finding(f"extra {extra}", ", ".join(there))
        elif there:
            missing = ", ".join(package for package in packages if not _version(package))
            yield Finding(f"extra {extra}", f"without {missing}", f"pip install 'sapwood[{extra}]'")
        else:
            yield Finding(f"extra {extra}", "not installed")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
