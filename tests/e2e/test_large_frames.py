"""Large frames with pictures: within a budget of the process, and without keeping the loop from its other work."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.looker_app import Looker
from tests.e2e.serving import serving
from tests.machine import patience
from tests.servers import Server
from websockets.sync.client import connect

from sapwood import App, Settings
from sapwood.web.frame_budget import FrameBudget
from sapwood.web.server import WebSockets

MIB = 1024 * 1024
ORDINARY = 4 * MIB + 1
SLICE = 0.02
"""Seconds of the loop that one slice may take while a frame arrives."""


def frame(count: int, size: int, id: str = "r1") -> str:
    """Return a message with pictures, as the npm hook sends it."""
    head = b"\x89PNG\r\n\x1a\n"
    urls = ["data:image/png;base64," + base64.b64encode(head + os.urandom(size)).decode() for _ in range(count)]
    files = [{"type": "file", "mediaType": "image/png", "url": url} for url in urls]
    message = {"id": f"m-{id}", "role": "user", "parts": [{"type": "text", "text": "look"}, *files]}
    body = json.dumps({"messages": [message], "trigger": "submit-message"})
    return json.dumps({"type": "cf_agent_use_chat_request", "id": id, "init": {"method": "POST", "body": body}})


class Tab:
    """A client in a thread of its own, so that its work is not the loop's."""

    def __init__(self, url: str, name: str = "t") -> None:
        url = url.replace("http", "ws", 1)
        self._stack = ExitStack()
        path = f"{url}/agents/looker/{name}"
        self._socket = self._stack.enter_context(
            connect(path, max_size=None, compression=None, proxy=None, open_timeout=patience())
        )
        self.sizes: list[int] = []
        self._until("cf_agent_mcp_servers")

    def _until(self, kind: str, **fields: Any) -> dict[str, Any]:
        while True:
            told = self._socket.recv(timeout=patience())
            self.sizes.append(len(told))
            found = json.loads(told)
            if found["type"] == kind and fields.items() <= found.items():
                return found

    def send(self, text: str) -> None:
        self._socket.send(text)

    def begin(self, content: str) -> None:
        """Send the beginning of a frame that is said to be longer."""
        self._socket.socket.sendall(b"\x81\xff" + (30 * MIB).to_bytes(8, "big") + bytes(4) + content.encode())

    def leave(self) -> None:
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def done(self, id: str = "r1") -> dict[str, Any]:
        return self._until("cf_agent_use_chat_response", id=id, done=True)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Measure the CPU time of each turn of this thread's loop that runs a callback."""
    found: list[float] = []
    run, here = asyncio.events.Handle._run, threading.get_ident()

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        if threading.get_ident() == here:
            found.append(time.thread_time() - began)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        yield found


def options(budget: FrameBudget) -> dict[str, Any]:
    return {
        "ws": functools.partial(WebSockets, budget=budget),
        "ws_max_size": ORDINARY,
        "ws_per_message_deflate": False,
    }


@pytest.mark.slow
async def test_six_pictures_of_a_megabyte_keep_no_slice_above_20_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(agents=[Looker], settings=Settings(data=tmp_path))
    async with serving(app, **options(FrameBudget(256 * MIB))) as url:
        tab = await asyncio.to_thread(Tab, url)
        content = await asyncio.to_thread(frame, 6, MIB)
        with slices(monkeypatch) as found:
            await asyncio.to_thread(tab.send, content)
            end = await asyncio.to_thread(tab.done)
        newcomer = await asyncio.to_thread(Tab, url)
        for one in (tab, newcomer):
            await asyncio.to_thread(one.close)

    assert end["outcome"] == "completed"
    assert max(newcomer.sizes) < 20_000
    assert max(found) < SLICE, sorted(found)[-5:]


@pytest.mark.nightly
async def test_frames_beyond_the_budget_wait_for_the_others(tmp_path: Path) -> None:
    app = App(agents=[Looker], settings=Settings(data=tmp_path))
    budget = FrameBudget(32 * MIB)  # one of the largest
    async with serving(app, **options(budget)) as url:
        tabs = [await asyncio.to_thread(Tab, url, f"t{number}") for number in range(3)]
        content = await asyncio.to_thread(frame, 1, 5 * MIB)
        assert budget.take(1, lambda: None)  # nothing is free for a whole frame
        sending = [asyncio.create_task(asyncio.to_thread(tab.send, content)) for tab in tabs]
        async with asyncio.timeout(patience()):
            while budget.waiting < len(tabs):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        budget.give(1)
        ends = [await asyncio.to_thread(tab.done) for tab in tabs]
        await asyncio.gather(*sending)
        for tab in tabs:
            await asyncio.to_thread(tab.close)

    assert [end["outcome"] for end in ends] == ["completed"] * 3
    assert budget.free == 32 * MIB


async def test_a_client_that_leaves_in_the_middle_of_a_frame_gives_back_what_it_held(tmp_path: Path) -> None:
    app = App(agents=[Looker], settings=Settings(data=tmp_path))
    budget = FrameBudget(64 * MIB)
    async with serving(app, **options(budget)) as url:
        tab = await asyncio.to_thread(Tab, url)
        beginning = await asyncio.to_thread(frame, 1, 5 * MIB)
        sending = asyncio.create_task(asyncio.to_thread(tab.begin, beginning))
        async with asyncio.timeout(patience()):
            while budget.free == 64 * MIB:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            await sending
            tab.leave()
            while budget.free != 64 * MIB:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)


class Workers(Server):
    """Two workers: most clients are held by another process than the one that runs their agent."""

    def command(self) -> list[str]:
        app = str(Path(__file__).with_name("looker_app.py"))
        options = ["--workers", "2", "--port", str(self.port), "--data", str(self._data), "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", app, *options]


@pytest.mark.nightly
def test_large_frames_reach_agents_in_other_workers(tmp_path: Path) -> None:
    server = Workers(tmp_path, tmp_path / "data")
    try:
        content, ends = frame(2, 3 * MIB), list[str]()
        for number in range(4):
            tab = Tab(f"http://{server.host}", f"t{number}")
            tab.send(content)
            ends.append(tab.done()["outcome"])
            tab.close()
    finally:
        server.end(signal.SIGTERM)

    assert ends == ["completed"] * 4
