"""Servers that tests share."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cluster.servers import S3, Nats


@pytest.fixture(scope="session")
def one_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    """One NATS server."""
    servers = Nats(Path(tmp_path_factory.mktemp("nats")), 1).start().wait()
    yield servers
    servers.remove()


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    """Three NATS servers, for the tests of one file."""
    servers = Nats(tmp_path_factory.mktemp("nats")).start().wait()
    yield servers
    servers.remove()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3, None, None]:
    """A bucket, for the tests of one file."""
    server = S3(tmp_path_factory.mktemp("s3")).start()
    yield server
    server.stop()


UNCLOSED = r"ignore:Exception ignored in. <(socket.socket|function (_SelectorTransport|StreamWriter).__del__)"
"""The client of NATS does not close connections that no server greeted in time. Any later test collects them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(f"{UNCLOSED}:pytest.PytestUnraisableExceptionWarning"))
