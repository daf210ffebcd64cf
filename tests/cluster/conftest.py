"""Servers that tests share."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cluster.servers import Nats


@pytest.fixture(scope="session")
def one_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    """One NATS server."""
    servers = Nats(Path(tmp_path_factory.mktemp("nats")), 1).start().wait()
    yield servers
    servers.remove()
