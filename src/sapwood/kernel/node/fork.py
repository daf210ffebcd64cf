"""Forks of trees: a copy of an agent and all below it, as they are at one moment, becomes a tree of its own.

The node that runs the source makes the copy, while the agents continue. The node that runs the fork puts it in its
place. In a cluster any node makes the copy, from what the log and the archive have.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, get_args

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.forks.fork_files import ForkOrder, make_fork, move_subtree, rename_root
from sapwood.kernel.forks.forked_tree import HeldWork
from sapwood.kernel.history.moments import At
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.backup import copy_tree, fetching, hear
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.past import PastRequest, check_at, request_at, write_own, write_tree_at
from sapwood.kernel.node.stored_copies import half_of, write_elsewhere
from sapwood.kernel.node.tree_placement import place_anywhere, replace_tree
from sapwood.kernel.trees.former_addresses import former_addresses
from sapwood.storage.availability import refusals
from sapwood.storage.copies import Copier
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.files import Files

NodeOrder: TypeAlias = Callable[[Node, bytes], Awaitable[bytes]]
"""What a node does if another one asks it to."""
COPY = "copy an agent for a fork"
PLACE = "put a fork in its place"


class CopyRequest(msgspec.Struct, array_like=True):
    """What another node is asked to copy."""

    source: str
    target: str
    work: WorkRule | None
    """`None`: the copy is to be exported, and no fork yet."""
    at: PastRequest | None = None
    """The moment of the past that is meant. `None` means now."""


class ForkCopy(msgspec.Struct, array_like=True):
    """A copy that waits to be put in its place."""

    folder: str
    agents: int
    at: float
    held: HeldWork


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that was made."""

    address: Address
    """Its root."""
    source: Address
    """The agent that was copied."""
    at: datetime
    """The moment that it shows."""
    agents: int
    """The number of its agents."""
    held: HeldWork
    """How much unfinished work does not continue in it."""
    undo_at: datetime | None = None
    """The moment just before a rewind: to rewind to it undoes the rewind. `None` if this is no rewind."""

    @property
    def name(self) -> str:
        """The name of its root."""
        return self.address.name


class PlaceRequest(msgspec.Struct, array_like=True):
    """A folder that another node is asked to put in its place."""

    target: str
    folder: str
    is_new: bool = True
    """Whether there must not be such a tree yet. Otherwise it is rewound."""


_read_copy_request = msgspec.msgpack.Decoder(CopyRequest).decode
_read_copy = msgspec.msgpack.Decoder(ForkCopy).decode
_read_place_request = msgspec.msgpack.Decoder(PlaceRequest).decode


async def fork(node: Node, source: Address, target: Address, work: WorkRule, at: At | None = None) -> Fork:
    """Make a tree that is a copy of an agent and all below it, as they are now or were at a moment."""
    check_work(work)
    if target == source:
        raise UsageError(f"{target} cannot be a fork of itself. Pass another name.")
    check_target(node, source, target)
    copy, _ = await _placed(node, source, target, work, at, is_new=True)
    return Fork(target, source, datetime.fromtimestamp(copy.at, UTC), copy.agents, copy.held)


async def rewind(node: Node, root: Address, at: At, keep_as: str | None, work: WorkRule) -> Fork:
    """Take a tree back to a moment. `keep_as`: the name of a copy of it as it is now."""
    check_work(work)
    if root != root.root:
        raise UsageError(f"{root} is part of the tree of {root.root}, and trees are rewound as a whole.")
    check_at(node, at)
    names = [] if keep_as is None else [keep_as]
    for name in names:
        check_target(node, root, Address.root_of(root.type, name))

    async def keep() -> None:
        while names:
            await fork(node, root, Address.root_of(root.type, names.pop()), "hold")

    copy, undo_at = await _placed(node, root, root, work, at, is_new=False, before=keep)
    moment, undo = (datetime.fromtimestamp(one, UTC) for one in (copy.at, undo_at))
    return Fork(root, root, moment, copy.agents, copy.held, undo)


