"""A real server on a disk that is full, or read-only, and with few descriptors."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, sapwood, serving
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

pytestmark = pytest.mark.slow

APP = """
from starlette.responses import PlainTextResponse
from sapwood import Agent, App, expose

class Box(Agent):
    migrations = ("CREATE TABLE t (x BLOB)",)

    @expose
    async def add(self, size: int = 100) -> int:
        self.sql("INSERT INTO t VALUES (zeroblob(?))", size)
        return await self.count()

    @expose
    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM t").scalar(int)

    async def on_request(self, request):
        return PlainTextResponse(str(await (self.add() if request.method == "POST" else self.count())))

app = App(agents=[Box])
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=True)
    try:
        (tmp_path / "app.py").write_text(APP)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave not one byte free."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        for size in (65536, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def free(disk: Path) -> None:
    (disk / "ballast").unlink()


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def call(client: ClientConnection, method: str, *args: object) -> dict[str, object]:
    client.send(json.dumps({"type": "rpc", "id": "1", "method": method, "args": args}))
    while (frame := json.loads(client.recv(PATIENCE))).get("type") != "rpc":
        pass
    return frame


def until_ready(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while server.get("/readyz")[0] != 200:
        assert time.monotonic() < end, server.said
        time.sleep(0.05)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["one process", "two workers"])
def test_a_server_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, disk: Path, arguments: tuple[str, ...]
) -> None:
    with serving(tmp_path, "serve", "app:app", "--data", str(disk / "data"), *arguments) as server:
        with server.connect("/agents/box/old") as client:
            assert call(client, "add")["result"] == 1
        fill(disk)
        for name in ("old", "new"):
            for _ in range(20):
                assert server.get(f"/agents/box/{name}")[0] in (200, 503)  # reading needs no room, creating does
            with server.connect(f"/agents/box/{name}") as client:
                client.send(json.dumps({"type": "rpc", "id": "1", "method": "add", "args": []}))
                with contextlib.suppress(WebSocketException):
                    while True:
                        client.recv(PATIENCE)
                assert client.close_code == 1013
        assert server.get("/readyz") == (503, "not ready: the disk is full")
        free(disk)
        until_ready(server)
        for name, kept in (("old", 2), ("new", 1)):
            with server.connect(f"/agents/box/{name}") as client:
                assert call(client, "add")["result"] == kept

        server.wait_for(re.compile("data folder can be written again"))
        trouble = [line for line in server.said if " INFO " not in line]
        assert len(trouble) < 12, trouble
        assert "Traceback" not in "".join(trouble)


@pytest.mark.needs("mount")
@pytest.mark.parametrize(("how", "reason"), [("full", "The disk is full."), ("ro", "The file system is read-only.")])
def test_a_start_on_a_disk_that_takes_no_writes_ends_with_a_sentence(
    tmp_path: Path, disk: Path, how: str, reason: str
) -> None:
    with serving(tmp_path, "serve", "app:app", "--data", str(disk / "data")) as server:
        assert server.get("/agents/box/a")[0] == 200
        server.stop()
    if how == "full":
        fill(disk)
    else:
        remount(disk, "ro")

    alone = sapwood(tmp_path, "serve", "app:app", "--port", "0", "--data", str(disk / "data"))
    workers = sapwood(tmp_path, "serve", "app:app", "--port", "0", "--data", str(disk / "data"), "--workers", "2")
    remount(disk, "rw")

    for done, code in ((alone, 3), (workers, 1)):
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert f"The data folder '{disk / 'data'}' cannot be written. {reason}" in done.stderr


@pytest.mark.needs("mount")
def test_a_server_stops_cleanly_on_a_full_disk(tmp_path: Path, disk: Path) -> None:
    with serving(tmp_path, "serve", "app:app", "--data", str(disk / "data")) as server:
        with server.connect("/agents/box/old") as client:
            assert call(client, "add")["result"] == 1
        fill(disk)
        assert server.get("/agents/box/new")[0] == 503
        server.stop()

        assert "Traceback" not in "".join(server.said)


LIMIT = 96
LIMITED = f"""
import resource
import sapwood.cli

resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
sapwood.cli.main()
"""


class LimitedServer(Server):
    """A server that may open few files."""

    command = (sys.executable, "-c", LIMITED)


def test_a_server_without_descriptors_refuses_with_1013_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    variables = {"SAPWOOD_OPEN_DATABASES": "60", "SAPWOOD_DURABILITY": "disk"}
    server = LimitedServer(tmp_path, "serve", "app:app", **variables)
    try:
        assert f"{LIMIT} for the running server, process {server.process.pid}" in sapwood(tmp_path, "doctor").stdout
        codes: set[int | None] = set()
        with contextlib.ExitStack() as stack:
            for number in range(LIMIT // 2):
                with contextlib.suppress(OSError, TimeoutError, WebSocketException):
                    client = stack.enter_context(server.connect(f"/agents/box/{number}", open_timeout=2))
                    with contextlib.suppress(WebSocketException, TimeoutError):
                        call(client, "add")
                    codes.add(client.close_code)
        assert codes == {None, 1013}, server.said
        until_ready(server)
        with server.connect("/agents/box/0") as client:
            assert call(client, "count")["result"] == 1
    finally:
        server.process.kill()
        server.process.wait(PATIENCE)
