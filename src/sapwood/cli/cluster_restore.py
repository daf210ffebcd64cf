"""`cluster backup` and `cluster restore`: they read the log and the archive of a cluster, without a node."""

from __future__ import annotations

import asyncio
import platform
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.app import CONTENT_CHECKS
from sapwood.capabilities.file_copies import TreeFileCopies
from sapwood.cli.quantities import counted
from sapwood.cli.zoned_time import with_zone
from sapwood.clock import SystemClock
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.log.archive_files import NAMED_OBJECTS
from sapwood.kernel.log.restore import TreeContent
from sapwood.kernel.node.backup_notes import note_archived_backup
from sapwood.kernel.node.stored_copies import back_up_stored, check_stored, put_into, until_finished
from sapwood.kernel.node.tree_check import record_left_out
from sapwood.kernel.node.tree_report import DamagedTree, TreeReport
from sapwood.kernel.ports.file_copies import OfFolder
from sapwood.kernel.ports.log import Archive
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.copies.archive_identity import looking_at, setup_of, url_of
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.ops.recovery import (
    RecoveryReport,
    check_no_nodes,
    every_tree_at,
    restore_everything,
    tree_at,
)


def moment(text: str | None) -> float | None:
    """Parse a time with a time zone; `None` means now."""
    if text is None:
        return None
    at = with_zone(text)
    if at.timestamp() > time.time():
        raise UsageError("--at must not be in the future.")
    return at.timestamp()


async def backup(
    nats: str, cluster: str, archive: Archive, folder: Path, root: Address | None, at: float | None
) -> TreeReport:
    """Copy one tree, or all, as of now or of a given time. Damaged trees are named, and not copied."""
    from sapwood.kernel.log.reader import ClusterReader
    from sapwood.runtimes.cluster.copies.log_shipper import Shipper
    from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
    from sapwood.runtimes.cluster.nats.nats_log import NatsLog

    async with looking_at(nats, cluster, archive, "sapwood cluster backup") as (connection, names):
        await note_archived_backup(
            archive, await asyncio.to_thread(folder.resolve), SystemClock().now(), platform.node()
        )
        if at is None:
            log = NatsLog(connection, names)
            try:
                replicas = NatsReplicas(connection, names, archive)
                trees = ClusterReader(log, archive, replicas)
                return await back_up_stored(trees, folder, root, CONTENT_CHECKS, _fetching(archive))
            finally:
                log.close()
        for stream in range(names.layout.streams * names.layout.cells):
            await Shipper(connection, names, stream, archive).ship()  # so that the archive has all up to now
        return await _back_up_at(names, archive, folder, root, at)


def _fetching(archive: Archive) -> OfFolder:
    """Return what adds the files of a tree to its copy."""
    return partial(TreeFileCopies().fetch, archive=archive)


async def check_files(archive: Archive, state: TreeContent) -> list[str]:
    """Return what is missing or damaged of the files of a tree, in sentences."""
    if not any(NAMED_OBJECTS in content for content in state.files.values()):
        return []
    verify = partial(TreeFileCopies().verify, archive=archive)
    with tempfile.TemporaryDirectory(prefix="sapwood-") as folder:
        return await check_stored(Path(folder), Address.parse(state.tail.root), state, (), verify)


async def _back_up_at(names: Names, archive: Archive, folder: Path, root: Address | None, at: float) -> TreeReport:
    report = TreeReport()
    lost: dict[str, str] = {}
    if root is not None:
        state = await tree_at(archive, names, root, at, lost)
        if state is None:
            raise NotFound(
                f"The archive has no {root} at that time: it did not exist, or the time is beyond the "
                "retention of `history`.",
                path=root.segments,
            )
        report.note(str(root), await put_into(folder, root, state, CONTENT_CHECKS, _fetching(archive)))
        report.damaged += [DamagedTree(key, [why]) for key, why in lost.items()]
        return report
    with until_finished(folder) as left:
        if left is not None:
            await asyncio.to_thread(shutil.rmtree, left)
        trees: AsyncIterator[TreeContent] = every_tree_at(archive, names, at, lost)
        async for state in trees:
            one = Address.parse(state.tail.root)
            report.note(str(one), await put_into(folder, one, state, CONTENT_CHECKS, _fetching(archive)))
        report.damaged += [DamagedTree(tree, [why]) for tree, why in lost.items()]
        record_left_out(folder, report)
    return report


async def restore(nats: str, cluster: str, archive: Archive, at: float | None) -> RecoveryReport:
    """Rebuild a cluster whose log is empty from its archive."""
    setup = await setup_of(archive)
    if setup is None:
        raise UsageError(f"The archive {url_of(archive)} is empty: no cluster has used it. Check --archive.")
    if setup.cluster != cluster:
        raise UsageError(
            f"The archive {url_of(archive)} belongs to the cluster {setup.cluster!r}, and two clusters must not "
            f"share one. Restore it under that name: --cluster {setup.cluster}. To try it, use other NATS servers "
            "and a copy of the archive."
        )
    connection: Any = await connect(nats, "sapwood cluster restore", in_hurry=True)
    try:
        await check_no_nodes(connection, Names(cluster, setup.layout))  # before there is a log that they could write to
        names = await found(connection, cluster, setup.layout)
        if names.layout != setup.layout:
            raise UsageError(
                f"The cluster {cluster!r} has {names.layout.streams} streams, but its archive was written with "
                f"{setup.layout.streams}. The number cannot change. Delete the streams of this cluster first."
            )
        return await restore_everything(connection, names, archive, at)
    finally:
        await connection.close()


def told(result: RecoveryReport, at: float | None = None) -> Iterator[str]:
    """Yield the result of a restore as lines."""
    yield (
        f"Restored {counted(result.trees, 'trees')} with {counted(result.messages, 'messages')} to the log, "
        f"{counted(result.parked, 'parked trees')} in the archive, and {counted(result.alarms, 'alarms')}."
    )
    for stream, newest in sorted(result.newest.items()):
        yield f"Stream {stream} is restored up to {_when(newest)}."
    if at is None:
        yield "Later writes did not reach the archive and are lost: at most about the last 10 seconds."
    else:
        yield f"Writes after {_when(at)} are left out. `sapwood cluster backup --at …` can still copy them."
    for tree, why in result.lost.items():
        yield f"{tree}: {why}"


def _when(at: float) -> str:
    return (
        datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else "nothing"
    )
