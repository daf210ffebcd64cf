"""Large files through a real server: the memory of its processes stays flat, also behind workers, and after a kill."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import Nats
from tests.e2e.command import PATIENCE, Server, serving

APP = """
from sapwood import Agent, App, Limits


class Store(Agent):
    accept_files = {"*/*": 4 * 1024**3}
    limits = Limits(file_bytes=4 * 1024**3)


app = App(agents=[Store])
"""
MIB = 1024 * 1024
GROWTH = 40 * MIB
"""How much memory a process may take more, however large the files are."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def pieces(size: int) -> Iterator[bytes]:
    """Yield content that repeats in no block."""
    block = os.urandom(MIB)
    for number in range(size // MIB):
        yield number.to_bytes(8, "big") + block[8:]


def memory(server: Server) -> dict[int, int]:
    """Return the most bytes that the server and its workers had in memory so far, by process."""
    main = server.process.pid
    workers = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    found: dict[int, int] = {}
    for pid in (main, *map(int, workers)):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found[pid] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return found


def put(server: Server, path: str, body: Any, **headers: str) -> dict[str, Any]:
    """Upload something, and return the answer with its status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("PUT", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    told = {"status": answer.status} | json.loads(answer.read())
    connection.close()
    return told


def digest_of(server: Server, path: str) -> str:
    """Download a file, and return the digest of what arrived."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("GET", path)
    answer, digest = connection.getresponse(), hashlib.sha256()
    while chunk := answer.read(MIB):
        digest.update(chunk)
    connection.close()
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("size", "workers"),
    [
        pytest.param(64 * MIB, "2", marks=pytest.mark.nightly),
        pytest.param(1024 * MIB, "1", marks=pytest.mark.nightly),
        pytest.param(1024 * MIB, "2", marks=pytest.mark.nightly),
    ],
)
def test_the_memory_of_a_server_stays_flat_while_it_takes_and_sends_large_files(
    folder: Path, size: int, workers: str
) -> None:
    with serving(folder, "serve", "app:app", "--workers", workers) as server:
        check_memory(server, size)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [64 * MIB, 1024 * MIB])
def test_the_memory_of_a_node_stays_flat_while_it_takes_and_sends_large_files(folder: Path, size: int) -> None:
    nats = Nats(folder / "nats", 3)
    nats.start().wait()
    try:
        cluster = ("--nats", nats.urls, "--archive", (folder / "archive").as_uri())
        with serving(folder, "serve", "app:app", *cluster) as server:
            check_memory(server, size)
    finally:
        nats.remove()


def check_memory(server: Server, size: int) -> None:
    """Upload and download files of a size, and compare the memory that the processes took before and after."""
    for number in range(4):  # connections go to either worker, so some are for an agent of the other one
        put(server, f"/agents/store/s{number}/files", b"x")
    before = memory(server)
    for number in range(2):
        digest = hashlib.sha256()
        sent = (digest.update(piece) or piece for piece in pieces(size))
        told = put(server, f"/agents/store/s{number}/files", sent, content_length=str(size))
        assert (told["status"], told["digest"]) == (201, digest.hexdigest())
        assert digest_of(server, told["url"]) == told["digest"]
    after = memory(server)

    assert before.keys() == after.keys()
    assert max(after[pid] - before[pid] for pid in before) < GROWTH


@pytest.mark.slow
def test_an_upload_continues_after_the_server_was_killed(folder: Path) -> None:
    content, id = b"".join(pieces(8 * MIB)), "0123456789abcdef"
    size, url = len(content), f"/agents/store/s/files?upload={id}"
    with serving(folder) as server:
        half = put(server, url, content[: 5 * MIB], content_range=f"bytes 0-{5 * MIB - 1}/{size}")
        assert half == {"status": 202, "received": 5 * MIB}
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE)

    with serving(folder) as server:
        asked = put(server, url, b"", content_range=f"bytes */{size}")
        assert asked == half
        last = put(server, url, content[5 * MIB :], content_range=f"bytes {5 * MIB}-{size - 1}/{size}")

        assert last["digest"] == hashlib.sha256(content).hexdigest()
        assert digest_of(server, last["url"]) == last["digest"]
