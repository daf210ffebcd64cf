"""Runs code in CPython behind Bubblewrap: for code that needs packages, and the whole language.

The code has its own namespaces: no network, no processes but its own, a file system of
which it sees Python and the system's libraries, read-only, and an empty folder for itself.
It shares the kernel with the host, which Monty's does not: prefer Monty where it will do.

CPython cannot be written down in the middle. Each time a host function has answered, the code
runs again from its beginning, and is given the answers there are: it has to do the same each
time, and does the same work several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sapwood.errors import StoredDataError, UsageError
from sapwood.sandbox.cgroup import find_parent, make_cgroup
from sapwood.sandbox.contract import Answer, CodeFailure, Ended, Paused, Task
from sapwood.sandbox.seccomp import MACHINES, filter_for
from sapwood.wire import frames

INSIDE = Path(__file__).with_name("guest.py")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/alternatives", "/etc/ld.so.cache")
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # each takes as much memory as there may be in all
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
}
BEGINS_WITHIN = 10.0
"""Seconds until Python is there."""
PYTHON_BYTES = 192 * 1024 * 1024
"""Bytes in a cgroup that are not the code's: Python itself, and what the kernel has for it."""
PROCESSES = 64
FILES = 10_000
"""Files in its folder: each costs memory of the kernel that the folder's size does not count."""
FILES_INTERVAL = 0.05
"""Seconds between two checks how many there are."""
ESCAPED = 6
"""Bytes of JSON that one byte of a text takes at most."""
ARGUMENTS = 8 * 1024 * 1024
"""Bytes of JSON that the arguments of a call may take."""
ENDS_WITHIN = 5.0
"""Seconds until the last of its processes is gone, after it was killed."""
MISSING = "Bubblewrap is not installed. On Debian and Ubuntu: apt-get install bubblewrap."
NOT_ALLOWED = (
    "In a container, allow namespaces: with Docker, --security-opt seccomp=unconfined, or a profile that permits "
    "unshare."
)
ASKED = """
import json, os, sys
links = [sys.executable]
while os.path.islink(links[-1]):
    links.append(os.path.join(os.path.dirname(links[-1]), os.readlink(links[-1])))
print(json.dumps([{sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}, links], default=sorted))
"""
"""Says in which folders a Python lives, and which links lead to it."""


class HostCall(msgspec.Struct, array_like=True):
    """A call that code made, and what was answered."""

    function: str
    args: list[Any]
    kwargs: dict[str, Any]
    answer: tuple[Any, tuple[str, str] | None] | None = None


class CodeOutcome(msgspec.Struct):
    """What came of a stretch of code, as it says itself."""

    printed: str = ""
    call: HostCall | None = None
    value: Any = None
    failure: CodeFailure | None = None


class Info(msgspec.Struct):
    """What Bubblewrap says of itself."""

    pid: int = msgspec.field(name="child-pid")


