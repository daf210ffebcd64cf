"""The first process of a server, after an upgrade: it passes signals to the server, and ends when the server ends.

A service manager, a container or a terminal knows the process that it started. When that process has handed its work
to a successor, it becomes this small program: of a few megabytes, with the same process id.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from sapwood.runtimes.handover_line import HandoverLine

INTERPRETER = str(Path(sys.executable).resolve())
"""It is there also when the virtual environment that this server was started from is gone."""
PROGRAM = r"""
import ctypes, os, signal, struct, sys

# sapwood: passes signals to the server that runs now, and ends when that ends.
server, line = int(sys.argv[1]), int(sys.argv[2])
os.set_blocking(line, False)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a successor's successor becomes a child of this process


def passed_on(number, frame):
    try:
        os.kill(server, number)
    except ProcessLookupError:
        pass


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, passed_on)
while True:
    try:
        ended, status = os.wait()
    except ChildProcessError:
        sys.exit(1)
    if ended != server:
        continue
    try:
        found = os.read(line, 4096)
    except BlockingIOError:
        found = b""
    if not found:
        break
    server, = struct.unpack(">I", found[-4:])
    if os.WIFSIGNALED(status):  # the signal was for the server, and reached the one that was about to end
        passed_on(os.WTERMSIG(status), None)
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def become_first_process(server: int, line: HandoverLine) -> NoReturn:
    """Replace this program by the one that waits for the server with this process id."""
    os.set_inheritable(line.descriptor, True)
    os.execv(INTERPRETER, [INTERPRETER, "-I", "-S", "-c", PROGRAM, str(server), str(line.descriptor)])
