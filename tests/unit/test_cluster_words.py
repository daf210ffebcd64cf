"""What a newcomer to a cluster is told when something is not right."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from sapwood.cli.cluster import cluster
from sapwood.errors import UsageError
from sapwood.runtimes.cluster.leases import NodeLease
from sapwood.runtimes.cluster.membership import Membership
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


class Renewing:
    """The leases of a cluster, in memory."""

    def __init__(self, *leases: NodeLease) -> None:
        self.stored = {lease.node: lease for lease in leases}

    async def renew(self, lease: NodeLease, after: int) -> int:
        self.stored[lease.node] = lease
        return after + 1

    async def leases(self) -> dict[str, NodeLease]:
        return dict(self.stored)


async def test_a_node_does_not_tell_of_its_own_end_nor_of_who_left_before_it_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    ground: Any = Renewing(NodeLease("old", "a", 9, state="left"), NodeLease("other", "b", 3))
    member = Membership(
        ground,
        NodeLease("own", "c", 0),
        lease=12.0,
        renewal=3.0,
        margin=1.5,
        now=lambda: 100.0,
        tell=dict,
        changed=lambda _: None,
        displaced=lambda: None,
    )
    renew = getattr(member, "_renew")  # noqa: B009
    await renew()
    assert caplog.messages == []
    ground.stored["other"] = NodeLease("other", "b", 4, state="left")
    await renew()
    assert caplog.messages == ["Gone: other"]
    member.state = "left"
    await renew()
    assert caplog.messages == ["Gone: other"]
