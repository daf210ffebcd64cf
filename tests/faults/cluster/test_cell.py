"""The networks and disks that a cluster is broken with do what they say."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.cluster import network
from tests.faults.cluster.cell import Disk
from tests.faults.cluster.network import Network

pytestmark = pytest.mark.skipif(bool(network.missing()), reason=network.missing())

ECHO = """
import socket
listening = socket.create_server(("0.0.0.0", 7))
while True:
    one, _ = listening.accept()
    one.sendall(one.recv(100))
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2])) as one:
    one.sendall(b"hello")
    assert one.recv(100) == b"hello"
"""


@pytest.fixture
def places() -> Iterator[Network]:
    made = Network()
    for place in ("a", "b"):
        made.add(place)
    echo = subprocess.Popen([*made.command("b"), sys.executable, "-c", ECHO])
    try:
        yield made
    finally:
        echo.kill()
        echo.wait()
        made.remove()


def is_reached(places: Network, seconds: float = 1.0) -> bool:
    command = [*places.command("a"), sys.executable, "-c", ASK, places.address("b"), str(seconds)]
    for _ in range(20):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "refused" not in done.stderr:  # it has not begun to listen
            return done.returncode == 0
    return False


def test_who_is_cut_off_is_not_reached_one_way_or_both(places: Network) -> None:
    assert is_reached(places)
    for ones, others, back in ((["a"], ["b"], True), (["a"], ["b"], False), (["b"], ["a"], False)):
        places.cut(ones, others, back=back)
        assert not is_reached(places)
        places.heal(ones, others)
        assert is_reached(places)


def test_whoever_tests_reaches_everybody_whatever_is_cut(places: Network) -> None:
    assert is_reached(places)
    places.cut(["b"], ["a"])

    with socket.create_connection((places.address("b"), 7), timeout=1) as one:
        one.sendall(b"hello")
        assert one.recv(100) == b"hello"


def test_a_slow_network_is_slow_and_no_longer_when_it_is_healed(places: Network) -> None:
    places.slow_down("b", 64)
    assert is_reached(places, 5.0)
    places.heal_all()
    assert is_reached(places)


def test_a_full_disk_takes_nothing_more_until_there_is_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", "8m")
    try:
        (disk.folder / "before").write_bytes(b"x" * 100_000)
        disk.fill()
        with pytest.raises(OSError, match="No space") as full:
            (disk.folder / "more").write_bytes(b"x" * 100_000)
        assert full.value.errno == errno.ENOSPC
        disk.clear()
        (disk.folder / "more").write_bytes(b"x" * 100_000)
    finally:
        disk.remove()
