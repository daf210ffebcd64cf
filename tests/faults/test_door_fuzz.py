"""Nonsense at the door: URLs, headers, frames and arguments nobody meant, and many of them.

Whatever comes, the app answers or closes, never with an internal error, never with an exception, and
no frame reaches a socket it was not meant for. SAPWOOD_FUZZ says how many inputs; a failure names
the seed, and the same seed gives the same inputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.conformance.serving import call, door, greeted
from tests.faults.line import Line
from tests.machine import patience
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from sapwood import Agent, App, Connection, expose
from sapwood.kernel.marshal import failure_log
from sapwood.testing import World, running

INPUTS = int(os.environ.get("SAPWOOD_FUZZ", "100000"))
SEED = int(os.environ.get("SAPWOOD_FUZZ_SEED", "1"))
PIECES = [
    *["agents", "fuzz-root", "fuzz-leaf", "fuzz-open", "sub", "r", "a", "b", "x", "", ".", "..", "%2e", "%2E%2e"],
    *["%00", "%2F", "%2f", "%5c", "%25", "%", "%zz", "%ff", "%c0%af", "%ed%a0%80", "%F0%9F%92%A9", "a;b", "a%20b"],
    *["a+b", "a=b", "~", "*", "'", '"', "\\", "healthz", "readyz", "get-messages", "x" * 520, "%41" * 300, "é"],
    *["FuzzRoot", "FUZZ_ROOT", "fuzz_root", "agent", "__proto__", "constructor", "nul", "con", "..%2f..%2fetc"],
]
VALUES: list[Any] = [
    *[
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**64,
        10**30,
        -(2**63) - 1,
        0.5,
        1e308,
        -0.0,
        "",
        "a",
        "\0",
        "é",
        "💩",
    ],
    *["x" * 3000, [], {}, [[]], [None], {"a": None}, {"": ""}, {"__proto__": 1}, {"type": "rpc"}, [1, "2", [3]]],
]
TYPES = ["rpc", "cf_agent_state", "cf_agent_identity", "cf_agent_use_chat_request", "x", "", None, 1, [], {}]
METHODS = [
    "who",
    "echo",
    "add",
    "items",
    "fail",
    "odd",
    "sql",
    "_actor",
    "__class__",
    "set_state",
    "",
    None,
    5,
    "x" * 99,
]


class FuzzLeaf(Agent[Any]):
    """Can do a little of everything that clients reach."""

    initial_state: Any = 0

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        connection.send({"type": "heard", "by": connection.query.get("me")})

    @expose
    async def who(self) -> str:
        return str(self.address)

    @expose
    async def echo(self, *values: Any) -> Any:
        return values

    @expose
    async def add(self, a: int, b: float = 1.0, c: dict[str, list[int]] | None = None) -> float:
        return a + b + len(c or ())

    @expose
    async def items(self, n: int) -> Any:
        for one in range(min(n, 3)):
            yield one

    @expose
    async def fail(self, *values: Any) -> None:
        raise ValueError(*values)

    @expose
    async def odd(self) -> Any:
        return object()


class FuzzRoot(FuzzLeaf):
    """A root."""

    async def make(self) -> None:
        await self.sub_agent(FuzzLeaf, "a")


class FuzzOpen(FuzzLeaf):
    """May be made by a URL."""

    create_from_url = True


class Alarm(logging.Handler):
    """Keeps what was logged as an error, but for exceptions of the app's own methods: their clients were told."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != failure_log.__name__:
            self.records.append(record)


@pytest.fixture
def alarm() -> Any:
    handler = Alarm()
    for name in ("sapwood", "asyncio"):
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in ("sapwood", "asyncio"):
        logging.getLogger(name).removeHandler(handler)


