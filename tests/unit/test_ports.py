"""Test runs beside each other do not take each other's ports."""

from __future__ import annotations

import subprocess
import sys

from tests.ports import free_port, free_ports

OTHER = """
from tests.ports import free_ports
import sys
print(*[port for _ in range(100) for port in free_ports(3)], flush=True)
sys.stdin.read()
"""


def test_no_port_is_given_twice_also_not_to_another_process() -> None:
    other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout is not None
        theirs = [int(port) for port in other.stdout.readline().split()]
        ours = [free_port() for _ in range(100)] + free_ports(9)

        assert len({*theirs, *ours}) == len(theirs) + len(ours) == 409
        other.communicate("")
