"""Moves a tree to another server.

1. The other server holds the address, and gets a copy of the files, while the agents run here. It checks the copy.
2. The tree ends here. The other server gets what has changed since, and makes all of it durable.
3. The folder of the tree is renamed, so that there is no tree here any more.
4. The other server makes a tree of the files.

The rename decides. Before it, the other server runs nothing and discards the copy if it is told so. Behind it, this
server runs nothing, and tells the other one until it has answered. A forward with the ticket of the move is stored
first, which does not count while there is a tree: after a crash, the next start finds it, and discards the copy or
continues with step 4.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.backup import copy_tree
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.fork import NodeOrder
from sapwood.kernel.node.forwards import Forward
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.stored_copies import half_of
from sapwood.kernel.node.tree_move import MOVES
from sapwood.kernel.ports.destination import Destination, FileState, Part, Ticket
from sapwood.kernel.ports.placement import Moved
from sapwood.storage.availability import refusals
from sapwood.storage.blobs import blobs_in
from sapwood.storage.copies import Copier

log = logging.getLogger(__name__)

DEPART = "move a tree to another server"
BLOCK = 64 * 1024
"""Bytes that are compared, and sent if they differ."""
BATCH = 4 * 1024 * 1024
"""Bytes of one request."""
MOST_FILES = 50_000
"""Files of a tree: all are named in one request."""
ANSWER_WITHIN = 60.0
"""Seconds that the caller of a move waits for the last answer of the other server."""


class DepartRequest(msgspec.Struct, array_like=True):
    """What the process is asked that runs the tree."""

    root: str
    url: str
    token: str


_read_request = msgspec.msgpack.Decoder(DepartRequest).decode


async def move_to_server(node: Node, root: Address, url: str, token: str | None) -> Address:
    """Move a tree to another server, and return its address, which stays the same."""
    parts = urlsplit(url)
    is_plain = url.isascii() and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise UsageError(f"Expected the URL of a server such as https://other.example, got {url!r}.")
    if not token:
        raise UsageError("A move to another server needs `token`: one of that server with the scope 'admin'.")
    request = DepartRequest(str(root), url.rstrip("/"), token)
    if node.far is None or node.owns(root):
        await _depart(node, request)
    else:
        await node.far.ask_owner(root, DEPART, pack(request))
    return root


async def _depart(node: Node, request: DepartRequest) -> None:
    root = Address.parse(request.root)
    if root in node.forwards.departing:  # what one has decided, the other one would take for what is left of it
        raise Unavailable(f"{root} is already being moved to another server.")
    move = ServerMove(node, root, request)
    # Not in the task of the caller, which may be cancelled at any step, or be an agent of the tree.
    task = node.background.start(move.run(), is_resumable=True)
    await asyncio.wait({task})
    if task.cancelled():
        raise Unavailable("The app is not running.")
    task.result()
    if move.failed is not None:
        raise move.failed
    if move.delivery is not None:
        await asyncio.wait({move.delivery}, timeout=ANSWER_WITHIN)
        if move.delivery.done() and not move.delivery.cancelled():
            move.delivery.result()
            return
    raise Unavailable(
        f"{root} was moved to {request.url}, which has not confirmed it yet. This server repeats its request until it "
        "does, also after a restart."
    )


class ServerMove:
    """One move, at the process that runs the tree."""

    def __init__(self, node: Node, root: Address, request: DepartRequest) -> None:
        self._node = node
        self._root = root
        self._request = request
        self._error = Unavailable(f"{root} is being moved to another server.")
        self._half = half_of(tree_folder(node.folder, root), node.files)
        """A copy of what the other server has."""
        self.failed: SapwoodError | OSError | None = None
        """Why the tree is still here."""
        self.delivery: asyncio.Task[None] | None = None
        """What tells the other server that the tree is its own."""
        node.forwards.departing.add(root)

    @property
    def _is_decided(self) -> bool:
        return has_left(self._node, self._root)

    async def run(self) -> None:
        """Move the tree, or leave all as it was."""
        node, root = self._node, self._root
        try:
            if not await node.loader.exists(root):
                raise NotFound(f"{root} has no data.", path=root.segments)
            await _settle_earlier(node, root)
            assert node.destinations is not None
            self._destination = await node.destinations.offer(self._request.url, self._request.token, root)
            await self._end_with(self._destination.ticket)
        except (SapwoodError, OSError) as error:
            self.failed = error
        finally:
            node.forwards.departing.discard(root)

    async def _end_with(self, ticket: Ticket) -> None:
        """Do what the ticket allows. If the node stops, the next start discards the copy, or delivers the tree."""
        node, root = self._node, self._root
        try:
            await self.note()
            await self.copy()
            await self._hand_over()
        except (SapwoodError, OSError) as error:
            if not self._is_decided:
                raise
            log.warning("move continues after an error root=%s error=%s", root, error)
        finally:
            if self._is_decided:
                self.delivery = node.background.start(deliver(node, root, ticket), is_resumable=True)
            else:
                node.background.start(discard_copy(node, root, ticket), is_resumable=True)
            await to_the_end(shutil.rmtree, self._half, ignore_errors=True)
            await self._destination.close()

    async def note(self) -> None:
        """Store the ticket: whatever happens from now on, the other server learns of it."""
        ticket, root = self._destination.ticket, str(self._root)
        with refusals():
            self._node.forwards.put(Forward(root, root, f"{ticket.url}{ticket.path}", ticket))
            await to_the_end(self._node.files.sync_folder, self._node.forwards.folder)

    async def copy(self) -> None:
        """Send a copy, while the agents run."""
        root = self._root
        if (why := self._node.loader.held_back(root)) is not None:
            raise why
        async with Copier() as copier:
            problems = await copy_tree(self._node, root, self._half, copier, is_durable=False)
        if problems:
            raise StoredDataError(f"{root} is damaged, so it was not moved. {' '.join(problems)}")
        files = await to_the_end(_states, self._half, with_digests=False)
        if len(files) > MOST_FILES:
            raise UsageError(f"{root} has {len(files)} files, and at most {MOST_FILES} can be moved. Use an export.")
        await self._send(_changes(self._half, None))
        await self._destination.check(files)

    async def _hand_over(self) -> None:
        """End the tree, send what has changed, and let go of it: all, or nothing of it."""
        node, root = self._node, self._root
        while (tree := await node.loader.load(root)).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        node.erasing.check_tree(root)
        if not tree.root.exists:
            raise NotFound(f"{root} has no data.", path=root.segments)
        node.alarms.earlier(root, node.clock.now(), 0)  # if it stays, it continues what is interrupted now
        try:
            async with node.removal.hold(tree, self._error, MOVES):
                await self._send(_changes(tree.folder, self._half))
                await self._destination.seal(await to_the_end(_states, tree.folder, with_digests=True))
                self._check_ticket()
                with refusals():
                    await to_the_end(self._let_go, tree.folder)
                node.gate.moved(tree.folder)
                node.alarms.forget(root)
                log.info("tree let go root=%s url=%s", root, self._destination.ticket.url)
        finally:
            if not self._is_decided:
                node.alarms.look_by(root, node.clock.now())

    def _check_ticket(self) -> None:
        """Raise `Unavailable` if the ticket is not stored any more: without it, nothing would end the move."""
        stored = self._node.forwards.stored(self._root)
        if stored is None or stored.ticket != self._destination.ticket:
            raise Unavailable(f"The move of {self._root} ended: another one has begun.")

    def _let_go(self, folder: Path) -> None:
        files, sent = self._node.files, self._node.forwards.sent(self._root)
        files.rename(folder, sent)
        try:
            for path in (folder.parent, sent.parent):
                files.sync_folder(path)
        except OSError:
            files.rename(sent, folder)  # after a loss of power, it might be here again
            raise

    async def _send(self, parts: Iterator[Part]) -> None:
        batch: list[Part] = []
        while (part := await to_the_end(next, parts, None)) is not None:
            batch.append(part)
            if sum(len(content) for _, _, content in batch) >= BATCH:
                await self._destination.write(batch)
                batch = []
        if batch:
            await self._destination.write(batch)


def has_left(node: Node, root: Address) -> bool:
    """Return whether this server has let go of a tree, and not heard yet that the other one has it."""
    return node.forwards.sent(root).exists() and not node.forwards.has_tree(root)


async def _settle_earlier(node: Node, root: Address) -> None:
    """Give back what an earlier move of a tree, which did not happen, has left at another server."""
    forward = node.forwards.stored(root)
    if not node.forwards.has_tree(root):
        return
    if (sent := node.forwards.sent(root)).exists():  # the tree has come back since
        with refusals():
            await to_the_end(shutil.rmtree, sent)
    if forward is not None and forward.ticket is not None:
        with suppress(SapwoodError, TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN), _known(node, root, forward.ticket) as destination:
                await destination.discard()
        if node.forwards.stored(root) == forward:
            node.forwards.remove(root)


async def deliver(node: Node, root: Address, ticket: Ticket) -> None:
    """Tell the other server that the tree is its own, until it answers; then remove what is left of it here."""
    async with _known(node, root, ticket) as destination:
        await _repeated(node, root, destination.commit)
        if (forward := node.forwards.stored(root)) is not None and forward.ticket == ticket:
            with refusals():
                node.forwards.put(msgspec.structs.replace(forward, ticket=None))
                await to_the_end(node.files.sync_folder, node.forwards.folder)
            node.history.forget(root, is_destroyed=True)
        if forward is None or forward.ticket == ticket:  # otherwise it has come back, and left again
            await to_the_end(shutil.rmtree, node.forwards.sent(root), ignore_errors=True)
        with suppress(SapwoodError):  # it forgets the move after a month
            await destination.discard()


async def discard_copy(node: Node, root: Address, ticket: Ticket) -> None:
    """Tell the other server that the tree stays here, until it answers."""
    async with _known(node, root, ticket) as destination:
        await _repeated(node, root, destination.discard)
    forward = node.forwards.stored(root)
    if forward is not None and forward.ticket == ticket:
        node.forwards.remove(root)


async def _repeated(node: Node, root: Address, request: Callable[[], Awaitable[None]]) -> None:
    """Repeat a request until it is answered."""
    delay, told = node.timings.move_retry_delay, False
    while True:
        try:
            await request()
        except SapwoodError as error:
            if not told:
                log.warning("move waits for the other server root=%s error=%s", root, error)
            told = True
        else:
            return
        await asyncio.sleep(delay)
        delay = min(2 * delay, node.timings.move_retry_most)


@asynccontextmanager
async def _known(node: Node, root: Address, ticket: Ticket) -> AsyncGenerator[Destination, None]:
    assert node.destinations is not None
    destination = node.destinations.known(ticket, root)
    try:
        yield destination
    finally:
        await destination.close()


def resume_server_moves(node: Node) -> None:
    """Finish, or undo, the moves to other servers that the end of a process interrupted."""
    if node.destinations is None:
        return
    for forward in node.forwards.every():
        root = Address.parse(forward.former)
        if not node.owns(root):
            continue
        if forward.ticket is None:  # it is complete; a crash may have left the files
            node.background.start(to_the_end(shutil.rmtree, node.forwards.sent(root), ignore_errors=True))
            continue
        work = deliver if has_left(node, root) else discard_copy
        node.background.start(work(node, root, forward.ticket), is_resumable=True)


def _states(folder: Path, *, with_digests: bool) -> Mapping[str, FileState]:
    return {name: FileState.of(folder / name, with_digest=with_digests) for name in _names(folder)}


def _names(folder: Path) -> Sequence[str]:
    paths = [*folder.glob("*.db"), *folder.glob("*.db-wal"), *blobs_in(folder)]
    return sorted(str(path.relative_to(folder)) for path in paths)


def _changes(folder: Path, known: Path | None) -> Iterator[Part]:
    """Yield what the files of a folder have that those of another one do not have at the same place."""
    for name in _names(folder):
        old = None if known is None else known / name
        with (
            (folder / name).open("rb") as file,
            (Path(os.devnull) if old is None or not old.exists() else old).open("rb") as before,
        ):
            start = 0
            while block := file.read(BLOCK):
                if block != before.read(BLOCK):
                    yield name, start, block
                start += len(block)


async def _answer(node: Node, message: bytes) -> bytes:
    request = _read_request(message)
    if not node.owns(root := Address.parse(request.root)):
        raise Moved(root)
    await _depart(node, request)
    return b""


SERVER_MOVE_ORDERS: Mapping[str, NodeOrder] = {DEPART: _answer}
"""What a process does for moves to other servers if another one asks it to."""
