"""What pages of other sites can do in a real browser to servers on the user's machine."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.e2e.command import Server, serving
from tests.machine import patience

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

APP = """
from pathlib import Path
from starlette.responses import HTMLResponse, PlainTextResponse
from sapwood import Agent, App, ChatAgent, expose
from sapwood.testing import ScriptedModel, text

class Talk(ChatAgent):
    model = ScriptedModel(text("hello"), each=True)

class Room(Agent[list]):
    initial_state = []

    async def on_request(self, request):
        if request.method == "GET":
            return PlainTextResponse(f"SECRET {self.state}")
        self.set_state([*self.state, request.method])
        return PlainTextResponse("done")

    @expose
    async def add(self, what: str) -> str:
        self.set_state([*self.state, what])
        return "SECRET"

app = App(agents=[Talk, Room], pages=Path(__file__).with_name("page"))
"""
POSTS = """async (base) => {
  const said = { messages: [{ id: "m", role: "user", parts: [{ type: "text", text: "pay" }] }] };
  const post = (path, body) => fetch(base + path, { method: "POST", mode: "no-cors", credentials: "include", body })
    .then((answer) => answer.type);
  return [await post("/agents/talk/victim/chat", JSON.stringify(said)), await post("/agents/room/victim", "x")];
}"""
FORM = """(url) => {
  const form = document.createElement("form");
  form.method = "post"; form.action = url; form.enctype = "text/plain";
  document.body.append(form); form.submit();
}"""
READS = """async (path) => { const answer = await fetch(path); return [answer.status, await answer.text()]; }"""
CALLS = """async (url) => new Promise((done) => {
  const socket = new WebSocket(url);
  socket.onopen = () => socket.send(JSON.stringify({ type: "rpc", id: "1", method: "add", args: ["socket"] }));
  socket.onmessage = (event) => { if (JSON.parse(event.data).type === "rpc") done("called"); };
  socket.onclose = () => done("refused");
})"""
FRAMES = """async (url) => {
  const frame = document.createElement("iframe");
  await new Promise((done) => { frame.onload = done; frame.src = url; document.body.append(frame); });
}"""


class Evil(http.server.BaseHTTPRequestHandler):
    """A page of another site."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body>evil")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def evil() -> Iterator[str]:
    """The URL of the other site."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://evil.example:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, to which names of other sites lead to this machine."""
    names = "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP rebind.example 127.0.0.1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            chromium_sandbox=False,
            args=[names, "--disable-gpu", "--disable-dev-shm-usage", "--disable-features=LocalNetworkAccessChecks"],
            timeout=patience(60) * 1000,
        )
        yield browser
        browser.close()


@pytest.fixture(
    scope="module", params=["serve", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("dev", "workers"))]
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "app.py").write_text(APP)
    (folder / "page").mkdir()
    (folder / "page/index.html").write_text("<!doctype html><title>own</title><body>own page")
    started = {"serve": ("serve", "app:app"), "dev": ("dev",), "workers": ("serve", "app:app", "--workers", "2")}
    with ExitStack() as stack:
        yield stack.enter_context(serving(folder, *started[request.param]))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(patience() * 1000)
        yield context.new_page()


def test_a_foreign_page_begins_no_turn_and_no_request(server: Server, page: Page, evil: str) -> None:
    base = f"http://127.0.0.1:{server.port}"
    page.goto(evil)

    assert page.evaluate(POSTS, base) == ["opaque", "opaque"]  # both were sent, and answered
    assert page.evaluate(CALLS, f"ws://127.0.0.1:{server.port}/agents/room/victim") == "refused"
    with page.expect_response(re.compile("/agents/room/victim")) as answered:
        page.evaluate(FORM, f"{base}/agents/room/victim")

    assert answered.value.status == 403
    assert server.get("/agents/talk/victim/get-messages") == (200, "[]")
    assert server.get("/agents/room/victim") == (200, "SECRET []")


def test_a_page_whose_name_was_rebound_reads_and_calls_nothing(server: Server, page: Page) -> None:
    answer = page.goto(f"http://rebind.example:{server.port}/")

    assert answer is not None
    assert answer.status == 421
    assert page.evaluate(READS, "/agents/room/rebound")[0] == 421
    assert page.evaluate(CALLS, f"ws://rebind.example:{server.port}/agents/room/rebound") == "refused"
    assert server.get("/agents/room/rebound") == (200, "SECRET []")


def test_a_foreign_page_cannot_frame_ours(server: Server, page: Page, evil: str) -> None:
    page.goto(evil)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))

    page.evaluate(FRAMES, f"http://127.0.0.1:{server.port}/")

    assert any("frame-ancestors" in text or "Framing" in text for text in said), said
    assert [frame.title() for frame in page.frames[1:]] != ["own"]


def test_the_server_s_own_page_reads_posts_and_calls(server: Server, page: Page) -> None:
    page.goto(f"http://localhost:{server.port}/")
    name = f"/agents/room/own-{server.port}"

    assert page.evaluate(CALLS, f"ws://localhost:{server.port}{name}") == "called"
    assert page.evaluate("(path) => fetch(path, { method: 'POST' }).then((answer) => answer.text())", name) == "done"
    assert page.evaluate(READS, name) == [200, "SECRET ['socket', 'POST']"]
