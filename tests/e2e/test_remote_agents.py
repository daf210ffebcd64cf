"""Two real servers, of which one has the other do runs: killed in the middle, refused, and read slowly."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.e2e.command import PATIENCE, Server
from tests.ports import free_port

KEY = "a-long-random-key"
PROTOCOL = {"sapwood-protocol": "1", "authorization": f"Bearer {KEY}"}
WORDS = 400
DESK = "/agents/near-desk/d"

FAR = f"""
import asyncio
from collections.abc import AsyncIterator

from sapwood import Agent, App
from sapwood.auth import ApiKeys


class FarCounter(Agent):
    expose_runs = True
    migrations = ("CREATE TABLE said (n INTEGER PRIMARY KEY) STRICT",)

    async def on_run(self, input: dict[str, int]) -> AsyncIterator[dict[str, object]]:
        first = self.sql("SELECT count(*) FROM said").scalar(int)
        for n in range(first, input["words"]):
            self.sql("INSERT INTO said VALUES (?)", n)
            yield {{"type": "data-word", "data": str(n) + "." * input.get("length", 0)}}
            await asyncio.sleep(input.get("pause", 0) / 1000)


app = App(agents=[FarCounter], authenticate=ApiKeys({{"near": ApiKeys.hash_of("{KEY}")}}))
"""

NEAR = """
import os

from sapwood import Agent, App, RemoteSubAgent, Run


class Counter(RemoteSubAgent):
    url = os.environ["FAR_URL"]

    async def token(self) -> str:
        return os.environ["FAR_KEY"]


class NearDesk(Agent):
    async def on_request(self, request):
        from starlette.responses import JSONResponse

        if request.method == "POST":
            given = await request.json()
            await self.start_run(Counter, given, run_id="r1")
        run = self.runs.get("r1")
        return JSONResponse({"status": run.status, "error": run.error, "reason": run.reason, "remote": run.remote})


app = App(agents=[NearDesk])
"""


class Site:
    """A server that comes back on the same port, with the same data."""

    def __init__(self, folder: Path, program: str, **variables: str) -> None:
        folder.mkdir()
        (folder / "app.py").write_text(program)
        self._folder, self._variables = folder, {"SAPWOOD_PORT": str(free_port()), **variables}
        self.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._variables['SAPWOOD_PORT']}"

    @property
    def pid(self) -> int:
        return self._server.process.pid

    def start(self) -> None:
        self._server = Server(self._folder, "serve", "app:app", **self._variables)

    def kill(self) -> None:
        self._server.process.send_signal(signal.SIGKILL)
        self._server.process.wait(PATIENCE)

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any]:
        """Send a request; return the status, and the answer as JSON if it is."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def end(self) -> None:
        if self._server.process.poll() is None:
            self.kill()


@contextmanager
def sites(folder: Path, key: str = KEY, url: str | None = None) -> Iterator[tuple[Site, Site]]:
    far = Site(folder / "far", FAR)
    near = None
    try:
        near = Site(folder / "near", NEAR, FAR_URL=url or f"http://{far.host}/agents/far-counter", FAR_KEY=key)
        yield near, far
    finally:
        far.end()
        if near is not None:
            near.end()


