"""Compares two agents of a running app. Both trees are copied, each as it is at one moment, and the copies compared."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import InvalidArguments, StoredDataError
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.comparison.agent_diff import Comparison, Side
from sapwood.kernel.comparison.tree_diff import TreeDiff
from sapwood.kernel.history.moments import At
from sapwood.kernel.node.backup import copy_databases
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.past import write_tree_at
from sapwood.kernel.node.stored_copies import half_of
from sapwood.kernel.ports.compared_parts import ComparedPart
from sapwood.settings import Settings

DEFAULT_LIMIT = 20
MAX_LIMIT = 500


class Turnstile:
    """Lets one comparison of a node run at a time: each takes room on the disk, and a thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.lock = asyncio.Lock()


async def compare(
    node: Node,
    a: Address,
    b: Address,
    parts: Sequence[ComparedPart],
    limit: int = DEFAULT_LIMIT,
    a_at: At | None = None,
    b_at: At | None = None,
) -> TreeDiff:
    """Return what differs between two agents and those below them, whichever nodes run them. They keep running.

    `a_at` and `b_at` are moments of their histories. `None` means now.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArguments(f"`limit` must be from 1 to {MAX_LIMIT}, got {limit}.")
    async with node.shared(Turnstile).lock:
        # Named after its tree, so that an erasure waits for it. The next start removes it if this process dies.
        private = {root: half_of(tree_folder(node.folder, root), node.files) for root in {a.root, b.root}}
        try:
            # Two agents of one tree are compared as they are at one moment.
            for root in dict.fromkeys(one.root for one, at in ((a, a_at), (b, b_at)) if at is None):
                report = await copy_databases(node, private[root], [root])
                if not report.is_whole:
                    raise StoredDataError(f"The trees cannot be compared. {report.summary()}")
            side_a = await _side(node, private[a.root], a, a_at, "a")
            side_b = await _side(node, private[b.root], b, b_at, "b")
            return await _compared(Comparison(side_a, side_b, parts, limit, threading.Event()))
        finally:
            for folder in private.values():
                await to_the_end(shutil.rmtree, folder, ignore_errors=True)


async def _side(node: Node, private: Path, address: Address, at: At | None, name: str) -> Side:
    """Return an agent in a copy of its tree, as it is or as it was."""
    if at is None:
        return Side(address, tree_folder(private, address.root))
    await write_tree_at(node, address.root, at, folder := private / name)
    return Side(address, folder)


async def _compared(comparison: Comparison) -> TreeDiff:
    work = asyncio.ensure_future(to_the_end(comparison.run))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        comparison.cancelled.set()
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({work})
        if not work.cancelled():
            work.exception()
        raise
