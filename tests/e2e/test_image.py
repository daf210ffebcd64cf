"""The image of `deploy/oci` serves a project of `sapwood new`, from a wheel and locked packages, and keeps its data."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.command import Server, said_by
from tests.machine import patience
from tests.needs import base_image

ROOT = Path(__file__).parents[2]
APP = "app = App(agents=[Lobby])"
WITH_AUTHENTICATE = 'app = App(agents=[Lobby], authenticate=lambda request: request.headers.get("x-user"))'
COUNTER = "Lobby:main/Counter:shared"
LOCK = re.compile(r"^uv pip compile .+$", re.MULTILINE)
ENDED_BY_SIGTERM = {0, 128 + 15}
"""A server that has shut down ends by the signal that it was sent, which the first process of a container ignores."""

pytestmark = [pytest.mark.nightly, pytest.mark.needs("image")]


def run(*command: str | Path, folder: Path | None = None, fails: bool = False) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=patience(600), check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


def index_of_this_machine(folder: Path) -> Iterator[str]:
    """Yield what gives a build the index and the certificates of this machine, and leaves nothing in the image."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL")
    certificates = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    settings = [f"index-url = {index}"] * bool(index) + [f"cert = {certificates}"] * bool(certificates)
    (folder / "pip.conf").write_text("\n".join(["[global]", *settings, ""]))
    yield f"--volume={folder / 'pip.conf'}:/etc/pip.conf:ro"
    if certificates:
        yield f"--volume={certificates}:{certificates}:ro"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the image of a project, as its README says."""
    folder, name = tmp_path_factory.mktemp("image"), f"localhost/sapwood-test-{uuid.uuid4().hex[:8]}"
    said_by(folder, "new", "demo")
    project = folder / "demo"
    app = (project / "app.py").read_text()
    assert APP in app
    (project / "app.py").write_text(app.replace(APP, WITH_AUTHENTICATE))
    (project / ".env").write_text("ANTHROPIC_API_KEY=secret\n")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", project, ROOT)
    (lock,) = LOCK.findall((project / "README.md").read_text())
    run(*shlex.split(lock), folder=project)
    mounts = index_of_this_machine(folder)
    base = f"--build-arg=BASE={base_image()}"
    run("podman", "build", "--format=docker", "--pull=never", base, *mounts, f"--tag={name}", project)
    yield name
    run("podman", "rmi", "--force", name)


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"sapwood-test-{uuid.uuid4().hex[:8]}"
    yield name
    run("podman", "volume", "rm", "--force", name, f"{name}-backups")


class Container(Server):
    """A container of the image, run as `deploy/compose` does."""

    def __init__(self, folder: Path, image: str, volume: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.name = f"sapwood-test-{uuid.uuid4().hex[:8]}"
        self.command: Sequence[str] = (
            "podman", "run", "--rm", "--name", self.name, "--network=host", f"--env=SAPWOOD_PORT={port}",
            "--init", "--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp",
            "--cap-drop=all", "--security-opt=no-new-privileges", "--health-interval=disable",
            f"--volume={volume}:/data", f"--volume={volume}-backups:/backups",
        )  # fmt: skip
        super().__init__(folder, image)

    def run(self, *command: str, fails: bool = False) -> str:
        """Run a command in the container."""
        return run("podman", "exec", self.name, *command, fails=fails)

    def stop(self) -> int:
        run("podman", "stop", "--time=30", self.name)
        return self.process.wait(patience())


@contextmanager
def container(folder: Path, image: str, volume: str) -> Iterator[Container]:
    serving = Container(folder, image, volume)
    try:
        yield serving
    finally:
        if serving.process.poll() is None:
            run("podman", "kill", serving.name)
            serving.process.wait(patience())


def test_the_server_is_healthy_and_writes_only_where_it_has_to(image: str, volume: str, tmp_path: Path) -> None:
    with container(tmp_path, image, volume) as server:
        run("podman", "healthcheck", "run", server.name)
        assert server.get("/healthz")[0] == 200
        assert server.get("/agents/lobby/main")[0] == 401
        assert server.get("/agents/lobby/main", **{"x-user": "ann"})[0] == 200

        assert server.run("id", "-u").strip() == "10001"
        assert "SAPWOOD_DURABILITY=disk" in server.run("env")
        for place in ("/srv/app/app.py", "/usr/local/bin/sapwood", "/etc/passwd"):
            server.run("test", "-w", place, fails=True)
        assert ".env" not in server.run("ls", "-a", "/srv/app")


def test_sigterm_ends_the_server_and_the_next_container_has_its_data(image: str, volume: str, tmp_path: Path) -> None:
    with container(tmp_path, image, volume) as server:
        assert server.get("/agents/lobby/main", **{"x-user": "ann"})[0] == 200
        assert json.loads(server.run("sapwood", "call", COUNTER, "add", "10")) == 10
        server.run("sapwood", "backup", "/backups", "--keep", "14")
        assert server.stop() in ENDED_BY_SIGTERM
        assert any("sapwood has stopped" in line for line in server.said)

    with container(tmp_path, image, volume) as server:
        assert json.loads(server.run("sapwood", "call", COUNTER, "add", "1")) == 11
        (backup,) = server.run("ls", "/backups").split()
        server.run("sapwood", "verify", f"/backups/{backup}")


def test_an_app_without_authenticate_is_not_served(image: str) -> None:
    program = "sed -i 's/, authenticate.*/)/' app.py && exec sapwood serve app:app"
    command = ("podman", "run", "--rm", "--user=0", "--network=none", "--health-interval=disable", image)

    assert "Expected an app with authenticate" in run(*command, "sh", "-c", program, fails=True)