def some_path(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return "/" + "".join(chr(chance.randrange(33, 127)) for _ in range(chance.randrange(60)))
    start = chance.choice(
        ["", "/agents", "/agents/fuzz-root", "/agents/fuzz-root/r", "/agents/fuzz-root/r/sub/fuzz-leaf"]
    )
    return start + "".join(f"/{chance.choice(PIECES)}" for _ in range(chance.randrange(7))) or "/"


def some_query(chance: random.Random) -> bytes:
    return chance.choice(
        [b"", b"_pk=", b"_pk=1&_pk=2", b"_pk=%ff%00", b"&&==&;", b"token=", b"x" * 500, b"%", b"\xff=1"]
    )


def some_headers(chance: random.Random) -> list[tuple[bytes, bytes]]:
    known = [
        (b"origin", chance.choice([b"null", b"http://[", b"https://evil", b"http://host", b"\xff", b""])),
        (b"host", b"host"),
        (b"content-length", chance.choice([b"0", b"-1", b"9" * 30, b"x", b"\xb2", b"5"])),
        (b"transfer-encoding", b"chunked"),
        (b"cookie", b"\xff=;;=a; session=\x80"),
        (b"authorization", chance.choice([b"Bearer", b"Bearer \xff", b"\x00"])),
        (b"x-forwarded-for", b"1" * 300),
        (b"sec-websocket-protocol", b"a, b,,"),
    ]
    return chance.sample(known, chance.randrange(4))


def scope_of(chance: random.Random, type_: str) -> dict[str, Any]:
    path = some_path(chance)
    raw = path.encode("utf-8" if chance.random() < 0.5 else "latin-1", "replace")
    scope: dict[str, Any] = {
        "type": type_,
        "path": unquote(path),
        "raw_path": raw,
        "root_path": chance.choice(["", "", "", "/", "/agents", "/x", "/é"]),
        "query_string": some_query(chance),
        "headers": some_headers(chance),
        "method": chance.choice(["GET", "POST", "HEAD", "OPTIONS", "PURGE", ""]),
        "scheme": "http",
        "server": ("host", 80),
        "client": ("1.2.3.4", 5),
        "http_version": "1.1",
    }
    if chance.random() < 0.1:
        del scope["raw_path"]
    return scope


async def request(app: App, chance: random.Random) -> int:
    """Send one odd request; return the status."""
    statuses: list[int] = []
    bodies = [chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(3))]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": True}
        if chance.random() < 0.1:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = scope_of(chance, "http")
    await app(scope, receive, send)
    assert len(statuses) <= 1, scope
    assert not statuses or statuses[0] < 500, (statuses, scope)
    return statuses[0] if statuses else 0


def some_frame(chance: random.Random) -> str | bytes:
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.randrange(40))
    if kind < 0.2:
        return "".join(chr(chance.choice([*range(128), 0xE9, 0x1F4A9])) for _ in range(chance.randrange(40)))
    if kind < 0.25:
        depth = chance.randrange(1, 3000)
        deep = chance.choice(["[" * depth, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth])
        return chance.choice([deep, f'{{"type":"rpc","id":"1","method":"echo","args":[{deep}]}}', f'{{"type":{deep}}}'])
    if kind < 0.6:
        args = [chance.choice(VALUES) for _ in range(chance.randrange(4))]
        return json.dumps({"type": "rpc", "id": "1", "method": chance.choice(METHODS[:6]), "args": args})
    frame = {
        "type": chance.choice(TYPES[:2] if chance.random() < 0.7 else TYPES),
        "id": chance.choice(["1", "", "é", None, 3, "x" * 500]),
        "method": chance.choice(METHODS),
        "args": chance.choice([[], None, {}, "x", [chance.choice(VALUES) for _ in range(chance.randrange(4))]]),
        "state": chance.choice(VALUES),
    }
    for key in chance.sample(list(frame), chance.randrange(3)):
        del frame[key]
    text = json.dumps(frame)
    if chance.random() < 0.15:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["", '"', "}", "\\", "\0", ","]) + text[at + chance.randrange(3) :]
    return text


async def converse(app: App, chance: random.Random, name: str, frames: int) -> None:
    """Open an agent's socket, say odd things, and see that everything heard was meant for it."""
    line = Line(name)
    target = chance.choice(["/agents/fuzz-root/r", "/agents/fuzz-root/r/sub/fuzz-leaf/a", f"/agents/fuzz-root/{name}"])
    query = f"me={name}&_pk=same".encode()
    scope = {"type": "websocket", "path": target, "raw_path": target.encode(), "query_string": query, "headers": []}
    served = asyncio.create_task(app(scope, line.inbox.get, line.send))
    mine: set[str] = set()
    for n in range(frames):
        frame = some_frame(chance)
        if isinstance(frame, str) and '"id": "1"' in frame:
            mine.add(f"{name}-{n}")
            frame = frame.replace('"id": "1"', f'"id": "{name}-{n}"')
        line.say(frame)
        if chance.random() < 0.05:
            await asyncio.sleep(0)
    line.say(json.dumps({"type": "rpc", "id": f"{name}-last", "method": "who", "args": []}))
    async with asyncio.timeout(patience()):
        while not any(f"{name}-last" in str(one.get("text")) for one in line.heard):
            assert not served.done(), (line.heard[-3:], served)
            await asyncio.sleep(0)
        line.leave(chance.choice([1000, 1001, 1005, 1006, 4000]))
        await served
    assert {one["type"] for one in line.heard} <= {"websocket.accept", "websocket.send"}, line.heard[-1]
    for one in line.heard[1:]:
        check_meant_for(name, json.loads(one["text"]))


