"""Who may come in: the user of an app, the hooks on the way, and the limits at the door."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from tests.conformance.serving import Site, call, closed, door, greeted, serving
from tests.machine import patience
from websockets.exceptions import ConnectionClosed

from sapwood import Agent, App, Connection, Limits, NotFound, Settings, expose
from sapwood.timings import Timings
from sapwood.types import Address, PathSegment


@dataclass
class Plan:
    """What the hooks of a test answer, by their name and the agent's; and what happened."""

    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    log: list[str] = field(default_factory=list[str])


class GateLeaf(Agent[int]):
    """Notes when it wakes and what it is asked."""

    deps: Plan
    initial_state = 0

    async def on_start(self) -> None:
        self.deps.log.append(f"start {self.name}")

    def _ask(self, hook: str, request: HTTPConnection) -> Any:
        self.deps.log.append(f"{hook} {self.name}")
        answer = self.deps.answers.get(f"{hook} {self.name}")
        return answer(request) if callable(answer) and not isinstance(answer, Response) else answer

    async def on_before_request(self, request: Request) -> Any:
        return self._ask("request", request)

    async def on_before_connect(self, request: HTTPConnection) -> Any:
        return self._ask("connect", request)

    async def on_before_sub_agent(self, request: HTTPConnection, child: PathSegment) -> Any:
        assert child.type in ("GateLeaf", "GateOpen")
        return self._ask("sub_agent", request)

    async def on_request(self, request: Request) -> Response:
        self.deps.log.append(f"on_request {self.name}")
        return JSONResponse(
            {"name": self.name, "path": request.url.path, "user": request.scope["user"], "x": request.headers.get("x")}
        )

    async def on_connect(self, connection: Connection) -> None:
        connection.send({"type": "hello", "user": connection.user, "path": connection.path})

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        connection.send(message)

    async def make(self, *names: str) -> None:
        first, *below = names
        child = await self.sub_agent(GateLeaf, first)
        if below:
            await child.make(*below)

    async def has(self, name: str) -> bool:
        return self.children.has(GateLeaf, name) or self.children.has(GateOpen, name)

    @expose
    async def who(self) -> str:
        return self.name


class GateRoot(GateLeaf):
    """A root."""


class GateOpen(GateLeaf):
    """A class whose agents a URL may make."""

    create_from_url = True


ROOT = "/agents/gate-root/r"
ONE = f"{ROOT}/sub/gate-leaf/a"
TWO = f"{ONE}/sub/gate-leaf/b"


