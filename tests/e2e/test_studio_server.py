"""`serve --studio` refuses what a foreign page may send: another name of the server, another origin, a socket."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import PATIENCE, Server, serving, until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Origin

APP = """
from sapwood import Agent, App, Settings
from sapwood.auth import User


class Box(Agent):
    pass


app = App(agents=[Box], authenticate=lambda request: User("ann"), settings=Settings(allowed_hosts=("studio.test",)))
"""


def status(server: Server, method: str, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
def test_a_studio_in_production_refuses_foreign_pages(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--studio") as server:
        own = f"127.0.0.1:{server.port}"
        may = {"authorization": f"Bearer {server.token}"}
        evil = "evil.example"

        assert status(server, "GET", "/studio/") == 200
        assert status(server, "GET", "/studio/", host="studio.test") == 200
        assert status(server, "GET", "/studio/", host=evil) == 421
        assert status(server, "POST", "/_sapwood/session", **may) == 200
        assert status(server, "POST", "/_sapwood/session", origin=f"http://{own}", **may) == 200
        assert status(server, "POST", "/_sapwood/session", origin=f"http://{evil}", **may) == 403
        assert status(server, "POST", "/_sapwood/session", sec_fetch_site="cross-site", **may) == 403
        # DNS rebinding: the page's own name has become that of the server, so the browser calls it the same origin.
        rebound = {"host": evil, "origin": f"http://{evil}", "sec_fetch_site": "same-origin"}
        assert status(server, "POST", "/_sapwood/session", **rebound, **may) == 421
        url = f"ws://{own}/agents/box/a"
        with connect(url, origin=Origin(f"http://{own}")) as socket:
            assert socket.recv(PATIENCE)
        with connect(url, origin=Origin(f"http://{evil}")) as socket, pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4403


@pytest.mark.slow
@pytest.mark.nightly
def test_the_clients_of_an_agent_are_listed_by_pages(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app") as server:
        url = f"ws://127.0.0.1:{server.port}/agents/box/a"

        def ask(**params: object) -> dict[str, Any]:
            return json.loads(server.post("connections", address="Box:a", **params)[1])

        with connect(f"{url}?_pk=one", user_agent_header="test/1") as first, connect(f"{url}?_pk=two") as second:
            assert first.recv(PATIENCE)
            assert second.recv(PATIENCE)
            stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            stream.request("GET", "/agents/box/a/events", headers={"user-agent": "test/2"})
            stream.getresponse()

            rows = ask()["rows"]
            page, begin = ask(limit=1), time.time()
            rest = ask(after=page["next"], limit=2)

            kinds = ["websocket", "websocket", "events"]
            assert [row["protocol"] for row in rows] == kinds
            assert [row["id"] for row in rows] == ["one", "two", None]
            assert {row["user"] for row in rows} == {"ann"}
            assert (rows[0]["client"], rows[2]["client"]) == ("test/1", "test/2")
            assert all(begin - PATIENCE < row["since"] <= begin for row in rows)
            assert [row["number"] for row in (*page["rows"], *rest["rows"])] == [row["number"] for row in rows]
            assert (page["total"], rest["next"]) == (3, None)
            stream.close()

        until(lambda: not ask()["rows"])