def check_meant_for(name: str, frame: Any) -> None:
    if frame["type"] == "heard":
        assert frame["by"] == name, frame
    if frame["type"] == "rpc" and "-" in frame["id"]:
        assert frame["id"].startswith(f"{name}-"), frame
        assert frame["success"] or "Traceback" not in frame["error"]


async def knock(app: App, chance: random.Random) -> None:
    """Open a socket at an odd URL; it is let in or closed."""
    line = Line("odd")
    for _ in range(chance.randrange(3)):
        line.say(some_frame(chance))
    line.leave()
    scope = scope_of(chance, "websocket")
    await app(scope, line.inbox.get, line.send)
    codes = [one["code"] for one in line.heard if one["type"] == "websocket.close"]
    assert not set(codes) & {1011, 4500}, (codes, scope)


async def many(count: int, work: Callable[[random.Random, int], Any]) -> None:
    for n in range(count):
        chance = random.Random(SEED * 1_000_003 + n)
        try:
            async with asyncio.timeout(patience()):
                await work(chance, n)
        except BaseException as error:
            error.add_note(f"input {n} of SAPWOOD_FUZZ_SEED={SEED}")
            raise


def no_alarm(alarm: Alarm) -> None:
    assert [record.getMessage() for record in alarm.records] == []


async def prepare(world: World) -> App:
    await (await world.get_agent(FuzzRoot, "r")).make()
    return world.app


async def test_no_request_is_an_internal_error(alarm: Alarm) -> None:
    seen: set[int] = set()
    async with running(App(agents=[FuzzRoot]), slow_slices="allow") as world:
        app = await prepare(world)

        async def one(chance: random.Random, n: int) -> None:
            seen.add(await request(app, chance))
            if n % 5000 == 4999:
                world.sleep()

        await many(INPUTS // 2, one)

    no_alarm(alarm)
    assert {200, 400, 404} <= seen


async def test_no_odd_url_breaks_a_socket(alarm: Alarm) -> None:
    async with running(App(agents=[FuzzRoot]), slow_slices="allow") as world:
        app = await prepare(world)

        async def one(chance: random.Random, n: int) -> None:
            await knock(app, chance)
            if n % 5000 == 4999:
                world.sleep()

        await many(INPUTS // 10, one)
        assert world.node.sockets.count == 0

    no_alarm(alarm)


async def test_no_frame_reaches_the_wrong_socket_or_ends_its_own(alarm: Alarm) -> None:
    async with running(App(agents=[FuzzRoot]), slow_slices="allow") as world:
        app = await prepare(world)

        async def three(chance: random.Random, n: int) -> None:
            seeds = [chance.randrange(2**32) for _ in range(3)]
            await asyncio.gather(*(converse(app, random.Random(seed), f"s{n}n{k}", 50) for k, seed in enumerate(seeds)))

        await many(max(INPUTS * 2 // 5 // 150, 1), three)
        assert world.node.sockets.count == 0

    no_alarm(alarm)


@pytest.mark.nightly
async def test_over_real_sockets_it_is_the_same(alarm: Alarm) -> None:
    async with door(FuzzRoot) as site:
        await (await site.world.get_agent(FuzzRoot, "r")).make()

        async def one(chance: random.Random, n: int) -> None:
            target = "".join(letter for letter in some_path(chance) if 32 < ord(letter) < 127) or "/"
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                answer = await site.http(
                    target, method=chance.choice(["GET", "POST", "PUT"]), body=chance.randbytes(20)
                )
                assert answer.status < 500, target
            if "#" not in target and not target.startswith("//"):
                with contextlib.suppress(ConnectionClosed, InvalidHandshake):
                    async with site.socket(target) as client:
                        await greeted(client)
                        for _ in range(5):
                            await client.send(some_frame(chance))
                        await call(client, "who")

        await many(max(INPUTS // 500, 20), one)

    no_alarm(alarm)