class Bubblewrap:
    """Runs code in a Python of this machine, behind Bubblewrap, which the system installs.

    `python` is the one whose packages the code may import; by default the one that runs this.
    """

    def __init__(self, *, python: str | os.PathLike[str] = sys.executable) -> None:
        self._python = os.fspath(python)
        self._places: list[str] | None = None
        self._cgroups: Path | None = None

    async def start(self, task: Task) -> Paused | Ended:
        """Run code from its beginning."""
        return await self._run(task, [])

    async def resume(self, task: Task, snapshot: bytes, answer: Answer) -> Paused | Ended:
        """Run code from its beginning, with the answers there are."""
        try:
            calls = CALLS(snapshot)
            calls[-1].answer = (answer.value, answer.error)
        except (msgspec.MsgspecError, IndexError) as error:
            raise StoredDataError(f"The stored calls of interrupted code cannot be decoded: {error}") from None
        return await self._run(task, calls)

    async def _run(self, task: Task, calls: list[HostCall]) -> Paused | Ended:
        command = await self._command(task)
        given = {"code": task.code, "names": sorted(task.names), "inputs": dict(task.inputs), "calls": calls}
        text = msgspec.json.encode({**given, "limits": asdict(task.limits)})
        told = await self._run_in_cgroup(command, text, task)
        if isinstance(told, CodeFailure):
            return Ended(failure=told)
        try:
            said = frames.read_json(told, CodeOutcome)
        except msgspec.MsgspecError as error:
            return Ended(failure=CodeFailure("crashed", f"The response of the sandbox cannot be decoded: {error}"))
        if said.call is None:
            return Ended(said.value, said.failure, said.printed)
        one = said.call
        if one.function not in task.names:  # what stands for functions would not say so; the code did, past it
            return Ended(failure=CodeFailure("unknown", f"NameError: name {one.function!r} is not defined"))
        return Paused(msgspec.json.encode([*calls, one]), one.function, tuple(one.args), one.kwargs, said.printed)

    async def _run_in_cgroup(self, command: list[str], text: bytes, task: Task) -> bytes | CodeFailure:
        """Run the command in a cgroup, where one can be made."""
        most = task.limits.memory_bytes
        cgroup = make_cgroup(self._cgroups, PYTHON_BYTES + 2 * most, PROCESSES)  # its memory, and its folder
        if cgroup is None:
            return await _told(command, self._python, text, task)
        try:
            told = await _told(cgroup.command(command), self._python, text, task)
            if isinstance(told, CodeFailure) and told.kind == "crashed" and cgroup.is_over_memory():
                return CodeFailure("limit", f"The code used more than {most} bytes of memory.")
            return told
        finally:
            await asyncio.get_running_loop().run_in_executor(None, cgroup.remove)

    async def _command(self, task: Task) -> list[str]:
        found = shutil.which("bwrap")
        if found is None:
            raise UsageError(MISSING)
        if self._places is None:
            self._places, self._cgroups = await _places(self._python), find_parent()
        return [
            found,
            *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"),
            *(part for name, value in ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *("--dev", "/dev", "--size", str(task.limits.memory_bytes), "--tmpfs", "/tmp"),
            *(part for place in SYSTEM for part in _seen(place)),
            *(part for place in self._places for part in ("--ro-bind", place, place)),
            *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"),
        ]


def _seen(place: str) -> Sequence[str]:
    path = Path(place)
    if path.is_symlink():
        return ("--symlink", str(path.readlink()), place)
    return ("--ro-bind", place, place) if path.exists() else ()


async def _places(python: str) -> list[str]:
    """Return what a Python needs to see beside the system's folders: its own, and the links that lead to it."""
    try:
        asked = await asyncio.create_subprocess_exec(python, "-I", "-c", ASKED, stdout=asyncio.subprocess.PIPE)
        said, _ = await asked.communicate()
        folders, links = msgspec.json.decode(said, type=tuple[list[str], list[str]])
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"Bubblewrap(python={python!r}): expected a Python executable: {error}") from None
    seen = ["/usr", *sorted(one for one in folders if not one.startswith("/usr") and one != "/")]
    seen += [link for link in links if not any(Path(link).is_relative_to(folder) for folder in seen)]
    return seen[1:]


async def _told(command: list[str], python: str, text: bytes, task: Task) -> bytes | CodeFailure:
    """Run the command, and return what it says at its end."""
    said, saying = _pipe()
    complained, complaining = _pipe()
    about, informing = _pipe()
    given, rules = _as_file(text), _as_file(filter_for(platform.machine()) or b"")
    try:
        # Not asyncio's: that takes the exit status of a process as soon as it can, and its number may be another's
        # when we come to kill it.
        process = subprocess.Popen(  # noqa: ASYNC220 - it is begun, not waited for
            [
                *command,
                *(("--seccomp", str(rules)) if platform.machine() in MACHINES else ()),
                *("--info-fd", str(informing)),
                *("--", python, "-s", "-c", INSIDE.read_text(), str(saying)),
            ],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=complaining,
            pass_fds=(saying, rules, informing),
        )
    except BaseException:
        for pipe in (said, complained, about):
            pipe.close()
        raise
    finally:
        for one in (saying, complaining, given, rules, informing):
            os.close(one)
    try:
        async with _reading(said) as answers, _reading(complained) as complaints:
            complaint = asyncio.create_task(_beginning(complaints))
            try:
                return await _heard(answers, complaint, about, task)
            finally:
                process.kill()
                await asyncio.wait({complaint}, timeout=ENDS_WITHIN)
                complaint.cancel()
    finally:
        process.kill()  # and with it everything it began: it is the first of its processes
        for pipe in (said, complained, about):
            pipe.close()
        await asyncio.get_running_loop().run_in_executor(None, process.wait)


