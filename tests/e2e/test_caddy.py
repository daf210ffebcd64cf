"""The Caddyfile of `deploy` holds requests while the server restarts, and keeps the paths of operators closed."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.e2e.command import said_by, serving
from tests.machine import patience

CADDYFILE = Path(__file__).parents[2] / "deploy/caddy/Caddyfile"
PAGE = "/agents/lobby/main"

pytestmark = [pytest.mark.nightly, pytest.mark.needs("caddy")]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ask(port: int, path: str) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=patience())
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture
def app_port() -> int:
    return free_port()


@pytest.fixture
def caddy(tmp_path: Path, app_port: int) -> Iterator[int]:
    """Run Caddy in front of a server, without TLS, and return its port."""
    port, folder = free_port(), str(tmp_path / "caddy")
    config = tmp_path / "Caddyfile"
    config.write_text("{\n\tadmin off\n}\n" + CADDYFILE.read_text())
    site = {"SITE": f"http://127.0.0.1:{port}", "APP": f"127.0.0.1:{app_port}"}
    command = ("caddy", "run", "--config", str(config), "--adapter", "caddyfile")
    variables = {**os.environ, **site, "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
    running = subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + patience()
        while time.monotonic() < until:
            try:
                ask(port, "/metrics")
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield port
    finally:
        running.terminate()
        running.wait(patience())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    said_by(tmp_path, "new", "demo")
    return tmp_path / "demo"


def test_a_request_waits_until_the_server_has_restarted(project: Path, app_port: int, caddy: int) -> None:
    with serving(project, SAPWOOD_PORT=str(app_port)):
        assert ask(caddy, PAGE) == 200
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(ask(caddy, PAGE)))
    waiting.start()

    waiting.join(1)
    assert waiting.is_alive()
    with serving(project, SAPWOOD_PORT=str(app_port)):
        waiting.join(patience())

    assert answers == [200]


def test_the_paths_of_operators_are_not_forwarded(project: Path, app_port: int, caddy: int) -> None:
    with serving(project, SAPWOOD_PORT=str(app_port)):
        assert [ask(caddy, path) for path in ("/healthz", "/metrics", "/_sapwood/tree")] == [200, 404, 404]
