"""`serve --studio` refuses what a foreign page may send: another name of the server, another origin, a socket."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, serving
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
        token = json.loads((tmp_path / "sapwood-data/operator.json").read_text())["token"]
        may = {"authorization": f"Bearer {token}"}
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
