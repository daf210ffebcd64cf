"""`cluster`: commands about a whole cluster. They query NATS and the archive, and need no node."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from cyclopts import App, CycloptsError, CycloptsPanel, MissingArgumentError, Parameter
from rich.console import Console, Group, RenderableType
from rich.table import Table

from sapwood.cli.app_loader import EXTRA_OF
from sapwood.cli.damage import copied
from sapwood.cli.parameters import AsJson
from sapwood.cli.quantities import counted, size
from sapwood.cli.terminal import Text, say
from sapwood.errors import UsageError
from sapwood.kernel.node.backup import root_of
from sapwood.kernel.node.tree_report import TreeReport
from sapwood.runtimes.cluster.base.cluster_status import Copy, NodeStatus, Seen, StreamStatus, differing
from sapwood.runtimes.cluster.base.leases import LEASE, RENEWAL
from sapwood.runtimes.cluster.ops.recovery import RecoveryReport
from sapwood.runtimes.cluster.ops.tree_list import ListedTree
from sapwood.runtimes.cluster.ops.verification import SERVER, VerificationReport


def _missing(error: CycloptsError) -> RenderableType:
    """Return what is wrong with a command; what it lacks may lie in a file that only has to be read."""
    variables = [*(error.argument.parameter.env_var or ())] if error.argument is not None else []
    if not isinstance(error, MissingArgumentError) or not variables:
        return CycloptsPanel(error)
    return CycloptsPanel(f"{error} Or set {variables[0]}; for `sapwood cluster dev`: . sapwood-cell/environment")


cluster = App(
    name="cluster",
    help="Inspect a cluster, verify what it stores, or try one on this machine.",
    error_formatter=_missing,
)

Nats = Annotated[str, Parameter(env_var="SAPWOOD_NATS", help="The NATS servers, separated by commas.")]
Archive = Annotated[str | None, Parameter(env_var="SAPWOOD_ARCHIVE", help="The archive, such as s3://bucket/prefix.")]
At = Annotated[str | None, Parameter(help="A time with a time zone, such as 2026-11-16T05:00:00Z.")]
TheArchive = Annotated[str, Parameter(env_var="SAPWOOD_ARCHIVE", help="The archive, such as s3://bucket/prefix.")]
Name = Annotated[str, Parameter(env_var="SAPWOOD_CLUSTER", help="The name of the cluster.")]
Monitor = Annotated[
    str | None,
    Parameter(env_var="SAPWOOD_MONITOR", help="The monitoring URLs of the NATS servers, separated by commas."),
]

T = TypeVar("T")

LETTING_GO = 0.1
"""Seconds to wait before exit: the threads of obstore abort a process that exits while they still hold a result."""


@cluster.command
def status(
    *,
    nats: Nats,
    archive: Archive = None,
    cluster: Name = "sapwood",
    monitor: Monitor = None,
    as_json: AsJson = False,
) -> int:
    """Show the nodes, the owners of the shards, the state of the log, and the lag of the archive.

    Exits with 1 if there is a problem. Changes nothing.
    """

    async def look() -> Seen:
        from sapwood.runtimes.cluster.base import cluster_status
        from sapwood.runtimes.cluster.copies.archive_identity import compare_archive
        from sapwood.runtimes.cluster.nats.nats_connection import connect

        connection = await connect(nats, "sapwood cluster status", in_hurry=True)
        its_archive, troubles = _archive(archive), list[str]()
        try:
            names = await cluster_status.names_of(connection, cluster)
            if its_archive is not None:
                try:
                    await compare_archive(connection, names, its_archive)
                except UsageError as error:
                    its_archive, troubles = None, [str(error)]
            seen = await cluster_status.look(connection, cluster, archive=its_archive, monitors=_parts(monitor))
            return msgspec.structs.replace(seen, troubles=troubles + seen.troubles)
        finally:
            await connection.close()

    seen = _ask(look())
    if as_json:
        say(msgspec.json.format(msgspec.json.encode(seen), indent=2).decode())
    else:
        Console(highlight=False).print(shown(seen))
    return 1 if seen.troubles else 0


@cluster.command
def trees(
    *,
    nats: Nats,
    archive: TheArchive,
    cluster: Name = "sapwood",
    limit: Annotated[int, Parameter(help="Maximum number of trees to show.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """List all trees of a cluster, open or not: those in the log, and those parked in the archive."""

    async def find() -> tuple[list[ListedTree], bool]:
        from sapwood.runtimes.cluster.copies.archive_identity import looking_at
        from sapwood.runtimes.cluster.ops.tree_list import every_tree

        its_archive, found = _archive(archive), list[ListedTree]()
        async with looking_at(nats, cluster, its_archive, "sapwood cluster trees") as (connection, names):
            async for one in every_tree(connection, names, its_archive):
                if len(found) == limit:
                    return found, True
                found.append(one)
            return found, False

    found, has_more = _ask(find())
    found.sort(key=lambda one: one.root)
    if as_json:
        say(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    table = _table("tree", "node", "in the log")
    for one in found:
        table.add_row(Text(one.root), Text(one.node), counted(one.messages, "messages") if one.messages else "parked")
    Console(highlight=False).print(table)
    more = f", and more: --limit {10 * limit}" if has_more else ""
    say(f"{counted(len(found), 'trees')}{more}")


@cluster.command
def verify(
    *,
    nats: Nats,
    archive: TheArchive,
    cluster: Name = "sapwood",
    repair: Annotated[
        bool, Parameter(negative="", help="Repair damaged data from intact replicas and the archive.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Verify all stored data: check every chain, and compare the replicas of the log with the archive.

    Exits with 1 if data is damaged or missing. Nodes may keep running.
    """
    console = Console(stderr=True)

    async def check() -> VerificationReport:
        from sapwood.cli.cluster_restore import check_files
        from sapwood.runtimes.cluster.copies.archive_identity import looking_at
        from sapwood.runtimes.cluster.ops import verification

        its_archive = _archive(archive)
        async with looking_at(nats, cluster, its_archive, "sapwood cluster verify") as (connection, names):
            with console.status("Looking") as said:
                return await verification.verify(
                    connection,
                    names,
                    its_archive,
                    repair=repair,
                    progress=lambda so_far: said.update(f"Checked {counted(so_far.trees + so_far.parked, 'trees')}"),
                    check_files=partial(check_files, its_archive),
                )

    found = _ask(check())
    if as_json:
        say(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for line in told(found):
            Console(soft_wrap=True, highlight=False).print(line)
    return 0 if found.is_whole and not found.offline else 1


def told(found: VerificationReport) -> Iterator[Text]:
    """Yield the result of a verification as lines."""
    yield Text(
        f"Checked {counted(found.trees, 'trees')} with {counted(found.messages, 'messages')} in the log, and "
        f"{counted(found.parked, 'parked trees')} in the archive."
    )
    for one in found.damaged:
        who = one.root or one.tree
        cure = (
            "The next node that opens the tree repairs it." if one.can_be_mended else "No replica has the missing data."
        )
        yield Text(f"{who}: {one.what} {cure}" if who else one.what, "red")
    for copy, trees in found.lacking.items():
        yield Text(f"{counted(trees, 'trees')} with data missing on {copy}.", "red")
    if SERVER in found.lacking:
        yield Text("`sapwood cluster status --monitor …` shows which server differs from the others.")
    for stream in found.mistrusted:
        yield Text(f"Stream {stream}: elected a new leader.", "yellow")
    for root in found.mended:
        yield Text(f"{root}: stored again.", "yellow")
    for stream in found.refilled:
        yield Text(f"Stream {stream}: replicas copied again from an intact one.", "yellow")
    for why in found.unrepaired:
        yield Text(f"Not repaired: {why}", "red")
    for server in found.offline:
        yield Text(f"Server {server} is offline: its data was not checked.", "red")
    if found.is_whole:
        yield Text(f"{'All other' if found.offline else 'All'} data is intact.", "green")


@cluster.command
def backup(
    folder: Annotated[Path, Parameter(help="The destination: a new folder.")],
    address: Annotated[str | None, Parameter(help="Copy only the tree of this root.")] = None,
    /,
    *,
    nats: Nats,
    archive: TheArchive,
    cluster: Name = "sapwood",
    at: At = None,
) -> int:
    """Copy all data of a cluster, or one tree, as of now or of a given time. Restore it with `sapwood restore`.

    Works whether or not nodes are running. Exits with 1 if a tree is damaged: it is named and not copied.
    """

    async def copy() -> TreeReport:
        from sapwood.cli.cluster_restore import backup, moment

        return await backup(nats, cluster, _archive(archive), folder, root_of(address), moment(at))

    return copied(_ask(copy()), folder, None)


@cluster.command
def restore(*, nats: Nats, archive: TheArchive, cluster: Name = "sapwood", at: At = None) -> int:
    """Rebuild a cluster from its archive after NATS has lost all data.

    The streams must be empty or missing, and no node may be running. Exits with 1 if a tree could not be restored
    completely.
    """

    async def begin() -> tuple[RecoveryReport, Iterator[str]]:
        from sapwood.cli.cluster_restore import moment, restore, told

        until = moment(at)
        result = await restore(nats, cluster, _archive(archive), until)
        return result, told(result, until)

    result, lines = _ask(begin())
    for line in lines:
        say(line)
    return 1 if result.lost else 0


@cluster.command
def dev(
    target: Annotated[str | None, Parameter(help="As for `serve`. Default: app.py or main.py in this folder.")] = None,
    /,
    *,
    nodes: Annotated[int, Parameter(help="Number of nodes to start.")] = 3,
    port: Annotated[int, Parameter(help="The port of the first node; the other nodes use the ports after it.")] = 8000,
    folder: Annotated[Path, Parameter(help="The folder for all data.")] = Path("sapwood-cell"),
    archive: Annotated[str | None, Parameter(help="The archive. Default: a folder inside --folder.")] = None,
) -> int:
    """Start a complete cluster on this machine for trials: three NATS servers, an archive and nodes, until Ctrl-C."""
    from sapwood.cli.app_loader import usual_target
    from sapwood.cli.dev_cluster import Cell

    return Cell(target or usual_target(Path.cwd()), folder, nodes=nodes, port=port, archive=archive).run()


def shown(seen: Seen) -> RenderableType:
    """Return a cluster as tables, followed by its problems as sentences."""
    alive = sum(1 for node in seen.nodes if node.is_alive)
    parts: list[RenderableType] = [Text(f"{seen.cluster}: {counted(alive, 'nodes')}, {_ownership(seen)}", "bold"), ""]
    nodes = _table("node", "last renewal", "shards", "not well")
    for node in seen.nodes:
        style = "red" if not node.is_alive else "yellow" if _silence(node) else ""
        nodes.add_row(Text(node.name), f"{node.renewed:.0f} s ago", str(node.shards), _silence(node), style=style)
    streams = _table("stream", "messages", "size", "not in the archive", "leads", "not well")
    for stream in seen.streams:
        waits = "" if stream.unarchived is None else counted(stream.unarchived, "messages")
        leads = next((copy.server for copy in stream.copies if copy.is_leader), "")
        taken = size(stream.bytes) if stream.room is None else f"{size(stream.bytes)} of {size(stream.room)}"
        streams.add_row(Text(stream.name), str(stream.messages), taken, waits, Text(leads), Text(_not_well(stream)))
    parts += [nodes, "", streams]
    if _are_equal(seen):
        parts += ["", Text("The replicas of all streams were compared: they are equal.")]
    if seen.troubles:
        parts += ["", *(Text(trouble, "bold red") for trouble in seen.troubles)]
    return Group(*parts)


def _silence(node: NodeStatus) -> str:
    """Return what there is to say of a node that did not renew its lease when it should have, twice."""
    if not node.is_alive or node.renewed <= 2 * RENEWAL:
        return ""
    left = LEASE - node.renewed
    ends = f"ends in {left:.0f} s" if left >= 0.5 else "is over"
    return f"no renewal for {node.renewed:.0f} s; lease {ends}"


def _are_equal(seen: Seen) -> bool:
    """Return whether every copy is known, and holds what the others do."""
    known = all(stream.copies and all(copy.messages is not None for copy in stream.copies) for stream in seen.streams)
    return known and bool(seen.streams) and not any(differing(stream) for stream in seen.streams)


def _ownership(seen: Seen) -> str:
    if seen.unowned or seen.orphaned:
        return f"{counted(seen.unowned, 'shards')} without an owner, {seen.orphaned} whose owner is gone"
    return "every shard has an owner"


def _not_well(stream: StreamStatus) -> str:
    return ", ".join(f"{copy.server} {_state(copy)}" for copy in stream.copies if _state(copy))


def _state(copy: Copy) -> str:
    if copy.is_offline:
        return "is offline"
    return "" if copy.is_current else f"is {copy.behind} behind"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        is_text = column in ("node", "stream", "leads", "not well", "tree")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "not well")
    return table


def _archive(url: str | None) -> Any:
    if url is None:
        return None
    from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive

    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise UsageError(f"The archive folder {url} does not exist on this machine. Check --archive.")
    return ObjectArchive(url)


def _parts(texts: str | None) -> list[str]:
    return [part.strip() for part in (texts or "").split(",") if part.strip()]


def _ask(question: Coroutine[Any, Any, T]) -> T:
    async def answered() -> T:
        try:
            return await question
        finally:
            if "obstore" in sys.modules:
                await asyncio.sleep(LETTING_GO)

    try:
        return asyncio.run(answered())
    except ModuleNotFoundError as error:
        if EXTRA_OF.get((error.name or "").partition(".")[0]) != "cluster":
            raise
        raise UsageError(
            f"Cluster commands need {error.name}. Install it with: pip install 'sapwood[cluster]'."
        ) from None