async def _placed(
    node: Node,
    source: Address,
    target: Address,
    work: WorkRule,
    at: At | None,
    *,
    is_new: bool,
    before: Callable[[], Awaitable[None]] | None = None,
) -> tuple[ForkCopy, float]:
    """Copy an agent, and put the copy in its place; return it, and the time just before it was there.

    `before` is called when there is a copy.
    """
    made: list[tuple[ForkCopy, float]] = []

    async def make() -> Path:
        copy = await copy_at(node, source, target, work, at)
        if before is not None:
            try:
                await before()
            except BaseException:
                await to_the_end(shutil.rmtree, Path(copy.folder), ignore_errors=True)
                raise
        made.append((copy, node.clock.now()))
        return Path(copy.folder)

    if node.keeper is None:
        await place(node, target, await make(), is_new=is_new)
        return made[-1]

    error = being_made(target, is_new=is_new)
    await place_anywhere(node, target, make, error, is_new=is_new, is_rewind=not is_new)
    return made[-1]


def check_work(work: WorkRule) -> None:
    """Refuse a rule that does not exist."""
    if work not in get_args(WorkRule):
        raise UsageError(f'`work` must be "hold", "drop" or "run", got {work!r}.')


def check_target(node: Node, source: Address, target: Address) -> None:
    """Refuse a fork that could not be a root of this app."""
    if target != target.root:
        raise UsageError(f"A fork is a root, and {target} is not one. Pass the name of a root.")
    kind, colon, name = target.name.partition(":")
    if colon and kind == target.type:
        raise UsageError(f"A name was expected, got the address {target.name!r}. Pass the name {name!r}.")
    if node.roots and not any(target.type in (kind.type, *kind.aliases) for kind in node.roots):
        roots = ", ".join(kind.cls.__name__ for kind in node.roots) or "none"
        raise UsageError(
            f"A copy of {source} is a root, and {target.type} is not a root of this app. Add it to App(agents=[…]). "
            f"Roots: {roots}."
        )


async def copy_at(
    node: Node, source: Address, target: Address, work: WorkRule | None, at: At | None = None
) -> ForkCopy:
    """Copy an agent and all below it, as they are now or were at a moment, to a folder for the tree `target`."""
    order = CopyRequest(str(source), str(target), work)
    if at is not None:
        check_at(node, at)
        order.at = request_at(source.root, at)
    if node.keeper is None:
        if node.far is None or node.owns(source.root):
            return _read_copy(await _copy_own(node, order))
        return await _copied_by_owner(node, source.root, order)
    half, erasures = half_of(tree_folder(node.folder, target), node.files), node.erasing.count
    try:
        if at is not None:
            return await _cut_out(node, half, order, await write_tree_at(node, source.root, at, half), erasures)
        state = await node.keeper.trees.tree(source.root)
        if state is None:
            raise NotFound(f"{source} has no data.", path=source.segments)
        await write_elsewhere(state, source.root, half)
        _check(source, await fetching(node, node.keeper)(half))
        return await _cut_out(node, half, order, node.clock.now(), erasures)
    finally:
        await remove_left(half)


async def _copied_by_owner(node: Node, root: Address, order: CopyRequest) -> ForkCopy:
    """Have the node that runs a tree copy it. If the caller is cancelled, the copy is removed once it is there."""
    assert node.far is not None
    await hear(node, [await node.far.directory.owner(root)])
    asking = asyncio.ensure_future(node.far.ask_owner(root, COPY, pack(order)))

    async def remove() -> None:
        with suppress(SapwoodError):
            await to_the_end(shutil.rmtree, _read_copy(await asking).folder, ignore_errors=True)

    try:
        return _read_copy(await asyncio.shield(asking))
    except asyncio.CancelledError:
        node.background.start(remove())
        raise


async def remove_left(half: Path) -> None:
    """Remove a copy, unless that was done already.

    Then nothing is awaited: a caller that is cancelled here would not learn what was made of the copy.
    """
    if _is_there(half):
        await to_the_end(shutil.rmtree, half, ignore_errors=True)


def _is_there(folder: Path) -> bool:
    return folder.exists()