@asynccontextmanager
async def _reading(pipe: BinaryIO) -> AsyncGenerator[asyncio.StreamReader, None]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


def _pipe() -> tuple[BinaryIO, int]:
    ours, theirs = os.pipe()
    return os.fdopen(ours, "rb"), theirs


def _as_file(content: bytes) -> int:
    """Return something to read this from, which is nowhere in the file system."""
    file = os.memfd_create("sapwood")
    with os.fdopen(file, "wb", closefd=False) as writing:
        writing.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


async def _heard(
    answers: asyncio.StreamReader, complaint: asyncio.Task[str], about: BinaryIO, task: Task
) -> bytes | CodeFailure:
    try:
        async with asyncio.timeout(BEGINS_WITHIN):
            if not await answers.read(1):
                raise UsageError(_not_here((await complaint).strip()))
    except TimeoutError:
        return CodeFailure("crashed", f"Python did not start within {BEGINS_WITHIN:g} seconds.")
    with _folder_of(about) as folder:
        answer, crowd = asyncio.create_task(_answer(answers, task)), asyncio.create_task(_watch_files(folder))
        try:
            done, _ = await asyncio.wait(
                {answer, crowd}, timeout=task.limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return CodeFailure("limit", f"The code ran longer than {task.limits.seconds:g} seconds.")
            told = done.pop().result()
        finally:
            answer.cancel()
            crowd.cancel()
    if told is None:
        return CodeFailure(
            "crashed", f"The process of the code exited without a result. {(await complaint).strip()}".strip()
        )
    return told


async def _answer(answers: asyncio.StreamReader, task: Task) -> bytes | CodeFailure | None:
    """Return the line that code ends with, and `None` if it ends without."""
    most = min(task.limits.memory_bytes, ARGUMENTS + 2 * ESCAPED * task.limits.output_bytes)
    heard = bytearray()
    while part := await answers.read(2**16):
        heard += part
        if len(heard) > most:
            return CodeFailure("limit", f"The result or an argument takes more than {most} bytes.")
        if part.endswith(b"\n"):
            return bytes(heard)
    return None


@contextmanager
def _folder_of(about: BinaryIO) -> Generator[int | None, None, None]:
    """Open the folder of a sandbox, seen from outside; `None` where that is not allowed."""
    folder = None
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        os.set_blocking(about.fileno(), False)  # it was written before the code began; others may hold it open
        pid = msgspec.json.decode(os.read(about.fileno(), 2**16), type=Info).pid
        folder = os.open(f"/proc/{pid}/root/tmp", os.O_PATH | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        if folder is not None:
            os.close(folder)


async def _watch_files(folder: int | None) -> CodeFailure:
    """Return once there are too many files in a folder."""
    while True:
        if folder is not None:
            there = os.fstatvfs(folder)
            if there.f_files - there.f_ffree > FILES:
                return CodeFailure("limit", f"The code created more than {FILES} files.")
        await asyncio.sleep(FILES_INTERVAL)


def _not_here(said: str) -> str:
    """Say why nothing runs here."""
    hint = NOT_ALLOWED if "namespace" in said or "ermission" in said or "not permitted" in said else ""
    return f"Bubblewrap cannot run code on this machine: {said or 'it exited'}. {hint}".strip()


async def _beginning(stream: asyncio.StreamReader) -> str:
    """Return how a stream begins; read all of it, so that its writer does not block."""
    said = bytearray()
    while part := await stream.read(2**14):
        said += part[: 2000 - len(said)]
    return said.decode(errors="replace")


CALLS = msgspec.json.Decoder(list[HostCall]).decode
