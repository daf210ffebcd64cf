"""A client's socket while its agent goes from node to node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.moving import Client, Cluster, cluster
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import Agent, App, Connection
from sapwood.address import Address
from sapwood.kernel.ports.placement import Moved

SEEN: list[str] = []


class MovingRoom(Agent):
    """Echoes, counts, and tells everybody."""

    send_identity = False

    async def on_connect(self, connection: Connection) -> None:
        SEEN.append(f"connect {connection.id}")
        connection.set_state({"heard": 0})

    def connection_tags(self, connection: Connection) -> list[str]:
        return ["guest"]

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        if message == "bye":
            connection.close(4000, "asked for")
            return
        heard = connection.state["heard"] + 1
        connection.set_state({"heard": heard})
        connection.send(f"{message} {heard} {connection.id} {','.join(connection.tags)}")

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        SEEN.append(f"close {connection.id} {code}")

    async def tell(self, what: str) -> int:
        self.broadcast(what)
        return len(self.connections.list())

    async def on_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        said = (await request.body()).decode()
        if said == "ask another":
            SEEN.append("asked")
            raise Moved("MovingRoom:another")  # as what it asks for does that is on its way elsewhere
        return PlainTextResponse(f"{said} here")


ROOT = Address.root_of("MovingRoom", "one")
PATH = "/agents/moving-room/one"


@pytest.fixture
async def three(one_nats: Nats, tmp_path: Path) -> AsyncGenerator[Cluster, None]:
    SEEN.clear()
    async with cluster(one_nats.urls, tmp_path, ["a", "b", "c"], [MovingRoom]) as made:
        yield made


@pytest.mark.parametrize("at", ["a", "b", "c"])
async def test_a_socket_stays_while_its_agent_moves(three: Cluster, at: str) -> None:
    client = Client(three.apps[at], PATH, "me")
    client.say("first")
    assert await client.hear() == "first 1 me guest"
    sent = 1

    async def speak() -> None:
        nonlocal sent
        for _ in range(600):
            sent += 1
            client.say(f"m{sent}")
            await asyncio.sleep(0.002)

    speaking = asyncio.create_task(speak())
    for turn in range(30):
        await asyncio.sleep(0.02)
        await three.move(ROOT, "abc"[(turn + 1) % 3])
        await three.until_followed("abc"[(turn + 1) % 3], 1)
    await speaking
    for number in range(2, sent + 1):
        assert await client.hear() == f"m{number} {number} me guest"
    await client.leave()
    assert SEEN == ["connect me", "close me 1000"]


async def test_whoever_is_asleep_and_moved_is_woken_by_the_next_message(three: Cluster) -> None:
    client = Client(three.apps["b"], PATH, "me")
    client.say("one")
    assert await client.hear() == "one 1 me guest"
    three.node("a").sleep()
    assert not three.node("a").trees
    await three.move(ROOT, "c")
    await asyncio.sleep(0.2)
    assert not three.node("c").trees, "nobody had to be woken"
    client.say("two")
    assert await client.hear() == "two 2 me guest"
    client.say("bye")
    assert (await client.hear())["code"] == 4000
    await client.leave()


async def test_what_is_said_to_all_gets_to_those_who_are_on_their_way(three: Cluster) -> None:
    clients = [Client(three.apps[at], PATH, at) for at in "abc"]
    for client in clients:
        client.say("in")
        await client.hear()
    stub = await three.apps["b"].get_agent(MovingRoom, "one")
    stop = False
    told: list[str] = []

    async def tell() -> None:
        while not stop:
            told.append(f"news {len(told)}")
            await stub.tell(told[-1])

    telling = asyncio.create_task(tell())
    for turn in range(20):
        await asyncio.sleep(0.02)
        await three.move(ROOT, "abc"[(turn + 1) % 3])
        await three.until_followed("abc"[(turn + 1) % 3], 3)
    stop = True
    await telling
    for client in clients:
        assert [await client.hear() for _ in told] == told
        await client.leave()


async def test_whoever_may_have_missed_something_is_told_to_come_again(three: Cluster) -> None:
    clients = [Client(three.apps[at], PATH, at) for at in "abc"]
    for client in clients:
        client.say("in")
        await client.hear()
    stub = await three.apps["b"].get_agent(MovingRoom, "one")
    told: list[str] = []
    for turn in range(20):
        move = asyncio.create_task(three.move(ROOT, "abc"[(turn + 1) % 3]))
        await asyncio.sleep(0)
        told.append(f"news {turn}")
        await stub.tell(told[-1])
        await move
    told.append("the end")
    await stub.tell("the end")
    for client in clients:
        heard: list[str] = []
        while (one := await client.hear()) != "the end" and isinstance(one, str):
            heard.append(one)
        assert heard == told[: len(heard)], "something is missing, and nobody was told"
        assert one == "the end" or one["code"] == 1012
        await client.leave()


async def test_a_client_is_told_to_come_again_when_the_node_of_its_agent_dies(three: Cluster) -> None:
    client = Client(three.apps["b"], PATH, "me")
    client.say("one")
    await client.hear()
    await three.die("a", "c")
    closed = await client.hear()
    assert closed["code"] == 1012
    again = Client(three.apps["b"], PATH, "me")
    again.say("two")
    assert await again.hear() == "two 1 me guest"
    await again.leave()


async def request(app: App, body: str) -> tuple[int, bytes]:
    said: list[dict[str, Any]] = [{"type": "http.request", "body": body.encode(), "more_body": False}]
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        if said:
            return said.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        told.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/agents/moving-room/one",
        "query_string": b"",
        "headers": [],
    }
    await app(scope, receive, send)
    return told[0]["status"], b"".join(one.get("body", b"") for one in told[1:])


async def test_a_request_finds_its_agent_wherever_it_is(three: Cluster) -> None:
    stop = False
    count = 0

    async def ask(at: str) -> None:
        nonlocal count
        while not stop:
            assert await request(three.apps[at], at * 100) == (200, (at * 100 + " here").encode())
            count += 1

    asking = [asyncio.create_task(ask(at)) for at in "abc"]
    for turn in range(30):
        await asyncio.sleep(0.01)
        await three.move(ROOT, "abc"[(turn + 1) % 3])
    stop = True
    await asyncio.gather(*asking)
    assert count > 20


@pytest.mark.parametrize("at", ["a", "b"])
async def test_a_request_that_began_is_not_asked_again_because_of_what_it_asked_for(three: Cluster, at: str) -> None:
    async with asyncio.timeout(patience()):
        assert (await request(three.apps[at], "ask another"))[0] == 503
    assert SEEN == ["asked"]
