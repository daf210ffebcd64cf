"""A node ends: in the time it was given though NATS is away, and by itself if another process has its name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster.lost_app import LostWorker
from tests.cluster.processes import Nodes
from tests.cluster.servers import S3, Nats
from tests.machine import patience
from tests.ports import free_port

from sapwood.client import connect

APP = f"{Path(__file__).with_name('lost_app.py')}:app"
GRACE = 10.0
"""What `sapwood serve` gives if nobody says otherwise."""
BUSY = patience(3)
"""Seconds that a machine may be late that does much else; a quiet one needs one or two."""


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_a_node_stops_in_time_though_nobody_takes_its_shards(tmp_path: Path, s3: S3, how: str) -> None:
    cell = Nats(tmp_path / "cell").start().wait()
    try:
        with Nodes(cell, s3, tmp_path, APP).start("a") as nodes:
            async with connect(nodes["a"].url, LostWorker, "stopped") as remote:
                assert await remote.stub.write("one") == 1
                for n in range(3):
                    (cell.kill if how == "killed" else cell.pause)(n)
                writing = asyncio.create_task(remote.stub.write("two"))
                await asyncio.sleep(0.5)
                began = time.monotonic()
                nodes["a"].send(signal.SIGTERM)
                code = await asyncio.to_thread(nodes["a"].until_ended)
                took = time.monotonic() - began
                writing.cancel()
            print(f"{how}: stopped after {took:.1f} s")
            assert code == -signal.SIGTERM  # as after any stop
            assert took < GRACE + 2.0 + BUSY
            said = nodes["a"].log()
            assert "4096 shards not handed over" in said
            assert "ERROR" not in said
    finally:
        cell.remove()


def test_a_node_that_waits_for_servers_that_are_not_there_can_be_interrupted(tmp_path: Path) -> None:
    told = {"SAPWOOD_NATS": f"nats://node:secret@127.0.0.1:{free_port()}", "SAPWOOD_ARCHIVE": tmp_path.as_uri()}
    command = [sys.executable, "-m", "sapwood", "serve", APP, "--port", "0", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, env={**os.environ, **told}, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        assert "connection refused" in node.stderr.readline()

        began = time.monotonic()
        node.send_signal(signal.SIGINT)
        _, said = node.communicate(timeout=patience())
    assert time.monotonic() - began < BUSY
    assert "Traceback" not in said


@pytest.mark.nightly
async def test_a_node_ends_that_stood_still_until_another_process_had_its_name(
    nats: Nats, s3: S3, tmp_path: Path
) -> None:
    with Nodes(nats, s3, tmp_path, APP).start("a") as nodes, nodes.others(tmp_path / "others") as others:
        nodes["a"].send(signal.SIGSTOP)
        others.start("a")
        nodes["a"].send(signal.SIGCONT)

        assert await asyncio.to_thread(nodes["a"].until_ended) == 1
        assert "process exits: Another process is this node now: two had the same name." in nodes["a"].log()
        async with connect(others["a"].url, LostWorker, "displaced") as remote:
            assert await remote.stub.write("one") == 1
