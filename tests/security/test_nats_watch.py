"""The NATS user `watch`: it reads how a cluster is, writes nothing, and overhears no node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from tests.machine import patience

pytest.importorskip("nats")

import nats.errors
from nats.js.api import StreamConfig
from tests.cluster.servers import Nats, put

from sapwood.runtimes.cluster.nats.nats_connection import connect

pytestmark = pytest.mark.slow

STREAM = "sapwood-log-0"
COMMIT = b"COMMIT-OF-TREE-A"
ATTACKS = [
    (f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":1}'),
    (f"$JS.API.DIRECT.GET.{STREAM}.sapwood.log.0.treeA", b""),
    (f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":1}'),
    (f"$JS.API.STREAM.INFO.{STREAM}", b""),
    ("$JS.API.STREAM.NAMES", b""),
    ("$JS.API.STREAM.LIST", b""),
    ("$JS.API.INFO", b""),
]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    cell = Nats(tmp_path_factory.mktemp("watched"), 1).start().wait()
    yield cell
    cell.stop()


@pytest.fixture
async def node(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls, "node")
    await connection.jetstream().add_stream(StreamConfig(name=STREAM, subjects=["sapwood.log.0.>"], allow_direct=True))
    await connection.jetstream().purge_stream(STREAM)
    await put(connection, "sapwood.log.0.treeA", COMMIT)
    yield connection
    await connection.close()


@pytest.fixture
async def watch(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls_of("watch"), "watch")
    yield connection
    await connection.close()


async def messages(node: Any) -> int:
    return (await node.jetstream().stream_info(STREAM)).state.messages


async def question_after(watch: Any) -> None:
    """Return when the server has handled all that was sent before: it answers in order."""
    answer = await watch.request(f"$JS.API.STREAM.INFO.{STREAM}", b"", timeout=patience())
    assert "error" not in msgspec.json.decode(answer.data)


@pytest.mark.parametrize(("subject", "question"), ATTACKS)
async def test_no_answer_can_be_sent_to_the_log(node: Any, watch: Any, subject: str, question: bytes) -> None:
    before = (await node.jetstream().stream_info(STREAM)).state

    await watch.publish(subject, question, reply="sapwood.log.0.treeB")
    await question_after(watch)
    await put(node, "sapwood.log.0.treeC", b"a marker behind it")

    after = (await node.jetstream().stream_info(STREAM)).state
    assert (after.messages, after.last_seq) == (before.messages + 1, before.last_seq + 1)


@pytest.mark.parametrize(("subject", "question"), ATTACKS)
async def test_no_answer_can_be_sent_to_a_node(node: Any, watch: Any, subject: str, question: bytes) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        heard.put_nowait(message.subject)

    subscription = await node.subscribe("sapwood.node.>", cb=hear)
    await node.flush()

    await watch.publish(subject, question, reply="sapwood.node.n0.hello")
    await question_after(watch)
    await node.publish("sapwood.node.marker", b"")

    async with asyncio.timeout(patience()):
        assert await heard.get() == "sapwood.node.marker"
    await subscription.unsubscribe()


async def test_a_write_of_its_own_is_refused(node: Any, watch: Any) -> None:
    await watch.publish("sapwood.log.0.treeB", b"forged")
    await question_after(watch)

    assert await messages(node) == 1
    assert "permissions violation" in (watch.denied or "").lower()


@pytest.mark.parametrize("overheard", ["_INBOX.>", "_INBOX_node.>", ">", "sapwood.>", "svc"])
async def test_no_answer_between_nodes_is_overheard(cell: Nats, node: Any, overheard: str) -> None:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    async def answer(message: Any) -> None:
        await message.respond(b"SECRET")

    async def ignore(_: Exception) -> None:
        pass

    watch = await nats.connect(cell.urls_of("watch").split(","), inbox_prefix="_INBOX_watch", error_cb=ignore)
    await watch.subscribe(overheard, cb=hear)
    service = await node.subscribe("svc", cb=answer)
    await node.flush()

    reply = await node.request("svc", b"?", timeout=patience())
    await question_after(watch)  # and the server has sent it what there was

    assert reply.data == b"SECRET"
    assert reply.subject.startswith("_INBOX_node.")
    assert heard == []
    await service.unsubscribe()
    await watch.close()


async def test_it_reads_what_is_stored(node: Any, watch: Any) -> None:
    stored = await watch.jetstream().get_msg(STREAM, subject="sapwood.log.0.treeA", direct=True)

    assert stored.data == COMMIT
    assert (await watch.jetstream().stream_info(STREAM)).state.messages == 1
