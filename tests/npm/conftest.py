"""The npm clients installed, sapwood and the original running, and what the clients saw of each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm.running import HERE, Original, Sapwood, bundle, drive, workspace
from tests.packages import install
from tests.servers import Server

SCRIPTS = ("drive.mjs", "react.mjs")


def pytest_itemcollected(item: pytest.Item) -> None:
    if "home" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.needs("npm"))


@pytest.fixture(scope="session")
def home() -> Path:
    """The folder the packages are installed in."""
    return install(HERE)


@pytest.fixture(scope="session")
def work(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with our scripts and the installed packages."""
    return workspace(home, tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="session")
def sapwood(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Sapwood(work, tmp_path_factory.mktemp("ours") / "data")
    yield server
    server.end(signal.SIGTERM)


@pytest.fixture(scope="session")
def ours(sapwood: Server, home: Path, work: Path) -> dict[str, Any]:
    """What the clients and sapwood said to each other, scenario by scenario."""
    return transcript(sapwood, home, work)


@pytest.fixture(scope="session")
def theirs(home: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the clients and the original said to each other, scenario by scenario."""
    bundle(home, work)
    server = Original(work, tmp_path_factory.mktemp("theirs") / "data")
    try:
        return transcript(server, home, work)
    finally:
        server.end(signal.SIGKILL)


def transcript(server: Server, home: Path, work: Path) -> dict[str, Any]:
    return {name: scenario for script in SCRIPTS for name, scenario in drive(script, server, home, work).items()}
