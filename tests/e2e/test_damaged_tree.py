"""A real server with a damaged tree: its clients get a final error, in any worker, and the log is short."""

from __future__ import annotations

import contextlib
import http.client
import re
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, serving
from websockets.exceptions import WebSocketException

pytestmark = pytest.mark.slow

APP = """
from starlette.responses import PlainTextResponse
from sapwood import Agent, App

class Box(Agent):
    migrations = ("CREATE TABLE t (x INTEGER)",)

    async def on_request(self, request):
        self.sql("INSERT INTO t VALUES (1)")
        return PlainTextResponse(str(self.sql("SELECT count(*) FROM t").scalar(int)))

app = App(agents=[Box])
"""
TOLD = r"Stored data cannot be read \(reference [0-9a-f]{8}\)\."


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["one process", "two workers"])
def test_clients_of_a_damaged_tree_are_told_once_and_for_all(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(APP)
    command = ("serve", "app:app", "--data", "data", *arguments)
    with serving(tmp_path, *command) as server:
        assert [server.get(f"/agents/box/{name}") for name in ("good", "bad")] == [(200, "1"), (200, "1")]
        server.stop()
    (tree,) = [one for one in (tmp_path / "data" / "trees").iterdir() if (one / "address").read_text() == "Box:bad"]
    (tree / "root.db-wal").unlink(missing_ok=True)
    (tree / "root.db").write_bytes(b"garbage" * 4000)

    with serving(tmp_path, *command) as server:
        for _ in range(10):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("GET", "/agents/box/bad")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["sapwood-error"]) == (500, "stored_data")
            assert re.fullmatch(TOLD, answer.read().decode())
            connection.close()
            with server.connect("/agents/box/bad") as client:
                with contextlib.suppress(WebSocketException):
                    client.recv(PATIENCE)
                assert client.close_code == 4500
                assert re.fullmatch(f"stored_data: {TOLD}", client.close_reason or "")
        assert server.get("/agents/box/good") == (200, "2")
        server.stop()

        assert len([line for line in server.said if "/agents/box/bad failed agent=Box:bad" in line]) == 4, server.said
        assert sum("failure repeated" in line for line in server.said) >= 2
        assert "".join(server.said).count("Traceback (most recent call last)") < 12
