"""Takes a tree from another server: its files are written, checked and sealed, and then become a tree.

The process that runs the address does it. Until the other server says `commit`, no agent of the tree runs here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidArguments, MovedAway, StoredDataError, Unavailable, UsageError
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.forks.tree_file import NAME
from sapwood.kernel.node.arrivals import Arrival, Arrivals, digest_of
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.fork import finish_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.tree_placement import replace_tree
from sapwood.kernel.node.tree_transfer import misfits_in
from sapwood.kernel.ports.destination import FileState, FileStates, Part
from sapwood.kernel.trees.tree_files import LABEL
from sapwood.randomness import new_id
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files, make_private_folder, open_private
from sapwood.storage.integrity import damage_in, foreign_in

log = logging.getLogger(__name__)

MEMBER = re.compile(rf"{NAME.pattern}|(root|[0-9a-f]{{24}}-[0-9]+)\.db-wal")
"""The names of files of a tree: none of them leads elsewhere."""
LARGEST_FILE = 1 << 44
"""Bytes of a file at most: a part cannot begin far beyond what any disk has."""
KEY_LENGTH = 32


async def take_offer(node: Node, root: Address) -> tuple[str, str]:
    """Hold an address for a tree of another server; return the id and the key of the move."""
    if node.keeper is not None:
        raise UsageError(f"{root} cannot be moved to a cluster: it does not support moves yet. Import an export of it.")
    if node.unfinished_work().has_driver:
        raise UsageError(f"{root} cannot be moved here: the app has a driver, which knows turns by the address.")
    if root != root.root or root.type not in {kind.type for kind in node.roots}:
        roots = ", ".join(kind.type for kind in node.roots) or "none"
        raise UsageError(f"{root} is not a root of the app at the other server. Its roots: {roots}.")
    arrivals = node.arrivals
    if (id := arrivals.held.get(root)) is not None:
        known = arrivals.get(id)
        if known is not None and known.state == "sealed":
            raise Unavailable(
                f"An earlier move of {root} to this server waits for the word of the other server. If that server is "
                f"lost for good, stop this one and remove the folder {arrivals.folder(id).name!r} in 'arriving'."
            )
        await _discard_open(node, root, id)
    node.erasing.check_tree(root)
    if (forward := node.forwards.stored(root)) is not None and forward.ticket is not None:
        raise Unavailable(f"An earlier move of {root} from the other server is not complete. Try again later.")
    with suppress(MovedAway):  # it comes back
        if (forward := node.loader.moved_to(root)) is not None:
            raise UsageError(f"{root} is a former address of {forward} at the other server.")
    id, key = (new_id(node.random, KEY_LENGTH) for _ in range(2))
    arrivals.held[root] = id
    try:
        await _free(node, root)
        await to_the_end(arrivals.put, Arrival(id, str(root), digest_of(key), "open", node.clock.now()))
    except BaseException:
        await discard(node, root, id)
        raise
    node.loop.call_later(node.timings.arrival_timeout, _expire, node, root, id)
    return id, key


async def _free(node: Node, root: Address) -> None:
    """End the agent of an address that has stored nothing; `UsageError` if it has."""
    tree = await node.loader.load_files(root)
    if tree.root.exists:
        raise UsageError(f"{root} exists already at the other server. Destroy it there first.")
    error = Unavailable(f"{root} is being moved here from another server.")
    async with node.removal.hold(tree, error, "The agent is moved here"):
        node.removal.clear(tree)


def _expire(node: Node, root: Address, id: str) -> None:
    """Free an address whose tree was never sent as a whole."""
    if node.stopped is None:
        node.background.start(_discard_open(node, root, id), is_resumable=True)


async def _discard_open(node: Node, root: Address, id: str) -> None:
    async with node.arrivals.lock:
        arrival = node.arrivals.get(id)
        if arrival is not None and arrival.state == "open":
            log.warning("move ended without its files root=%s move=%s", root, id)
            await _discard(node, root, id)


async def write_parts(arrivals: Arrivals, root: Address, id: str, parts: Sequence[Part]) -> None:
    """Write parts of the files of a tree."""
    if arrivals.existing(id, root).state != "open":
        raise UsageError(f"The move of {root} is sealed: its files do not change any more.")
    folder = tree_folder(arrivals.folder(id), root)
    with refusals():
        await to_the_end(_write, folder, parts)


def _write(folder: Path, parts: Sequence[Part]) -> None:
    if not folder.parent.parent.exists():
        raise Unavailable("The move was discarded.")
    make_private_folder(folder)
    for name, start, content in parts:
        if not MEMBER.fullmatch(name) or not 0 <= start <= LARGEST_FILE:
            raise InvalidArguments(f"{name!r} at {start} is no part of a file of a tree.")
        path = folder / name
        make_private_folder(path.parent)
        with open_private(path, "ab"):
            pass
        with path.open("r+b") as file:
            file.seek(start)
            file.write(content)


async def check(node: Node, root: Address, id: str, files: FileStates) -> None:
    """Raise what is wrong with the files of a tree, as they are now: databases are read, and compared with the app."""
    node.arrivals.existing(id, root)
    data = node.arrivals.folder(id)
    with refusals():
        await to_the_end(_fit, tree_folder(data, root), root, files)
        await to_the_end(_check, node, data, root)
        await to_the_end(_sync, tree_folder(data, root))  # so that only what changes is left for the seal


def _sync(folder: Path) -> None:
    files = Files()
    for path in _files_below(folder):
        files.sync_file(path)


def _check(node: Node, data: Path, root: Address) -> None:
    folder = tree_folder(data, root)
    if problems := [*foreign_in(folder), *damage_in(folder, node.content_checks)]:
        raise StoredDataError(f"{root} did not arrive whole. {' '.join(problems)}")
    if misfits := misfits_in(node, data):
        raise UsageError(f"{root} does not fit the classes of the app at the other server. {misfits}")


async def seal(node: Node, root: Address, id: str, files: FileStates) -> None:
    """Compare the files with their digests, and make them durable. From now on, the other server decides."""
    async with node.arrivals.lock:
        await _seal(node, root, id, files)


async def _seal(node: Node, root: Address, id: str, files: FileStates) -> None:
    arrival = node.arrivals.existing(id, root)
    if arrival.state != "open":
        return
    if node.arrivals.held.get(root) != id:
        raise Unavailable(f"The move of {root} has ended.")
    folder = tree_folder(node.arrivals.folder(id), root)
    with refusals():
        await to_the_end(_fit, folder, root, files)
        await to_the_end(finish_folder, folder, is_durable=True)
        await to_the_end(node.arrivals.put, msgspec.structs.replace(arrival, state="sealed"))


def _fit(folder: Path, root: Address, files: FileStates) -> None:
    """Let a folder have these files and no others."""
    for name, state in files.items():
        path = folder / name
        if not MEMBER.fullmatch(name) or not path.is_file() or path.stat().st_size < state.bytes:
            if state.bytes or not MEMBER.fullmatch(name):
                raise StoredDataError(f"{root} did not arrive whole: {name!r} is missing or too short.")
            make_private_folder(path.parent)
            open_private(path, "ab").close()
        os.truncate(path, state.bytes)
        if state.sha256 and FileState.of(path, with_digest=True) != state:
            raise StoredDataError(f"{root} did not arrive whole: {name!r} does not have its digest.")
    for path in list(_files_below(folder)):
        if str(path.relative_to(folder)) not in files:
            path.unlink()
    label = folder / LABEL
    label.unlink(missing_ok=True)
    Files().close(Files().create(label, str(root).encode()))


def _files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


async def commit(node: Node, root: Address, id: str) -> None:
    """Make a tree of the files. Again is safe."""
    async with node.arrivals.lock:
        await _commit(node, root, id)


async def _commit(node: Node, root: Address, id: str) -> None:
    arrivals = node.arrivals
    arrival = arrivals.existing(id, root)
    if arrival.state == "done":
        return
    if arrival.state != "sealed":
        raise UsageError(f"The move of {root} was not sealed.")
    folder = tree_folder(arrivals.folder(id), root)
    node.erasing.check_tree(root)
    if folder.exists():  # otherwise a crash came right after it had become the tree
        await replace_tree(node, root, folder, Unavailable(f"{root} arrives."), is_new=True, arrival=id)
        node.forwards.remove(root)
    elif not tree_folder(node.folder, root).exists():
        raise StoredDataError(f"The files of {root} are lost: neither {folder} nor its place in 'trees' exists.")
    await to_the_end(arrivals.put, msgspec.structs.replace(arrival, state="done", at=node.clock.now()))
    arrivals.held.pop(root, None)
    node.alarms.earlier(root, node.clock.now(), 0)  # whatever it has to do
    node.alarms.look_by(root, node.clock.now())
    log.info("tree arrived root=%s move=%s", root, id)


async def discard(node: Node, root: Address, id: str) -> None:
    """Remove the files of a tree that does not come, or what is known of one that has come. Again is safe."""
    async with node.arrivals.lock:
        await _discard(node, root, id)


async def _discard(node: Node, root: Address, id: str) -> None:
    if (arrival := node.arrivals.get(id)) is not None and arrival.address == root:
        await to_the_end(node.arrivals.remove, [id])
    if node.arrivals.held.get(root) == id:
        del node.arrivals.held[root]
