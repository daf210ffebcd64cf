"""One Temporal server for all tests of this folder."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.temporal.cluster import Temporal


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Generator[Temporal, None, None]:
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = Temporal(folder, folder / "data")
    asyncio.run(server.client())  # it may listen before it is ready
    yield server
    server.end(signal.SIGKILL)
