"""URLs: which agent a path names, and that everything else of a request arrives as it was sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket
from tests.cases import slow
from tests.conformance.serving import call, door, greeted, serving
from tests.machine import patience

from sapwood import Agent, App, Connection, Settings, agent, expose
from sapwood.address import Address, kebab
from sapwood.errors import InvalidName, NoSuchMethod, UsageError
from sapwood.kernel.actors.watchdog import Watchdog
from sapwood.wire.routing import as_sent, parse_hop, parse_root, relative


class RouteLeaf(Agent[int]):
    """Tells what reached it."""

    initial_state = 0

    async def make(self, *names: str) -> None:
        first, *below = names
        child = await self.sub_agent(RouteLeaf, first)
        if below:
            await child.make(*below)

    @expose
    async def who(self) -> str:
        return str(self.address)

    @expose
    async def count(self) -> int:
        self.set_state(self.state + 1)
        return self.state

    async def on_connect(self, connection: Connection) -> None:
        connection.send({"type": "at", "path": connection.path, "query": connection.query})

    async def on_request(self, request: Request) -> Response:
        if request.url.path == "/digest":
            seen = [hashlib.sha256(), 0]
            async for part in request.stream():
                seen[0].update(part)
                seen[1] += len(part)
                if self.deps is not None:
                    self.deps.append(len(part))
            return JSONResponse({"sha256": seen[0].hexdigest(), "bytes": seen[1]})
        if request.url.path == "/stream":
            return StreamingResponse(self._items())
        return JSONResponse(
            {
                "who": str(self.address),
                "path": request.url.path,
                "raw": request.scope["raw_path"].decode(),
                "query": request.url.query,
                "method": request.method,
                "body": (await request.body()).decode(),
                "header": request.headers.get("x-mine"),
            },
            headers={"x-from": "leaf"},
            status_code=201,
        )

    async def _items(self) -> AsyncGenerator[bytes, None]:
        for n in range(3):
            yield f"{n}\n".encode()
            await asyncio.sleep(0.01)


class RouteRoot(RouteLeaf):
    """A root of its own class."""


class HTTPRoute(RouteLeaf):
    """Spelled in capitals."""


@agent(type="ROUTE_SHOUT")
class RouteShout(RouteLeaf):
    """All in capitals."""


@agent(type="RouteNew", aliases=["RouteOld"])
class RouteRenamed(RouteLeaf):
    """Known under two names."""


@agent(type="Äpfel")
class RouteApples(RouteLeaf):
    """A name that has to be encoded."""


@pytest.mark.promise("A-74")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MyAgent", "my-agent"),
        ("HTTPServer", "h-t-t-p-server"),
        ("AI", "ai"),
        ("UPPER_CASE", "upper-case"),
        ("my_agent", "my-agent"),
        ("Chat2", "chat2"),
        ("agentV2API", "agent-v2-a-p-i"),
        ("_Foo", "--foo"),
        ("Test__", "test-"),
        ("Äpfel", "Äpfel"),
    ],
)
def test_a_class_segment_is_the_name_in_kebab_case(name: str, expected: str) -> None:
    assert kebab(name) == expected


@pytest.mark.promise("A-74")
@pytest.mark.parametrize("name", ["Sub", "SUB", "Sub_", "sub"])
def test_no_class_can_be_called_sub(name: str) -> None:
    with pytest.raises(UsageError, match="separates agents"):
        type(name, (Agent,), {})


@pytest.mark.promise("A-74", "A-76", "CF-151")
async def test_every_spelling_of_a_class_has_its_url() -> None:
    async with door(RouteRoot, HTTPRoute, RouteShout, RouteRenamed, RouteApples) as site:
        for segment, type_id in {
            "route-root": "RouteRoot",
            "h-t-t-p-route": "HTTPRoute",
            "route-shout": "ROUTE_SHOUT",
            "route-new": "RouteNew",
            "route-old": "RouteNew",
            "%C3%84pfel": "%C3%84pfel",
        }.items():
            answer = await site.http(f"/agents/{segment}/x")
            assert answer.json()["who"] == f"{type_id}:x"
            async with site.socket(f"/agents/{segment}/x") as client:
                assert await call(client, "who") == f"{type_id}:x"


@pytest.mark.promise("CF-152")
@pytest.mark.parametrize(
    "segment", ["RouteRoot", "ROUTE-ROOT", "routeroot", "route_root", "nobody", "route-leaf", "%00"]
)
async def test_an_unknown_root_class_is_a_bad_request(segment: str) -> None:
    async with door(RouteRoot) as site:
        answer = await site.http(f"/agents/{segment}/x")

        assert (answer.status, answer.text) == (400, "Invalid request")
        assert await site.refused(f"/agents/{segment}/x") == 4400


@pytest.mark.promise("CF-152")
@pytest.mark.parametrize(
    "target", ["/", "/agents", "/agents/", "/agents/route-root", "/agents/route-root/", "/other/a/b"]
)
async def test_a_path_that_is_not_ours_is_not_found(target: str) -> None:
    async with door(RouteRoot) as site:
        assert (await site.http(target)).status == 404
        assert await site.refused(target) == 4404


@pytest.mark.promise("CF-69", "CF-73")
async def test_a_root_s_name_is_the_raw_segment_and_a_child_s_is_decoded() -> None:
    async with door(RouteRoot) as site:
        root = await site.world.get_agent(RouteRoot, "room%201")
        await root.make("c/1 é")

        assert (await site.http("/agents/route-root/room%201")).json()["who"] == str(
            Address.root_of("RouteRoot", "room%201")
        )
        child = await site.http("/agents/route-root/room%201/sub/route-leaf/c%2F1%20%C3%A9/a%2Fb/c")
        assert child.json()["who"] == str(Address.root_of("RouteRoot", "room%201").child("RouteLeaf", "c/1 é"))
        assert child.json()["path"] == "/a/b/c"
        assert child.json()["raw"] == "/a%2Fb/c"
        async with site.socket("/agents/route-root/room%201/sub/route-leaf/c%2F1%20%C3%A9/a%2Fb") as client:
            identity = await greeted(client)
            assert (identity["name"], identity["agent"]) == ("c/1 é", "route-leaf")


@pytest.mark.slow
@pytest.mark.promise("CF-153")
async def test_names_that_differ_in_any_character_are_different_agents() -> None:
    names = ["a", "A", "a%20", "a+", "a.", "a;b", "a%2Fb", "a%2fb", "~", "%C3%A9", "a=b&c", "'", "(", "sub"]
    async with door(RouteRoot) as site:
        for name in names:
            async with site.socket(f"/agents/route-root/{name}") as client:
                assert await call(client, "count") == 1

        for name in names:
            async with site.socket(f"/agents/route-root/{name}") as client:
                assert (await greeted(client))["name"] == name
                assert await call(client, "count") == 2


@pytest.mark.promise("CF-73")
async def test_a_root_called_sub_is_understood_and_so_are_its_children() -> None:
    async with door(RouteRoot) as site:
        await (await site.world.get_agent(RouteRoot, "sub")).make("sub", "sub")

        assert (await site.http("/agents/route-root/sub")).json()["who"] == "RouteRoot:sub"
        one = "/agents/route-root/sub/sub/route-leaf/sub"
        assert (await site.http(one)).json()["who"] == "RouteRoot:sub/RouteLeaf:sub"
        two = await site.http(f"{one}/sub/route-leaf/sub/sub/x")
        assert two.json()["who"] == "RouteRoot:sub/RouteLeaf:sub/RouteLeaf:sub"
        assert two.json()["path"] == "/sub/x"


@pytest.mark.promise("CF-74")
async def test_a_path_without_a_valid_sub_part_is_the_parent_s_own() -> None:
    async with door(RouteRoot) as site:
        for rest in [
            "/sub",
            "/sub/",
            "/sub/route-leaf",
            "/sub/route-leaf/",
            "/a/sub/b",
            "/sub/nobody/x",
            "/SUB/route-leaf/x",
        ]:
            answer = await site.http(f"/agents/route-root/r{rest}")
            assert (answer.json()["who"], answer.json()["path"]) == ("RouteRoot:r", rest)


async def test_an_undecodable_name_is_no_step_down() -> None:
    async with door(RouteRoot) as site:
        answer = await site.http("/agents/route-root/r/sub/route-leaf/%ff%fe")

        assert answer.json()["who"] == "RouteRoot:r"
        assert await site.refused("/agents/route-root/r/sub/route-leaf/%ff%fe") == 4404


@pytest.mark.promise("CF-72")
async def test_a_null_character_in_a_name_is_a_bad_request() -> None:
    async with door(RouteRoot) as site:
        answer = await site.http("/agents/route-root/r/sub/route-leaf/a%00b")

        assert (answer.status, answer.text) == (400, "Bad Request")
        assert await site.refused("/agents/route-root/r/sub/route-leaf/a%00b") == 4400


async def test_a_name_that_is_too_long_is_a_bad_request() -> None:
    async with door(RouteRoot) as site:
        assert (await site.http(f"/agents/route-root/{'x' * 513}")).status == 400
        assert (await site.http(f"/agents/route-root/r/sub/route-leaf/{'x' * 513}")).status == 400
        assert await site.refused(f"/agents/route-root/{'x' * 513}") == 4400


@pytest.mark.promise("CF-72")
async def test_a_socket_to_a_child_of_an_unknown_class_is_not_found() -> None:
    async with door(RouteRoot) as site:
        assert await site.refused("/agents/route-root/r/sub/nobody/x") == 4404


@pytest.mark.promise("A-76", "CF-69", "CF-151")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", *slow(["PATCH", "DELETE", "OPTIONS", "PURGE"])])
async def test_methods_bodies_headers_paths_and_queries_are_kept(method: str) -> None:
    async with door(RouteRoot) as site:
        await (await site.world.get_agent(RouteRoot, "r")).make("a", "b")

        for who, start in {
            "RouteRoot:r": "/agents/route-root/r",
            "RouteRoot:r/RouteLeaf:a/RouteLeaf:b": "/agents/route-root/r/sub/route-leaf/a/sub/route-leaf/b",
        }.items():
            answer = await site.http(
                f"{start}/x//y/?q=1&q=%20&_pk=z", method=method, body=b"hello", headers={"x-mine": "yes"}
            )
            assert answer.status == 201
            assert answer.headers["x-from"] == "leaf"
            assert answer.json() == {
                "who": who,
                "path": "/x//y/",
                "raw": "/x//y/",
                "query": "q=1&q=%20&_pk=z",
                "method": method,
                "body": "hello",
                "header": "yes",
            }


@pytest.mark.promise("A-73", "CF-62")
async def test_a_socket_goes_through_any_number_of_hops_and_keeps_its_tail_and_query() -> None:
    names = [f"n{number}" for number in range(8)]
    async with door(RouteRoot) as site:
        await (await site.world.get_agent(RouteRoot, "r")).make(*names)
        way = "".join(f"/sub/route-leaf/{name}" for name in names)

        async with site.socket(f"/agents/route-root/r{way}/tail/x?_pk=me&token=t") as client:
            await greeted(client)
            at = json.loads(await client.recv())
            assert (at["path"], at["query"]) == ("/tail/x", {"_pk": "me", "token": "t"})
            assert await call(client, "who") == "RouteRoot:r/" + "/".join(f"RouteLeaf:{name}" for name in names)


def parts_of(body: bytes) -> list[bytes]:
    return [body[at : at + 65_536] for at in range(0, len(body), 65_536)]


@pytest.mark.promise("CF-77")
@pytest.mark.parametrize("hops", [0, 1, 2])
async def test_a_large_body_arrives_byte_for_byte_and_before_the_upload_ends(hops: int) -> None:
    body = bytes(range(256)) * 8192
    seen: list[int] = []

    async def upload() -> AsyncIterator[bytes]:
        first, *rest = parts_of(body)
        yield first
        async with asyncio.timeout(patience()):
            while not seen:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        for part in rest:
            yield part

    async with door(RouteRoot, deps=seen) as site:
        await (await site.world.get_agent(RouteRoot, "r")).make("a", "b")
        way = "/sub/route-leaf/a/sub/route-leaf/b"[: 17 * hops]

        answer = await site.http(f"/agents/route-root/r{way}/digest", method="POST", body=upload())

        assert answer.json() == {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}


async def test_a_response_is_streamed() -> None:
    async with door(RouteRoot) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET /agents/route-root/r/stream HTTP/1.1\r\nhost: x\r\n\r\n")

        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"0\n") == b"2\r\n0\n"
        assert (await reader.readuntil(b"0\r\n\r\n")).count(b"\n2\n") == 1
        writer.close()


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name and name.isprintable())


@pytest.mark.promise("CF-75")
@pytest.mark.slow
@given(
    root=st.text(alphabet="abcXYZ019-._~%!$&'()*+,;=:@", min_size=1, max_size=20),
    below=st.lists(NAMES, max_size=4),
    rest=st.sampled_from(["", "/", "/x", "/x/y?z=1", "/sub", "/sub/x"]),
)
def test_the_path_builder_round_trips_with_the_router(root: str, below: list[str], rest: str) -> None:
    app = App(agents=[RouteRoot])
    try:
        path = app.path_to(RouteRoot, root, sub=[(RouteLeaf, name) for name in below], rest=rest)
    except UsageError:
        dots = [".", "..", "%2e", "%2e%2e", ".%2e", "%2e."]
        assert root.lower() in dots or any(name in (".", "..") for name in below)
        return

    assert path.isascii()
    found = parse_root(urlsplit(path).path, "agents")
    assert found is not None
    assert (found.segment, found.name) == ("route-root", root)
    names, left = [], found.rest
    while (hop := parse_hop(left, {"route-leaf"}.__contains__)) is not None:
        names.append(hop.name)
        left = hop.rest
    assert names == below
    assert left == (urlsplit(rest).path or "/")


@pytest.mark.promise("CF-75")
@pytest.mark.parametrize("name", ["a b", "a/b", "é", "..", ".", "a?b", "a#b", "%2e%2E", '"', "a\\b"])
def test_a_root_whose_name_cannot_stand_in_a_url_has_no_path(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be part of a URL"):
        App(agents=[RouteRoot]).path_to(RouteRoot, name)


@pytest.mark.promise("CF-75")
@pytest.mark.parametrize(
    "rest", ["x", "/..", "/a/../b", "/%2E%2e/x", "/sub/route-leaf/x", "/a/sub/b/c", "/#x", "/é", "/a b"]
)
def test_a_rest_that_would_lead_elsewhere_is_refused(rest: str) -> None:
    with pytest.raises(UsageError):
        App(agents=[RouteRoot]).path_to(RouteRoot, "r", rest=rest)


def test_names_no_agent_can_have_have_no_path() -> None:
    for name in ["", "a\0b", "x" * 513, "\ud800"]:
        with pytest.raises(InvalidName):
            App(agents=[RouteRoot]).path_to(RouteRoot, "r", sub=[(RouteLeaf, name)])


# A mount point is told without the slash at its end, so none can be named with one.
@pytest.mark.slow
@given(head=NAMES.filter(lambda name: not name.endswith("/")), tail=NAMES)
def test_a_decoded_part_of_a_path_is_found_in_the_raw_one(head: str, tail: str) -> None:
    raw = f"/{quote(head, safe='')}/{quote(tail, safe='')}"

    assert as_sent(f"/{tail}", raw) == f"/{quote(tail, safe='')}"
    assert as_sent(f"/{quote(tail, safe='')}", raw) == f"/{quote(tail, safe='')}"
    assert relative(raw, f"/{head}") == f"/{quote(tail, safe='')}"


@pytest.mark.promise("A-73")
async def test_what_the_path_builder_returns_leads_there() -> None:
    async with door(RouteRoot) as site:
        await (await site.world.get_agent(RouteRoot, "r")).make("a/b ?#é%", "..x")
        path = site.world.app.path_to(RouteRoot, "r", sub=[(RouteLeaf, "a/b ?#é%"), (RouteLeaf, "..x")], rest="/t?q=1")

        answer = (await site.http(path)).json()

        address = Address.root_of("RouteRoot", "r").child("RouteLeaf", "a/b ?#é%").child("RouteLeaf", "..x")
        assert (answer["who"], answer["path"], answer["query"]) == (str(address), "/t", "q=1")


def custom(app: App) -> Starlette:
    """An app with URLs of its own, which lead to our agents."""

    async def http(request: Request) -> Any:
        return app.route_to(RouteRoot, request.path_params["user"], request.path_params["rest"])

    async def websocket(socket: WebSocket) -> None:
        handle = app.route_to(RouteRoot, socket.path_params["user"], socket.path_params["rest"])
        await handle(socket.scope, socket.receive, socket.send)

    routes = [
        Route("/api/u/{user}{rest:path}", http, methods=["GET", "POST"]),
        WebSocketRoute("/api/u/{user}{rest:path}", websocket),
    ]
    return Starlette(routes=routes, lifespan=app.lifespan)


@pytest.mark.promise("A-79", "A-80")
async def test_a_custom_route_leads_to_a_root_and_its_children(tmp_path: Any) -> None:
    app = App(agents=[RouteRoot], settings=Settings(data=tmp_path))
    async with serving(custom(app), lifespan="on") as site:
        await (await app.get_agent(RouteRoot, "ann")).make("a/b%", "c")
        child = "/api/u/ann/sub/route-leaf/a%2Fb%25/sub/route-leaf/c"

        answer = await site.http(f"{child}/tail?q=1", method="POST", body=b"x" * 10)
        assert answer.json()["who"] == str(
            Address.root_of("RouteRoot", "ann").child("RouteLeaf", "a/b%").child("RouteLeaf", "c")
        )
        assert (answer.json()["path"], answer.json()["query"]) == ("/tail", "q=1")
        assert answer.json()["body"] == "x" * 10
        assert (await site.http("/api/u/ann")).json()["path"] == "/"
        assert (await site.http("/api/u/ann/sub/route-leaf/nobody")).status == 404
        async with site.socket(f"{child}?_pk=1") as client:
            identity = await greeted(client)
            assert (identity["name"], identity["agent"]) == ("c", "route-leaf")
        assert await site.refused("/api/u/ann/sub/route-leaf/nobody") == 4404


async def test_a_route_of_fastapi_returns_it_as_its_response(tmp_path: Any) -> None:
    app = App(agents=[RouteRoot], settings=Settings(data=tmp_path))
    outer = FastAPI(lifespan=app.lifespan)

    async def mine(rest: str) -> Response:
        return app.route_to(RouteRoot, "ann", rest)

    outer.add_api_route("/mine/{rest:path}", mine, methods=["POST"])
    async with serving(outer, lifespan="on") as site:
        answer = (await site.http("/mine/x?y=1", method="POST", body=b"x" * 10)).json()

        assert (answer["who"], answer["path"], answer["query"]) == ("RouteRoot:ann", "/x", "y=1")
        assert answer["body"] == "x" * 10


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize(
    ("mount", "start"), [("/agents", "/agents"), ("/api", "/api/agents"), ("/api", "/api"), ("/a b", "/a%20b")]
)
async def test_mounted_in_another_app_the_mount_point_is_the_prefix(
    framework: Any, mount: str, start: str, tmp_path: Any
) -> None:
    app = App(agents=[RouteRoot], settings=Settings(data=tmp_path))
    outer = framework(lifespan=app.lifespan)
    outer.mount(mount, app)
    async with serving(outer, lifespan="on") as site:
        await (await app.get_agent(RouteRoot, "r")).make("agents")

        answer = (await site.http(f"{start}/route-root/r/sub/route-leaf/agents/x?y=1")).json()
        assert (answer["who"], answer["path"], answer["query"]) == ("RouteRoot:r/RouteLeaf:agents", "/x", "y=1")
        async with site.socket(f"{start}/route-root/r") as client:
            assert await call(client, "who") == "RouteRoot:r"
        assert (await site.http(f"{mount.replace(' ', '%20')}/healthz")).text == "ok"
        assert (await site.http(f"{start}/agents/agents/route-root/r")).status in (400, 404)


async def test_an_app_nobody_started_starts_with_its_first_request_and_warns(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(agents=[RouteRoot], settings=Settings(data=tmp_path))
    async with serving(Starlette(routes=[Mount("/agents", app)])) as site:
        with caplog.at_level(logging.WARNING, "sapwood"):
            both = await asyncio.gather(site.http("/agents/route-root/r"), site.http("/agents/route-root/s"))

        assert [answer.json()["who"] for answer in both] == ["RouteRoot:r", "RouteRoot:s"]
        assert len([record for record in caplog.records if "lifespan=app.lifespan" in record.message]) == 1
    await app.__aexit__()


async def test_served_alone_it_starts_and_ends_with_the_server(tmp_path: Any) -> None:
    app = App(agents=[RouteRoot], settings=Settings(data=tmp_path))
    async with serving(app, lifespan="on") as site:
        assert (await site.http("/agents/route-root/r")).status == 201

    with pytest.raises(UsageError, match="not running"):
        _ = app.node


async def test_health_and_readiness_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with door(RouteRoot) as site:
        assert (await site.http("/healthz")).text == "ok"
        assert (await site.http("/readyz")).text == "ready"
        # Not set on the watchdog: its thread would take it back within a few milliseconds.
        monkeypatch.setattr(Watchdog, "ready", property(lambda _: False, lambda _, ready: None), raising=False)
        assert (await site.http("/readyz")).status == 503
        assert (await site.http("/healthz")).status == 200


async def test_with_cors_pages_of_any_origin_may_read_and_preflights_are_answered() -> None:
    async with door(RouteRoot, cors=True) as site:
        answer = await site.http("/agents/route-root/r", headers={"origin": "https://elsewhere"})
        preflight = await site.http("/agents/route-root/r", method="OPTIONS", headers={"origin": "https://elsewhere"})
        missing = await site.http("/agents/route-root/r/sub/route-leaf/nobody")

        assert preflight.status == 204
        assert missing.status == 404
        for one in (answer, preflight, missing):
            assert one.headers["access-control-allow-origin"] == "*"
            assert one.headers["access-control-allow-methods"] == "GET, POST, PUT, HEAD, OPTIONS"
            assert one.headers["access-control-allow-headers"] == "*"
            assert one.headers["access-control-max-age"] == "86400"


async def test_without_cors_nothing_is_said_of_it() -> None:
    async with door(RouteRoot) as site:
        answer = await site.http("/agents/route-root/r", headers={"origin": "https://elsewhere"})

        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_child_s_state_and_calls_work_on_its_own_socket_only() -> None:
    async with door(RouteRoot) as site:
        await (await site.world.get_agent(RouteRoot, "r")).make("a")
        async with (
            site.socket("/agents/route-root/r") as root,
            site.socket("/agents/route-root/r/sub/route-leaf/a") as child,
        ):
            for client in (root, child):
                await greeted(client)
                await client.recv()
            assert await call(child, "count") == 1
            await child.send(json.dumps({"type": "cf_agent_state", "state": 41}))
            assert await call(child, "count") == 42
            assert await call(root, "count") == 1


@pytest.mark.promise("CF-78")
async def test_a_stub_from_outside_is_safe_to_print_and_has_no_fetch() -> None:
    async with door(RouteRoot) as site:
        stub: Any = await site.world.get_agent(RouteRoot, "r")

        assert "RouteRoot:r" in repr(stub)
        for name in ("fetch", "connect", "on_request", "on_connect"):
            with pytest.raises(NoSuchMethod):
                getattr(stub, name)


@pytest.mark.promise("CF-77")
async def test_two_hops_with_a_body_the_gate_has_read() -> None:
    async with door(RouteReader) as site:
        answer = await site.http("/agents/route-reader/r/sub/route-leaf/a", method="POST", body=b"signed")

        assert answer.json()["body"] == "signed"


class RouteReader(RouteLeaf):
    """Looks at the body before it goes on."""

    async def on_before_sub_agent(self, request: Any, child: Any) -> Response | None:
        if await request.body() != b"signed":
            return PlainTextResponse("no", 403)
        await self.sub_agent(RouteLeaf, child.name)
        return None


async def test_of_two_classes_with_one_segment_the_child_s_own_is_meant() -> None:
    one = type("RouteTwice", (RouteLeaf,), {"__module__": "one"})
    other = type("RouteTwice", (RouteLeaf,), {"__module__": "other", "create_from_url": True})

    class RouteParent(RouteLeaf):
        async def begin(self) -> None:
            await self.sub_agent(one, "x")

        @expose
        async def kind_of_x(self) -> bool:
            return self.children.has(one, "x")

    async with door(RouteParent) as site:
        parent = await site.world.get_agent(RouteParent, "p")

        assert (await site.http("/agents/route-parent/p/sub/route-twice/x")).status == 404
        await parent.begin()
        answer = await site.http("/agents/route-parent/p/sub/route-twice/x")
        assert answer.json()["who"] == "RouteParent:p/RouteTwice:x"
        tree = next(iter(site.world.node.trees.values()))
        assert tree.kinds["RouteTwice"].cls is one
        assert other is not one


async def test_a_path_with_thousands_of_subs_costs_no_more_than_it_is_long() -> None:
    async with door(RouteRoot) as site:
        began = time.process_time()
        answer = await site.http("/agents/route-root/r" + "/sub/x" * 8000)
        took = time.process_time() - began

        assert answer.json()["who"] == "RouteRoot:r"
        assert took < 2
