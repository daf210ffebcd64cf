"""The NATS configuration that operators are given: a cluster can be founded with it, and not everybody may write."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import nats.js.errors
import pytest
from tests.cluster.servers import CONFIGURATION, Nats, put

from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats.bootstrap import DUPLICATES, found
from sapwood.runtimes.cluster.nats.nats_connection import connect

LAYOUT = Layout()


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    cell = Nats(tmp_path_factory.mktemp("cell"), clusters=1, stream_room="2GB").start().wait()
    yield cell
    cell.stop()


@pytest.fixture
async def node(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls, "node")
    yield connection
    await connection.close()


@pytest.fixture
async def names(node: Any) -> Names:
    return await found(node, "sapwood", LAYOUT)


def test_the_servers_take_the_file_as_it_is(cell: Nats) -> None:
    assert cell.configuration.read_text() == CONFIGURATION.read_text()

    said = subprocess.run(
        [str(Path(sys.executable).with_name("nats-server")), "-c", str(CONFIGURATION), "-t"],
        env={**os.environ, **cell.environment(0)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert said.returncode == 0, said.stderr


def test_every_variable_of_the_file_is_explained_at_its_top(cell: Nats) -> None:
    explained, _, settings = CONFIGURATION.read_text().partition("\nserver_name")

    used = set(re.findall(r"\$(NATS_\w+)", "server_name" + settings))

    assert used == set(re.findall(r"NATS_\w+", explained)) == cell.environment(0).keys()


async def test_what_the_servers_say_of_themselves_is_what_a_careful_operator_needs(cell: Nats) -> None:
    for n in range(cell.count):
        about, streams = await asyncio.to_thread(cell.ask, n, "varz"), await asyncio.to_thread(cell.ask, n, "jsz")

        assert about["max_payload"] == 8 * 1024 * 1024
        assert about["auth_required"]
        assert streams["config"]["sync_always"]
        assert streams["config"]["unique_tag"] == "zone:"
        assert about["tags"] == [f"zone:{n}"]


async def test_the_streams_of_a_cluster_lose_nothing_by_themselves(cell: Nats, node: Any, names: Names) -> None:
    for number in range(LAYOUT.streams):
        info = await _info(node, names.stream(number))
        config = info["config"]

        assert config["storage"] == "file"
        assert config["num_replicas"] == 3 == 1 + len(info["cluster"]["replicas"])
        assert config["discard"] == "new"
        assert config["retention"] == "limits"
        assert config["max_age"] == 0
        assert config["max_msgs_per_subject"] == -1
        assert config["duplicate_window"] == DUPLICATES * 1_000_000_000
        assert config["allow_rollup_hdrs"]
        assert config["allow_atomic"]
        assert config["allow_direct"]
        assert config.get("persist_mode", "default") == "default"


async def test_every_shard_lies_in_one_of_the_streams(node: Any, names: Names) -> None:
    ack = await put(node, names.owner(SHARDS - 1), b"")

    assert ack.stream == names.stream(LAYOUT.stream_of(SHARDS - 1))


async def test_nobody_but_a_node_can_write_to_the_log(cell: Nats, node: Any, names: Names) -> None:
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    watch = await nats.connect(cell.urls_of("watch").split(","), error_cb=note)
    try:
        with pytest.raises((nats.errors.TimeoutError, nats.errors.Error)):
            await watch.jetstream(timeout=0.5).publish(names.tree(7, "ab"), b"from somebody who may not")
        with pytest.raises(nats.errors.Error):
            await watch.jetstream(timeout=0.5).purge_stream(names.stream(7))
        with pytest.raises(nats.errors.Error):
            await watch.jetstream(timeout=0.5).delete_stream(names.stream(7))

        assert any("permissions violation" in one.lower() and names.tree(7, "ab") in one for one in refused)
        with pytest.raises(nats.js.errors.NotFoundError):
            await node.jetstream().get_last_msg(names.stream(LAYOUT.stream_of(7)), names.tree(7, "ab"))
    finally:
        await watch.close()


async def test_who_watches_sees_how_the_streams_are(cell: Nats, names: Names) -> None:
    watch = await connect(cell.urls_of("watch"), "watch")
    try:
        assert (await _info(watch, names.stream(0)))["cluster"]["leader"]
        assert (await watch.jetstream().get_last_msg(names.members, names.setup)).data
    finally:
        await watch.close()


@pytest.mark.parametrize("who", ["", "node:wrong", "admin:node-secret"])
def test_nobody_comes_in_without_a_password(cell: Nats, who: str) -> None:
    user, _, password = who.partition(":")
    with socket.create_connection(("127.0.0.1", cell.ports[0]), timeout=5) as line, line.makefile("rwb") as spoken:
        spoken.readline()  # the server's own words
        spoken.write(b"CONNECT %s\r\nPING\r\n" % msgspec.json.encode({"user": user, "pass": password}))
        spoken.flush()

        assert b"Authorization Violation" in spoken.readline()


async def _info(connection: Any, stream: str) -> dict[str, Any]:
    answer = await connection.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5)
    return msgspec.json.decode(answer.data)
