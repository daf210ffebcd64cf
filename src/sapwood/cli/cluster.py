"""`cluster`: commands about a whole cluster, which ask NATS and the archive and need no node."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App, Parameter
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sapwood.cli.loading import EXTRA_OF
from sapwood.cli.words import counted, size
from sapwood.errors import UsageError
from sapwood.runtimes.cluster.looking import Copy, Seen, Stream

cluster = App(name="cluster", help="Look at a whole cluster, check what it stores, or try one on this machine.")

Nats = Annotated[str, Parameter(env_var="SAPWOOD_NATS", help="The NATS servers, with commas between them.")]
Archive = Annotated[str | None, Parameter(env_var="SAPWOOD_ARCHIVE", help="The archive, such as s3://bucket/prefix.")]
Name = Annotated[str, Parameter(env_var="SAPWOOD_CLUSTER", help="The name of the cluster.")]
Monitor = Annotated[
    str | None,
    Parameter(env_var="SAPWOOD_MONITOR", help="Where NATS servers tell about themselves, with commas between them."),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for programs.")]

T = TypeVar("T")


@cluster.command
def status(
    *,
    nats: Nats,
    archive: Archive = None,
    cluster: Name = "sapwood",
    monitor: Monitor = None,
    as_json: AsJson = False,
) -> int:
    """Show the nodes, who owns the shards, how well the log is kept, and how far the archive is.

    Exits with 1 if something is not as it should be. Nothing is changed.
    """

    async def look() -> Seen:
        from sapwood.runtimes.cluster import looking
        from sapwood.runtimes.cluster.connecting import connect

        connection = await connect(nats, "sapwood cluster status")
        try:
            return await looking.look(connection, cluster, archive=_archive(archive), monitors=_parts(monitor))
        finally:
            await connection.close()

    seen = _ask(look())
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(seen), indent=2).decode())
    else:
        Console(highlight=False).print(shown(seen))
    return 1 if seen.troubles else 0


@cluster.command
def dev(
    target: Annotated[str | None, Parameter(help="As for `serve`; app.py or main.py here, if not given.")] = None,
    /,
    *,
    nodes: Annotated[int, Parameter(help="How many nodes to start.")] = 3,
    port: Annotated[int, Parameter(help="The port of the first node; the others have those after it.")] = 8000,
    folder: Annotated[Path, Parameter(help="Where everything is kept.")] = Path("sapwood-cell"),
    archive: Annotated[str | None, Parameter(help="The archive; a folder in the folder, if not given.")] = None,
) -> int:
    """Start a whole cluster on this machine, to try it: three NATS servers, an archive and nodes, until Ctrl-C."""
    from sapwood.cli.cell import Cell
    from sapwood.cli.loading import usual_target

    return Cell(target or usual_target(Path.cwd()), folder, nodes=nodes, port=port, archive=archive).run()


def shown(seen: Seen) -> RenderableType:
    """Return a cluster as tables, and what is wrong with it in sentences."""
    alive = sum(1 for node in seen.nodes if node.is_alive)
    parts: list[RenderableType] = [Text(f"{seen.cluster}: {counted(alive, 'nodes')}, {_ownership(seen)}", "bold"), ""]
    nodes = _table("node", "last heard of", "shards")
    for node in seen.nodes:
        nodes.add_row(node.name, f"{node.renewed:.0f} s ago", str(node.shards), style="" if node.is_alive else "red")
    streams = _table("stream", "messages", "size", "last", "not in the archive", "copies")
    for stream in seen.streams:
        waits = "" if stream.unarchived is None else str(stream.unarchived)
        row = [stream.name, str(stream.messages), size(stream.bytes), str(stream.last), waits, _copies(stream)]
        streams.add_row(*row)
    parts += [nodes, "", streams]
    if seen.troubles:
        parts += ["", *(Text(trouble, "bold red") for trouble in seen.troubles)]
    return Group(*parts)


def _ownership(seen: Seen) -> str:
    if seen.unowned or seen.orphaned:
        return f"{counted(seen.unowned, 'shards')} without an owner, {seen.orphaned} whose owner is gone"
    return "every shard has an owner"


def _copies(stream: Stream) -> str:
    return ", ".join(f"{copy.server}{_state(copy)}" for copy in sorted(stream.copies, key=lambda copy: copy.server))


def _state(copy: Copy) -> str:
    if copy.is_offline:
        return " (offline)"
    if not copy.is_current:
        return f" ({copy.behind} behind)"
    return " (leads)" if copy.is_leader else ""


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        is_text = column in ("node", "stream", "copies")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "copies")
    return table


def _archive(url: str | None) -> Any:
    if url is None:
        return None
    from sapwood.runtimes.cluster.s3_archive import ObjectArchive

    return ObjectArchive(url)


def _parts(texts: str | None) -> list[str]:
    return [part.strip() for part in (texts or "").split(",") if part.strip()]


def _ask(question: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(question)
    except ModuleNotFoundError as error:
        if EXTRA_OF.get((error.name or "").partition(".")[0]) != "cluster":
            raise
        raise UsageError(f"A cluster needs {error.name}: pip install 'sapwood[cluster]'.") from None
