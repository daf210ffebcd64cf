"""What a newcomer to a cluster is told when something is not right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sapwood.cli.cluster import cluster
from sapwood.errors import UsageError
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings


async def test_a_node_without_the_packages_of_a_cluster_says_which_extra_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("obstore", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    settings = Settings(data=str(tmp_path), durability="replicated", nats="nats://127.0.0.1:1", archive="memory:///")
    with pytest.raises(UsageError) as told:
        await ClusterRuntime(settings).start(None)
    assert str(told.value) in [
        f"A cluster needs {name}: pip install 'sapwood[cluster]'." for name in ("obstore", "obstore.exceptions")
    ]


def test_a_command_that_is_not_told_of_the_servers_says_where_they_may_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SAPWOOD_NATS", raising=False)
    with pytest.raises(SystemExit):
        cluster(["status"])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "Or set SAPWOOD_NATS; for `sapwood cluster dev`: . sapwood-cell/environment" in said
