"""What a newcomer to a cluster is told when something is not right."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sapwood.cli.cluster import cluster, shown
from sapwood.errors import UsageError
from sapwood.runtimes.cluster.base.cluster_status import Copy, NodeStatus, Seen, StreamStatus
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.base.leases import NodeLease
from sapwood.runtimes.cluster.ownership.membership import Membership
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
        f"A node of a cluster needs {name}. Install it with: pip install 'sapwood[cluster]'."
        for name in ("obstore", "obstore.exceptions")
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


def said(seen: Seen) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as text:
        console.print(shown(seen))
    return text.get()


def test_the_status_marks_who_is_silent_and_says_how_much_room_is_taken_and_that_copies_are_equal() -> None:
    copies = [Copy(f"nats-{n}", n == 0, True, False, 0, messages=7, first=1, last=7) for n in range(3)]
    stream = StreamStatus("s", 7, 2048, 1, 7, copies, archived=4, unarchived=3, room=1 << 20)
    nodes = [
        NodeStatus("anna", 1.0, True, False, 2048, "1"),
        NodeStatus("berta", 9.0, True, False, 2048, "1"),
        NodeStatus("carla", 13.0, True, False, 0, "1"),
    ]
    seen = Seen("sapwood", Layout(), nodes, 0, 0, [stream], [], [])

    text = said(seen)

    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "no renewal" not in lines["anna"]
    assert "no renewal for 9 s; lease ends in 3 s" in lines["berta"]
    assert "no renewal for 13 s; lease is over" in lines["carla"]
    assert "2.0 KiB of 1.0 MiB" in lines["s"]
    assert "3 messages" in lines["s"]
    assert "The replicas of all streams were compared: they are equal." in text

    other = msgspec.structs.replace(copies[2], last=6, messages=6)
    for last in (other, msgspec.structs.replace(other, messages=None)):
        changed = msgspec.structs.replace(stream, copies=[*copies[:2], last])
        assert "equal" not in said(msgspec.structs.replace(seen, streams=[changed]))