class Watcher:
    """Reads all that happens at the desk, and comes back with its cursor whenever the server is away."""

    def __init__(self, near: Site) -> None:
        self._near = near
        self.events: list[dict[str, Any]] = []
        self._cursor = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over:
            try:
                self._read_once()
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)

    def _read_once(self) -> None:
        connection = http.client.HTTPConnection(self._near.host, timeout=PATIENCE)
        try:
            connection.request("GET", f"{DESK}/events?after={self._cursor}")
            answer = connection.getresponse()
            while not self._is_over and (line := answer.readline()):
                if not line.endswith(b"\n"):
                    return  # cut in the middle
                if line.strip():
                    event = json.loads(line)
                    self.events.append(event)
                    self._cursor = event["cursor"]
                    self._is_over = event["kind"] in ("completed", "failed", "cancelled")
        finally:
            connection.close()

    def words(self) -> list[str]:
        return [event["body"]["data"] for event in list(self.events) if event["kind"] == "chunk"]

    def until(self, fits: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not fits():
            assert time.monotonic() < end, f"{len(self.events)} events, the last {self.events[-1:]}"
            time.sleep(0.01)

    def until_over(self) -> None:
        self._thread.join(PATIENCE)
        assert self._is_over, f"{len(self.events)} events, the last {self.events[-1:]}"


def status(near: Site, *wanted: str) -> Any:
    """Wait until the run has one of these statuses."""
    end = time.monotonic() + PATIENCE
    while (found := near.ask(DESK)[1])["status"] not in wanted:
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


@pytest.mark.nightly
@pytest.mark.promise("A-215")
def test_a_run_survives_that_either_server_is_killed_and_every_event_comes_once(tmp_path: Path) -> None:
    with sites(tmp_path) as (near, far):
        watcher = Watcher(near)
        near.ask(DESK, "POST", {"words": WORDS, "pause": 10})
        for part, killed in enumerate(([far], [near], [near, far]), start=1):
            watcher.until(lambda part=part: len(watcher.words()) >= WORDS * part // 5)
            for site in killed:
                site.kill()
            for site in killed:
                site.start()

        watcher.until_over()

        expected = [str(n) for n in range(WORDS)]
        assert watcher.words() == expected
        assert [event["seq"] for event in watcher.events] == list(range(WORDS + 2))
        assert (watcher.events[0]["kind"], watcher.events[-1]["kind"]) == ("started", "completed")
        late = Watcher(near)
        late.until_over()
        assert late.words() == expected
        run = near.ask(DESK)[1]
        session = f"/agents/far-counter/{run['remote']['session']}/run"
        there = far.ask(session, **PROTOCOL)[1]
        assert (run["status"], there["status"], there["seq"]) == ("completed", "completed", WORDS)


@pytest.mark.nightly
@pytest.mark.promise("B-38")
def test_a_wrong_token_and_an_old_protocol_end_a_run_at_once_and_say_what_to_do(tmp_path: Path) -> None:
    with sites(tmp_path, key="wrong") as (near, far):
        near.ask(DESK, "POST", {"words": 1})
        refused = status(near, "failed")
        path = "/agents/far-counter/nobody/run"
        old = far.ask(path, "POST", {"input": {"words": 1}}, **{**PROTOCOL, "sapwood-protocol": "0"})
        unknown = far.ask(path, **PROTOCOL)

    assert "remote_unauthorized: http" in refused["error"]
    assert "Check the token" in refused["error"]
    assert refused["reason"] is None
    assert (old[0], old[1]["code"]) == (426, "protocol_mismatch")
    assert "Use the same release of sapwood on both sides." in old[1]["error"]
    assert (unknown[0], unknown[1]["code"]) == (404, "remote_lost")


class Newer(BaseHTTPRequestHandler):
    """A server of a release to come, which knows our protocol no more."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path.rpartition("/")[2])
        self.send_response(426)
        self.send_header("sapwood-protocol", "7")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_server_of_another_release_is_asked_once(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Newer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sites(tmp_path, url=f"http://127.0.0.1:{server.server_port}/agents/far-counter") as (near, _):
            near.ask(DESK, "POST", {"words": 1})
            refused = status(near, "failed")
    finally:
        server.shutdown()
        server.server_close()

    assert "uses version 7" in refused["error"]
    assert Newer.asked in (["run"], ["run", "cancel"])  # a start may have been taken, and its reply lost


@pytest.mark.nightly
@pytest.mark.promise("B-38")
def test_a_reader_that_does_not_read_holds_up_nobody_and_costs_no_memory(tmp_path: Path) -> None:
    words, length = 4000, 8000
    far = Site(tmp_path / "far", FAR)
    try:
        path = "/agents/far-counter/much/run"
        far.ask(path, "POST", {"input": {"words": words, "length": length}}, **PROTOCOL)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", int(far.host.rpartition(":")[2])))
            lines = [f"GET {path}/stream HTTP/1.0", f"host: {far.host}", *(f"{k}: {v}" for k, v in PROTOCOL.items())]
            slow.sendall(("\r\n".join([*lines, "", ""])).encode())
            before = memory(far.pid)
            end = time.monotonic() + PATIENCE
            while far.ask(path, **PROTOCOL)[1]["status"] != "completed":
                assert time.monotonic() < end
                time.sleep(0.05)
            grown = memory(far.pid) - before

            heard = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    finally:
        far.end()

    assert grown < words * length / 2, grown
    found = [line for line in heard.split(b"\n") if line.startswith(b"id: ")]
    assert found == [b"id: %d" % seq for seq in range(1, words + 1)]
    assert heard.rstrip().split(b"\n")[-2] == b"event: end"


def memory(pid: int) -> int:
    """Return how many bytes of memory a process has; 0 where nobody can tell."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmRSS: 0"]
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
