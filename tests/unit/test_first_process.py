"""The first process of an upgraded server passes signals to the server that runs now, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BEFORE_AND_AFTER = """
import os, socket, struct, subprocess, sys

from sapwood.cli.first_process import become_first_process
from sapwood.runtimes.handover_line import HandoverLine

line, far_end = HandoverLine.pair()
os.set_inheritable(far_end.descriptor, True)
server = subprocess.Popen(["sleep", "60"])
successor = subprocess.Popen(["sleep", "60"])
os.write(far_end.descriptor, struct.pack(">I", successor.pid))
print(successor.pid, flush=True)
sys.executable = "/no/such/python"
become_first_process(server.pid, line)
"""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.realtime("real processes are waited for"),
    pytest.mark.skipif(sys.platform != "linux", reason="Elsewhere each server stays the parent of its successor"),
]


def test_a_signal_that_reaches_a_server_that_is_about_to_end_is_passed_to_its_successor() -> None:
    first = subprocess.Popen([sys.executable, "-c", BEFORE_AND_AFTER], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    successor = int(first.stdout.readline())
    try:
        until_ready(first.pid)

        first.send_signal(signal.SIGTERM)

        assert first.wait(20) == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(successor, 0)
    finally:
        first.stdout.close()
        if first.poll() is None:
            first.kill()
            first.wait()


def until_ready(pid: int) -> None:
    """Return when the process handles the signal itself."""
    end = time.monotonic() + 20
    while True:
        caught = next(
            line.split()[1]
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("SigCgt")
        )
        if int(caught, 16) & 1 << signal.SIGUSR2 - 1:
            return
        assert time.monotonic() < end
        time.sleep(0.01)