async def prepared(site: Site, plan: Plan) -> None:
    """Make two levels of children, and let all of them sleep."""
    await (await site.world.get_agent(GateRoot, "r")).make("a", "b")
    site.world.sleep()
    site.world.sleep()
    assert not site.world.node.trees
    plan.log.clear()


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.mark.promise("A-38", "A-66")
async def test_hooks_are_asked_from_the_root_down_each_before_the_next_agent_wakes(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        assert (await site.http(TWO)).status == 200

        assert plan.log == [
            "start r",
            "sub_agent r",
            "start a",
            "sub_agent a",
            "start b",
            "request b",
            "on_request b",
        ]


@pytest.mark.promise("A-68", "A-75", "CF-63")
async def test_a_socket_passes_through_the_same_hooks_and_later_frames_do_not(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        async with site.socket(TWO) as client:
            assert (await greeted(client))["name"] == "b"
            assert plan.log == ["start r", "sub_agent r", "start a", "sub_agent a", "start b", "connect b"]
            for _ in range(5):
                assert await call(client, "who") == "b"
            assert len(plan.log) == 6


@pytest.mark.promise("A-66", "A-67", "CF-68", "CF-70")
@pytest.mark.parametrize(("target", "asked"), [(ONE, "r"), (TWO, "r"), (TWO, "a")])
@pytest.mark.parametrize("status", [401, 403, 404, 418])
async def test_a_hook_answers_in_place_of_the_child_which_is_not_woken(
    plan: Plan, target: str, asked: str, status: int
) -> None:
    plan.answers[f"sub_agent {asked}"] = lambda _: PlainTextResponse("not you", status, {"x-why": "gate"})
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        answer = await site.http(target)

        assert (answer.status, answer.text, answer.headers["x-why"]) == (status, "not you", "gate")
        assert await site.refused(target) == 4000 + status
        assert plan.log.count(f"sub_agent {asked}") == 2
        assert not {"start b", "on_request b"} & set(plan.log)
        assert asked == "a" or "start a" not in plan.log


@contextlib.asynccontextmanager
async def custom_route(plan: Plan, data: Path) -> AsyncIterator[Site]:
    """Serve an app whose own URLs lead to a root with two levels of children: `/u/{name}/…`."""
    app = App(agents=[GateRoot], deps=plan, settings=Settings(data=data))

    async def http(request: Request) -> Response:
        return app.route_to(GateRoot, request.path_params["name"], request.path_params["rest"])

    async def websocket(socket: WebSocket) -> None:
        handle = app.route_to(GateRoot, socket.path_params["name"], socket.path_params["rest"])
        await handle(socket.scope, socket.receive, socket.send)

    routes = [Route("/u/{name}{rest:path}", http), WebSocketRoute("/u/{name}{rest:path}", websocket)]
    async with serving(Starlette(routes=routes, lifespan=app.lifespan), lifespan="on") as site:
        await (await app.get_agent(GateRoot, "r")).make("a", "b")
        plan.log.clear()
        yield site


CUSTOM = {1: "/u/r/sub/gate-leaf/a", 2: "/u/r/sub/gate-leaf/a/sub/gate-leaf/b"}
"""What leads to a child of each depth."""
ASKED = {1: ["sub_agent r"], 2: ["sub_agent r", "sub_agent a"]}
"""The hooks on the way to it."""


@pytest.mark.promise("A-79", "A-80")
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_custom_route_asks_every_hook_on_the_way(plan: Plan, depth: int, tmp_path: Path) -> None:
    async with custom_route(plan, tmp_path) as site:
        name = "ab"[depth - 1]
        seen: list[str] = []
        plan.answers["sub_agent r"] = lambda request: seen.append(request.url.query)

        assert (await site.http(f"{CUSTOM[depth]}/tail?q=1")).json()["path"] == "/tail"
        assert plan.log == [*ASKED[depth], f"request {name}", f"on_request {name}"]
        plan.log.clear()
        async with site.socket(f"{CUSTOM[depth]}?q=2") as client:
            assert (await greeted(client))["name"] == name
        assert plan.log == [*ASKED[depth], f"connect {name}"]
        assert [query.partition("&")[0] for query in seen] == ["q=1", "q=2"]


@pytest.mark.promise("A-79", "A-80")
@pytest.mark.parametrize(("depth", "asked"), [(1, "r"), (2, "r"), (2, "a")])
async def test_a_hook_refuses_what_comes_by_a_custom_route(plan: Plan, depth: int, asked: str, tmp_path: Path) -> None:
    plan.answers[f"sub_agent {asked}"] = lambda _: PlainTextResponse("not you", 403)
    async with custom_route(plan, tmp_path) as site:
        answer = await site.http(CUSTOM[depth])

        assert (answer.status, answer.text) == (403, "not you")
        assert await site.refused(CUSTOM[depth]) == 4403
        assert plan.log == [*ASKED[depth][: "ra".index(asked) + 1]] * 2


@pytest.mark.promise("CF-68")
@pytest.mark.parametrize(("status", "code"), [(200, 1011), (302, 1011), (429, 1013), (500, 1011), (503, 1013)])
async def test_a_refusal_that_is_not_the_client_s_fault_lets_it_come_back(plan: Plan, status: int, code: int) -> None:
    plan.answers["sub_agent r"] = lambda _: Response(status_code=status)
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        assert await site.refused(ONE) == code


async def test_a_redirect_keeps_its_location(plan: Plan) -> None:
    plan.answers["request r"] = lambda _: RedirectResponse("/elsewhere", 307)
    async with door(GateRoot, deps=plan) as site:
        answer = await site.http(ROOT)

        assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")


def another(request: Any) -> Any:
    scope = {**request.scope, "path": "/another way", "query_string": b"n=1", "headers": [(b"x", b"set by the gate")]}
    return Request(scope, request.receive) if isinstance(request, Request) else HTTPConnection(scope)


@pytest.mark.promise("A-67", "A-68", "CF-70")
@pytest.mark.parametrize(("target", "asked"), [(ONE, "r"), (TWO, "a")])
async def test_a_hook_puts_another_request_in_its_place(plan: Plan, target: str, asked: str) -> None:
    plan.answers[f"sub_agent {asked}"] = another
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        answer = (await site.http(f"{target}/x")).json()

        assert (answer["path"], answer["x"]) == ("/another way", "set by the gate")
        async with site.socket(f"{target}/x") as client:
            await greeted(client)
            assert json.loads(await client.recv())["path"] == "/another way"


async def test_the_agent_s_own_hooks_answer_let_through_or_replace(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        plan.answers["request a"] = another
        assert (await site.http(ONE)).json()["x"] == "set by the gate"
        plan.answers["request a"] = lambda _: PlainTextResponse("closed today", 451)
        assert (await site.http(ONE)).text == "closed today"
        plan.answers["connect a"] = lambda _: PlainTextResponse("closed today", 451)
        assert await site.refused(ONE) == 4451
        assert plan.log.count("on_request a") == 1


@pytest.mark.parametrize("hook", ["sub_agent r", "request a"])
async def test_a_hook_that_fails_is_an_error_that_tells_nothing(plan: Plan, hook: str) -> None:
    def fail(_: object) -> None:
        raise ValueError("the password is 1234")

    plan.answers[hook] = fail
    plan.answers["connect a"] = fail
    async with door(GateRoot, deps=plan) as site:
        await prepared(site, plan)

        answer = await site.http(ONE)

        assert answer.status == 500
        assert answer.text.startswith("Internal error (reference ")
        assert await site.refused(ONE) == 1011


async def test_a_hook_that_returns_something_else_is_an_error(plan: Plan) -> None:
    plan.answers["request r"] = lambda _: "yes"
    async with door(GateRoot, deps=plan) as site:
        assert (await site.http(ROOT)).status == 500


@pytest.mark.promise("A-69", "B-22", "CF-71")
async def test_a_url_makes_no_child_and_the_answer_names_what_was_not_found(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        answer = await site.http(f"{ROOT}/sub/gate-leaf/guess")

        assert (answer.status, answer.text) == (404, "GateLeaf 'guess' not found")
        assert await site.refused(f"{ROOT}/sub/gate-leaf/guess") == 4404
        root = await site.world.get_agent(GateRoot, "r")
        assert not await root.has("guess")
        assert "start guess" not in plan.log


@pytest.mark.promise("B-22")
async def test_a_class_may_allow_that_its_agents_are_made_by_a_url(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        async with site.socket(f"{ROOT}/sub/gate-open/new") as client:
            assert await call(client, "who") == "new"

        assert (await site.http(f"{ROOT}/sub/gate-open/other")).status == 200
        root = await site.world.get_agent(GateRoot, "r")
        assert await root.has("new")
        assert await root.has("other")


async def test_also_then_the_gate_is_asked_first(plan: Plan) -> None:
    plan.answers["sub_agent r"] = lambda _: Response(status_code=403)
    async with door(GateRoot, deps=plan) as site:
        assert (await site.http(f"{ROOT}/sub/gate-open/new")).status == 403
        assert not await (await site.world.get_agent(GateRoot, "r")).has("new")


async def test_making_by_url_ends_at_the_limits(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, limits=Limits(children=2)) as site:
        answers = [(await site.http(f"{ROOT}/sub/gate-open/{n}")).status for n in range(4)]

        assert answers == [200, 200, 429, 429]
        assert await site.refused(f"{ROOT}/sub/gate-open/9") == 1013


@pytest.mark.promise("A-71")
async def test_code_does_not_pass_through_the_gate(plan: Plan) -> None:
    plan.answers["sub_agent r"] = lambda _: Response(status_code=403)
    async with door(GateRoot, deps=plan) as site:
        await (await site.world.get_agent(GateRoot, "r")).make("a")
        await site.world.get_agent(GateRoot, "r", sub=((GateLeaf, "a"),))

        assert not [entry for entry in plan.log if entry.startswith("sub_agent")]
        with pytest.raises(NotFound):
            await site.world.get_agent(GateRoot, "r", sub=((GateLeaf, "b"),))


async def test_a_parent_sees_requests_for_classes_nobody_knows(plan: Plan) -> None:
    plan.answers["request r"] = lambda request: PlainTextResponse(request.url.path, 410)
    async with door(GateRoot, deps=plan) as site:
        answer = await site.http(f"{ROOT}/sub/no-such-class/x")

        assert (answer.status, answer.text) == (410, "/sub/no-such-class/x")


@pytest.mark.promise("CF-72")
async def test_a_plain_agent_answers_404_to_every_request_and_to_unknown_classes() -> None:
    async with door(GatePlain) as site:
        for rest in ["", "/x", "/sub/no-such-class/x", "/sub/gate-plain/x"]:
            answer = await site.http(f"/agents/gate-plain/p{rest}")
            assert answer.status == 404
            assert "Traceback" not in answer.text


class GatePlain(Agent):
    """Overrides nothing."""


async def user_of(request: HTTPConnection) -> Any:
    """Return the user of a header, or of a token in the URL."""
    return request.headers.get("x-token") or request.query_params.get("token")


def plain_user_of(request: HTTPConnection) -> Any:
    token = request.query_params.get("token")
    return {"name": token, "roles": ["a"]} if token else None


async def test_without_a_user_nobody_comes_in_and_nothing_wakes(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, authenticate=user_of) as site:
        answer = await site.http(ROOT)

        assert (answer.status, answer.text) == (401, "Unauthorized")
        assert await site.refused(ROOT) == 4401
        assert await site.refused(ONE) == 4401
        assert plan.log == []


async def test_the_user_is_on_the_request_and_on_the_connection_also_below(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, authenticate=user_of) as site:
        await (await site.world.get_agent(GateRoot, "r")).make("a", "b")

        assert (await site.http(ROOT, headers={"x-token": "ann"})).json()["user"] == "ann"
        assert (await site.http(f"{TWO}?token=ben")).json()["user"] == "ben"
        for target, options in ((f"{TWO}?token=ben", {}), (TWO, {"additional_headers": {"x-token": "ben"}})):
            async with site.socket(target, **options) as client:
                await greeted(client)
                assert json.loads(await client.recv())["user"] == "ben"


async def test_a_user_who_may_no_longer_come_in_is_shown_out_of_every_agent(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, authenticate=user_of) as site:
        await (await site.world.get_agent(GateRoot, "r")).make("a", "b")
        async with (
            site.socket(f"{ROOT}?token=ann") as above,
            site.socket(f"{TWO}?token=ann") as below,
            site.socket(f"{TWO}?token=bob") as other,
        ):
            for client in (above, below, other):
                await greeted(client)
            site.world.sleep()

            assert await site.world.app.disconnect("ann") == 2

            assert [await closed(above), await closed(below)] == [4401, 4401]
            assert (above.close_reason, await call(other, "who")) == ("Signed out", "b")
            assert await site.world.app.disconnect("ann") == 0


async def test_a_user_who_is_shown_out_on_the_way_in_does_not_get_in(plan: Plan) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def authorize(user: Any, address: Address, action: str) -> bool:
        asked.set()
        await go.wait()
        return True

    async with door(GateRoot, deps=plan, authenticate=user_of, authorize=authorize) as site:
        async with site.socket(f"{ROOT}?token=ann") as client:
            await asked.wait()

            assert await site.world.app.disconnect("ann") == 1

            go.set()
            assert await closed(client) == 4401
        async with site.socket(f"{ROOT}?token=ann") as client:
            await greeted(client)  # who comes again is asked again
            assert await site.world.app.disconnect("ann") == 1
        assert not site.world.node.sockets.arriving


async def test_a_user_may_be_any_value_and_authenticate_a_plain_function(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, authenticate=plain_user_of, connections_per_user=1) as site:
        ann = {"name": "ann", "roles": ["a"]}
        assert (await site.http(f"{ROOT}?token=ann")).json()["user"] == ann
        async with site.socket(f"{ROOT}?token=ann") as client:
            await greeted(client)
            assert json.loads(await client.recv())["user"] == ann
            assert await site.refused(f"{ROOT}?token=ann") == 1013
            async with site.socket(f"{ROOT}?token=ben") as other:
                assert await call(other, "who") == "r"


async def test_authorize_is_asked_about_the_root_before_it_wakes(plan: Plan) -> None:
    asked: list[tuple[Any, str, str]] = []

    async def authorize(user: Any, address: Address, action: str) -> bool:
        asked.append((user, str(address), action))
        return address.name == user

    async with door(GateRoot, deps=plan, authenticate=user_of, authorize=authorize) as site:
        answer = await site.http(f"{ONE}?token=eve")
        assert (answer.status, answer.text) == (403, "Forbidden")
        assert await site.refused(f"{ONE}?token=eve") == 4403
        assert plan.log == []
        assert (await site.http(f"{ROOT}?token=r")).status == 200
        async with site.socket(f"{ROOT}?token=r") as client:
            assert await call(client, "who") == "r"

        assert asked == [
            ("eve", "GateRoot:r", "request"),
            ("eve", "GateRoot:r", "connect"),
            ("r", "GateRoot:r", "request"),
            ("r", "GateRoot:r", "connect"),
        ]


async def test_an_authenticator_that_fails_lets_nobody_in(plan: Plan) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("the database of users is away")

    async with door(GateRoot, deps=plan, authenticate=fails) as site:
        answer = await site.http(ROOT)

        assert answer.status == 500
        assert answer.text.startswith("Internal error (reference ")
        assert await site.refused(ROOT) == 1011
        assert plan.log == []


async def test_the_user_of_the_app_around_is_kept_where_we_have_no_authenticator(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        inner = site.world.app

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http",
            "method": "GET",
            "path": ROOT,
            "raw_path": ROOT.encode(),
            "query_string": b"",
            "headers": [],
            "user": "from around",
        }
        await inner(scope, receive, send)
        assert json.loads(sent[1]["body"])["user"] == "from around"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long_is_refused(plan: Plan, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 500

    async with door(GateReads, request_bytes=1000) as site:
        body = parts() if chunked else b"x" * 2000
        answer = await site.http("/agents/gate-reads/r", method="POST", body=body)
        assert (answer.status, answer.text) == (413, "Content Too Large")

        answer = await site.http("/agents/gate-reads/r", method="POST", body=b"x" * 1000)
        assert answer.text == "1000"


class GateReads(Agent):
    """Reads the whole body."""

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))


@pytest.mark.parametrize("message", ["x" * 1001, "é" * 501, b"x" * 1001])
async def test_a_message_that_is_too_long_closes_the_socket(plan: Plan, message: Any) -> None:
    async with door(GateRoot, deps=plan, frame_bytes=1000) as site, site.socket(ROOT) as client:
        await client.send("x" * 1000)
        await client.send(message)

        assert await closed(client) == 1009


async def test_sockets_of_an_agent_and_of_the_app_are_limited(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, connections=3, connections_per_agent=2) as site:
        async with site.socket(ROOT) as one, site.socket(ROOT) as two:
            await greeted(one)
            await greeted(two)
            assert await site.refused(ROOT) == 1013
            async with site.socket("/agents/gate-root/other") as three:
                await greeted(three)
                assert await site.refused("/agents/gate-root/third") == 1013
        async with asyncio.timeout(patience()):
            while True:
                with contextlib.suppress(ConnectionClosed):  # whoever counts them may not have heard yet that they left
                    async with site.socket(ROOT) as again:
                        assert await call(again, "who") == "r"
                        break


async def test_many_at_once_do_not_slip_past_the_limit(plan: Plan) -> None:
    async with door(GateRoot, deps=plan, connections_per_agent=5) as site:
        clients = await asyncio.gather(*(site.socket(ROOT).__aenter__() for _ in range(30)))

        async def let_in(client: Any) -> bool:
            try:
                await greeted(client)
            except ConnectionClosed:
                return False
            return True

        assert sum(await asyncio.gather(*(let_in(client) for client in clients))) == 5
        await asyncio.gather(*(client.close() for client in clients))


class GateFlood(Agent):
    """Sends more than anybody reads."""

    deps: Plan

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        for _ in range(200):
            connection.send("x" * 50_000)
        await asyncio.sleep(0)

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.deps.log.append(f"closed {code}")

    @expose
    async def clients(self) -> int:
        return len(self.connections.list())


async def test_who_does_not_read_is_told_1013_and_let_go(plan: Plan) -> None:
    quick = Timings(socket_close_timeout=0.3)
    async with door(GateFlood, deps=plan, outgoing_bytes=500_000, timings=quick) as site:
        async with site.socket("/agents/gate-flood/f", max_queue=1, close_timeout=0.2) as slow:
            await greeted(slow)
            await slow.send("go")
            async with asyncio.timeout(patience()):
                while not plan.log:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.01)
        async with site.socket("/agents/gate-flood/f") as other:
            assert await call(other, "clients") == 1


async def test_who_reads_late_learns_why_there_is_no_more(plan: Plan) -> None:
    flood = "/agents/gate-flood/f"
    async with door(GateFlood, deps=plan, outgoing_bytes=500_000) as site, site.socket(flood, max_queue=1) as slow:
        await greeted(slow)
        await slow.send("go")
        await asyncio.sleep(0.3)

        assert await closed(slow) == 1013


@pytest.mark.parametrize(
    ("origin", "origins", "code"),
    [
        (None, (), None),
        ("own", (), None),
        ("https://app.example", ("https://app.example",), None),
        ("https://anything.example", ("*",), None),
        ("https://evil.example", (), 4403),
        ("https://evil.example", ("https://app.example",), 4403),
        ("https://app.example.evil", ("https://app.example",), 4403),
        ("null", (), 4403),
        ("http://[", (), 4403),
        ("", (), 4403),
    ],
)
async def test_a_page_of_another_origin_opens_no_socket(
    plan: Plan, origin: str | None, origins: tuple[str, ...], code: int | None
) -> None:
    async with door(GateRoot, deps=plan, origins=origins) as site:
        given = f"http://127.0.0.1:{site.port}" if origin == "own" else origin
        options = {} if given is None else {"origin": given}
        if code is None:
            async with site.socket(ROOT, **options) as client:
                assert await call(client, "who") == "r"
        else:
            assert await site.refused(ROOT, **options) == code
            assert plan.log == []


async def test_calls_http_and_sockets_reach_the_same_agent(plan: Plan) -> None:
    async with door(GateRoot, deps=plan) as site:
        root = await site.world.get_agent(GateRoot, "r")
        async with site.socket(ROOT) as client:
            assert await call(client, "who") == await root.who() == (await site.http(ROOT)).json()["name"]
        assert plan.log.count("start r") == 1


class GateFarewell(Agent[int]):
    """Writes, says goodbye, and hangs up."""

    initial_state = 0

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        self.set_state(self.state + 1)
        connection.send("goodbye")
        connection.close(4000, "enough")


async def test_what_was_sent_before_a_close_arrives_before_it() -> None:
    async with door(GateFarewell, durability="disk") as site, site.socket("/agents/gate-farewell/g") as client:
        await greeted(client)
        await client.send("hello")

        heard = [frame async for frame in _frames(client)]
        assert "goodbye" in heard
        assert client.close_code == 4000


async def _frames(client: Any) -> AsyncIterator[Any]:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(patience()):
            while True:
                yield await client.recv()