async def place(node: Node, target: Address, folder: Path, *, is_new: bool = True) -> None:
    """Make a tree of a folder, which is gone then. `UsageError` if it has to be new, and there is such a tree.

    Once the owner was asked, nothing removes the folder here: it may be about to become the tree. What a crash leaves
    of it is removed at the next start.
    """
    order = PlaceRequest(str(target), str(folder), is_new)
    if node.far is None or node.owns(target):
        await _place_own(node, order)
        return
    try:
        await hear(node, [await node.far.directory.owner(target)])
    except BaseException:
        await to_the_end(shutil.rmtree, folder, ignore_errors=True)
        raise
    await node.far.ask_owner(target, PLACE, pack(order))


def being_made(target: Address, *, is_new: bool = True) -> Unavailable:
    """Return the error of calls that a new fork, or a tree that is rewound, ends."""
    return Unavailable(f"{target} is being {'made as a fork' if is_new else 'rewound'}.")


async def _copy_own(node: Node, order: CopyRequest) -> bytes:
    """Copy an agent of this node and all below it."""
    source, target = Address.parse(order.source), Address.parse(order.target)
    half, erasures = half_of(tree_folder(node.folder, target), node.files), node.erasing.count
    try:
        if order.at is not None:
            at = await write_own(node, order.at, half)
            former = former_addresses((await node.loader.load_files(source.root)).root)
            with refusals():
                await to_the_end(rename_root, half, source.root, former, node.clock.now())
            return pack(await _cut_out(node, half, order, at, erasures))
        async with Copier() as copier:
            _check(source, await copy_tree(node, source.root, half, copier, is_durable=False))
        return pack(await _cut_out(node, half, order, node.clock.now(), erasures))
    finally:
        await remove_left(half)


def _check(source: Address, problems: list[str]) -> None:
    if problems:
        raise StoredDataError(f"{source.root} is damaged, so it was not copied. {' '.join(problems)}")


async def _cut_out(node: Node, half: Path, order: CopyRequest, at: float, erasures: int) -> ForkCopy:
    """Move the subtree out of a copy of its tree, as it was at this time, to a new folder, and remove the rest.

    `erasures`: how many had begun before the tree was copied.
    """
    source, target, now = Address.parse(order.source), Address.parse(order.target), node.clock.now()
    folder = half_of(tree_folder(node.folder, target), node.files)
    try:
        with refusals():
            if order.work is None:
                agents, held = await to_the_end(move_subtree, half, folder, source), HeldWork()
            else:
                fork = ForkOrder(source, target, order.work, at, now)
                agents, held = await to_the_end(make_fork, half, folder, fork, node.unfinished_work())
                await to_the_end(finish_folder, folder, is_durable=node.gate.synced)
        if node.erasing.concerns(source, erasures):  # the receipt would not name the copy
            raise Unavailable(f"Agents of {source} are being erased. Copy it afterwards.")
        await to_the_end(shutil.rmtree, half, ignore_errors=True)
    except BaseException:
        await to_the_end(shutil.rmtree, folder, ignore_errors=True)
        raise
    return ForkCopy(str(folder), agents, at, held)


def finish_folder(folder: Path, *, is_durable: bool) -> None:
    """Have a new folder survive a loss of power, if that is asked, and mark its databases as written."""
    if is_durable:
        files = Files()
        for path, _, names in os.walk(folder):
            for name in names:
                files.sync_file(Path(path, name))
            files.sync_folder(Path(path))
    mark_copies(folder, is_durable=is_durable)


async def _place_own(node: Node, order: PlaceRequest) -> bytes:
    """Make a tree of this node of a folder."""
    target, folder = Address.parse(order.target), Path(order.folder)
    error = being_made(target, is_new=order.is_new)
    await replace_tree(node, target, folder, error, is_new=order.is_new, is_rewind=not order.is_new)
    return b""


async def _answer_copy(node: Node, message: bytes) -> bytes:
    return await _copy_own(node, _read_copy_request(message))


async def _answer_place(node: Node, message: bytes) -> bytes:
    return await _place_own(node, _read_place_request(message))


FORK_ORDERS: Mapping[str, NodeOrder] = {COPY: _answer_copy, PLACE: _answer_place}
"""What a node does for forks if another one asks it to."""
