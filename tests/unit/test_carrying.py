"""What a client is told when the process that runs its agent ends, whenever that is; and the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.machine import patience

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.web.proxy import relay


class Dying:
    """An exchange with a node that says some things, and is gone."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)
        self.dropped = False
        self.heard: list[str] = []

    def send(self, message: bytes) -> Awaitable[None] | None:
        self.heard.append(msgspec.msgpack.decode(message)["type"])
        return None

    async def receive(self) -> bytes | None:
        for _ in range(5):
            await asyncio.sleep(0)  # the client's first words are carried meanwhile
        if not self._messages:
            raise Unavailable("it ended")
        return msgspec.msgpack.encode(self._messages.pop(0))

    def end(self, message: bytes | None = None) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def drop(self) -> None:
        self.dropped = True

    async def stop(self) -> None: ...

    def when_stopped(self, act: Callable[[], object]) -> None: ...


class Client:
    """A client that says one thing, and then waits for ever."""

    def __init__(self, first: dict[str, Any], *, breaks: bool = False) -> None:
        self._says = [first]
        self._breaks = breaks
        self.told: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if not self._says:
            await asyncio.get_running_loop().create_future()
        return self._says.pop()

    async def send(self, message: Any) -> None:
        if self._breaks:
            raise BrokenPipeError
        self.told.append(dict(message))


async def no_way() -> Any:
    raise Unavailable("nobody is there")


async def opened(exchange: Dying) -> Any:
    return exchange


CONNECT = {"type": "websocket.connect"}
REQUEST = {"type": "http.request", "body": b"", "more_body": False}
ACCEPT = {"type": "websocket.accept"}
START = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize("said", [None, (), (ACCEPT,)])
async def test_a_socket_whose_agent_is_lost_is_told_to_come_back(said: tuple[dict[str, Any], ...] | None) -> None:
    client = Client(CONNECT)
    opening = no_way() if said is None else opened(Dying(*said))

    async with asyncio.timeout(patience()):
        await relay(opening, {"type": "websocket"}, client.receive, client.send)

    assert [message["type"] for message in client.told] == ["websocket.accept", "websocket.close"]
    assert client.told[-1]["code"] == 1012


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (None, b"The process of Desk:a does not answer."),
        ((), b"The process of Desk:a exited before it answered. The outcome of the request is unknown."),
    ],
)
async def test_a_request_whose_agent_is_lost_before_it_answers_may_come_again(
    said: tuple[()] | None, text: bytes
) -> None:
    client = Client(REQUEST)
    opening = no_way() if said is None else opened(Dying())

    async with asyncio.timeout(patience()):
        await relay(opening, {"type": "http"}, client.receive, client.send, Address.root_of("Desk", "a"))

    assert client.told[0]["status"] == 503
    assert (b"retry-after", b"1") in client.told[0]["headers"]
    assert client.told[1]["body"] == text


async def test_half_an_answer_is_cut_off_and_not_ended() -> None:
    client, exchange = Client(REQUEST), Dying(START, {"type": "http.response.body", "body": b"x", "more_body": True})

    with pytest.raises(Unavailable):
        await relay(opened(exchange), {"type": "http"}, client.receive, client.send)

    assert [message["type"] for message in client.told] == ["http.response.start", "http.response.body"]


LAST = {"type": "http.response.body", "body": b"x"}
REFUSED = {"type": "websocket.http.response.start", "status": 403, "headers": []}
CLOSE = {"type": "websocket.close", "code": 1000}


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (REQUEST, (START, LAST)),
        (REQUEST, (START, LAST | {"more_body": True}, LAST | {"more_body": False})),
        (CONNECT, (ACCEPT, CLOSE)),
        (CONNECT, (REFUSED, LAST | {"type": "websocket.http.response.body"})),
    ],
)
async def test_whoever_has_the_whole_answer_does_not_notice_that_the_agent_is_lost_after_it(
    first: dict[str, Any], said: tuple[dict[str, Any], ...]
) -> None:
    client = Client(first)

    # What is raised here has the server cut the connection, which the client may be using for its next request.
    await relay(opened(Dying(*said)), {"type": str(first["type"]).partition(".")[0]}, client.receive, client.send)

    assert client.told == [*said]


async def test_when_the_client_is_gone_the_other_side_is_told() -> None:
    client, exchange = Client(CONNECT, breaks=True), Dying(ACCEPT)

    await relay(opened(exchange), {"type": "websocket"}, client.receive, client.send)

    assert exchange.heard == ["websocket.connect"]
    assert exchange.dropped


async def test_a_server_that_says_the_same_again_and_again_does_not_hold_up_the_others() -> None:
    exchange, said = Dying({"type": "http.response.start", "status": 200, "headers": []}), 0

    async def receive() -> dict[str, Any]:
        nonlocal said
        said += 1
        assert said < 1000, "nobody else has a turn any more"
        return REQUEST

    async def send(message: Any) -> None:
        pass

    with pytest.raises(Unavailable):
        await relay(opened(exchange), {"type": "http"}, receive, send)

    assert exchange.heard == ["http.request"]
