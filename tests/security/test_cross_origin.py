"""Pages of other sites: what they send to the server changes nothing (cross-site request forgery)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from sapwood import Agent, App, ChatAgent, Settings
from sapwood.admin.door import AdminDoor
from sapwood.auth import JwtAuth
from sapwood.cli.host_check import HostCheck
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, running, text
from sapwood.web.origins import cross_origin_refusal

SERVER = "http://sapwood.example"
EVIL = {"origin": "https://evil.example"}
SECRET = "s" * 32
UNSAFE = ("POST", "PUT", "PATCH", "DELETE", "TRACE", "INVENTED")
URLS = (
    "/agents/cross-origin-desk/d",
    "/agents/cross-origin-desk/d/anything",
    "/agents/cross-origin-desk/d/sub/cross-origin-clerk/c",
    "/agents/cross-origin-talk/t/chat",
    "/agents/cross-origin-talk/t/questions",
    "/agents/cross-origin-talk/t/runs",
    "/agents/cross-origin-talk/t/runs/r/cancel",
)


class CrossOriginClerk(Agent):
    """Notes that it was reached."""

    deps: list[str]

    async def on_start(self) -> None:
        self.deps.append(f"{self.name} started")

    async def on_request(self, request: Request) -> Response:
        self.deps.append(f"{self.name} {request.method}")
        return PlainTextResponse("done")


class CrossOriginDesk(CrossOriginClerk):
    """A root with a child."""

    async def on_start(self) -> None:
        await super().on_start()
        await self.sub_agent(CrossOriginClerk, "c")


class CrossOriginTalk(ChatAgent):
    """A root that talks."""

    deps: list[str]
    expose_runs = True
    model = ScriptedModel(text("hello"), each=True)

    async def on_start(self) -> None:
        self.deps.append(f"{self.name} started")


class CrossOriginPage(Agent):
    """Answers with pages."""

    async def on_request(self, request: Request) -> Response:
        own = {"content-security-policy": "frame-ancestors https://portal.example"}
        return HTMLResponse("<p>page</p>", headers=own if self.name == "own" else {})


@asynccontextmanager
async def browsing(
    log: list[str] | None = None, *, authenticate: Any = None, door: Any = None, **settings: Any
) -> AsyncGenerator[httpx2.AsyncClient, None]:
    agents = [CrossOriginDesk, CrossOriginTalk, CrossOriginPage]
    app = App(agents=agents, deps=[] if log is None else log, authenticate=authenticate)
    async with running(app, **settings) as world:
        served = door(world) if door is not None else world.app
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(served), base_url=SERVER) as client:
            yield client


@pytest.mark.parametrize("url", URLS)
async def test_a_foreign_page_reaches_no_agent_with_an_unsafe_method(url: str) -> None:
    log: list[str] = []
    async with browsing(log) as client:
        for method in UNSAFE:
            for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded", ""):
                answer = await client.request(method, url, content=b"{}", headers={**EVIL, "content-type": kind})
                assert answer.status_code == 403, (method, kind)
        assert "Settings(origins=…)" in answer.text
        assert log == []

        await client.post(url, content=b"{}", headers={"origin": SERVER})
        assert log != []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://["},
        {"origin": f"{SERVER}.evil.example"},
        {"origin": "https://evil.example", "x-forwarded-host": "evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-site", "origin": SERVER},  # the same host without TLS
    ],
)
async def test_whatever_else_a_browser_says_of_a_foreign_page_is_refused(headers: Mapping[str, str]) -> None:
    async with browsing() as client:
        assert (await client.post(URLS[0], headers=headers)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ({}, {}),
        ({"origin": SERVER}, {}),
        ({"origin": SERVER.upper()}, {}),
        ({"origin": "https://sapwood.example"}, {}),
        ({"origin": "https://proxy.example", "sec-fetch-site": "same-origin"}, {}),
        ({"sec-fetch-site": "none"}, {}),
        ({"origin": "https://app.example", "sec-fetch-site": "cross-site"}, {"origins": ("https://app.example",)}),
        ({"origin": "http://localhost:5173"}, {"origins": ("http://localhost:*",)}),
        (EVIL, {"origins": ("*",)}),
        (EVIL, {"cors": True}),
    ],
)
async def test_programs_own_pages_and_allowed_ones_pass(headers: Mapping[str, str], settings: Any) -> None:
    async with browsing(**settings) as client:
        assert (await client.post(URLS[0], headers=headers)).text == "done"


@pytest.mark.parametrize("settings", [{"origins": ("*",)}, {"cors": True}])
async def test_what_all_origins_may_send_carries_no_cookies(settings: Any) -> None:
    async with browsing(**settings) as client:
        assert (await client.post(URLS[0], headers={**EVIL, "cookie": "session=1"})).status_code == 403


async def test_safe_methods_pass_from_everywhere() -> None:
    async with browsing() as client:
        for method in ("GET", "HEAD", "OPTIONS"):
            assert (await client.request(method, URLS[0], headers=EVIL)).status_code == 200


async def test_a_cookie_counts_from_a_page_that_origins_names_and_not_by_a_star() -> None:
    token = jwt.encode({"sub": "ann", "exp": 4_000_000_000}, SECRET, "HS256")
    auth = JwtAuth(SECRET, algorithms=["HS256"], cookie="session")
    sent = {"cookie": f"session={token}", "origin": "https://app.example"}
    async with browsing(authenticate=auth, origins=("https://app.example",)) as client:
        assert (await client.post(URLS[0], headers=sent)).status_code == 200
    async with browsing(authenticate=auth, origins=("*",)) as client:
        assert (await client.post(URLS[0], headers=sent)).status_code == 403


@pytest.mark.parametrize(
    ("origin", "origins", "user"),
    [
        ("https://evil.example", ("*",), None),
        ("https://app.example", ("https://app.example",), "ann"),
        (SERVER, (), "ann"),
        (None, (), "ann"),
    ],
)
def test_the_cookie_of_a_socket_counts_from_own_and_named_pages_only(
    origin: str | None, origins: tuple[str, ...], user: str | None
) -> None:
    token = jwt.encode({"sub": "ann", "exp": 4_000_000_000}, SECRET, "HS256")
    headers = [(b"host", b"sapwood.example"), (b"cookie", f"session={token}".encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    socket = HTTPConnection({"type": "websocket", "path": "/", "query_string": b"", "headers": headers})

    assert cross_origin_refusal(socket, Settings(origins=origins)) is None
    found = JwtAuth(SECRET, algorithms=["HS256"], cookie="session")(socket)

    assert (None if found is None else found.id) == user


@pytest.mark.parametrize(
    ("site", "origin", "is_refused"),
    [
        ("same-origin", "https://proxy.example", False),
        ("cross-site", SERVER, False),  # the scheme of the socket is not that of its page
        ("cross-site", "https://evil.example", True),
        ("cross-site", None, True),
    ],
)
def test_a_socket_is_judged_by_its_origin_where_the_site_is_in_doubt(
    site: str, origin: str | None, is_refused: bool
) -> None:
    headers = [(b"host", b"sapwood.example"), (b"sec-fetch-site", site.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    socket = HTTPConnection({"type": "websocket", "path": "/", "query_string": b"", "headers": headers})

    assert (cross_origin_refusal(socket, Settings()) is not None) == is_refused


@pytest.mark.parametrize("settings", [{}, {"cors": True}, {"origins": ("*",)}])
async def test_operator_urls_refuse_foreign_pages_even_with_the_token(settings: dict[str, Any]) -> None:
    headers = {"authorization": "Bearer t"}
    async with browsing(door=lambda world: AdminDoor(world.app, lambda: world.node, "t"), **settings) as client:
        assert (await client.post("/_sapwood/tree", headers=headers)).status_code == 200
        assert (await client.post("/_sapwood/tree", headers={**headers, **EVIL})).status_code == 403


@pytest.mark.slow  # it imports Temporal's client
async def test_driver_urls_refuse_foreign_pages_even_with_the_token() -> None:
    pytest.importorskip("temporalio")
    from sapwood.drivers.temporal import TemporalDriver

    app = App(agents=[CrossOriginDesk], deps=[], driver=TemporalDriver("127.0.0.1:1", token="t"))
    headers = {"authorization": "Bearer t"}
    async with (
        running(app) as world,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(world.app), base_url=SERVER) as client,
    ):
        assert (await client.post("/_driver/look", headers=headers)).status_code == 400
        assert (await client.post("/_driver/look", headers={**headers, **EVIL})).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:8000", 200),
        ("app.localhost:8000", 200),
        ("App.Example:443", 200),
        ("rebind.example", 421),
        ("127.0.0.1.rebind.example:8000", 421),
        ("localhost@rebind.example", 421),
        ("[", 421),
        ("", 421),
    ],
)
async def test_a_local_server_answers_to_its_own_names_only(host: str, status: int) -> None:
    async with browsing(door=lambda world: HostCheck(world.app, ("app.example",))) as client:
        assert (await client.get(URLS[0], headers={"host": host})).status_code == status


async def test_a_local_server_answers_health_checks_without_a_host() -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def unused(*_: Any) -> Any:
        raise AssertionError("The request was refused.")

    await HostCheck(app, ())({"type": "http", "path": "/healthz", "headers": []}, unused, unused)

    assert reached == ["/healthz"]


async def test_a_local_server_opens_no_socket_under_a_foreign_name() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def unreached(*_: Any) -> Any:
        raise AssertionError("The app was reached.")

    await HostCheck(unreached, ())({"type": "websocket", "headers": [(b"host", b"rebind.example")]}, unreached, send)

    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_pages_say_who_may_frame_them_and_what_type_they_have(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page/index.html").write_text("<p>page</p>")
    app = App(agents=[CrossOriginPage], pages=tmp_path / "page", settings=Settings(data=tmp_path / "data"))
    async with app, httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=SERVER) as client:
        for url in ("/", "/nothing", "/agents/cross-origin-page/p", "/agents/nothing/p", "/healthz", "/readyz"):
            answer = await client.get(url)
            assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"
            assert answer.headers["x-content-type-options"] == "nosniff"
        answer = await client.get("/agents/cross-origin-page/own")
        assert answer.headers["content-security-policy"] == "frame-ancestors https://portal.example"


async def test_the_setting_says_who_may_frame_pages() -> None:
    async with browsing(frame_ancestors="https://portal.example") as client:
        answer = await client.get("/agents/cross-origin-page/p")
        assert answer.headers["content-security-policy"] == "frame-ancestors https://portal.example"
    async with browsing(frame_ancestors="") as client:
        assert "content-security-policy" not in (await client.get("/agents/cross-origin-page/p")).headers
    with pytest.raises(UsageError, match="frame_ancestors"):
        Settings(frame_ancestors="'self'; script-src *")
    with pytest.raises(UsageError, match="frame_ancestors"):
        Settings(frame_ancestors="'self'\r\nset-cookie: a=b")
