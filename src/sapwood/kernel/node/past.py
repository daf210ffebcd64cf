"""The past of trees, whichever node runs them: which moments there are, and the files of a tree as they were."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, StoredDataError, UsageError
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.history.moments import At, BeforeTurn, Moment, Place, TreePast, text_of
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.history.removed_files import link_files
from sapwood.kernel.history.segments import history_folder
from sapwood.kernel.history.unrecorded import is_complete
from sapwood.kernel.log.restore import TreeContent
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.stored_copies import write_elsewhere
from sapwood.kernel.ports.history import MomentKind
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.integrity import damage_in

MOST_SEARCHED = 100_000
"""Moments among which one is searched by its name."""
TURN_PREFIX = "turn-"
"""What the ids of turns begin with that sapwood makes."""
MOMENTS = "list the moments of a tree"
TREE_AT = "write a tree as it was"
OFF = (
    "No history is kept here, so the past of {root} is not known: set Settings(history=…) to the seconds that it is to "
    "be kept, or SAPWOOD_HISTORY."
)


class PastRequest(msgspec.Struct, array_like=True):
    """What another node is asked about the past of a tree that it runs."""

    root: str
    kind: str = ""
    text: str = ""
    number: float = 0.0
    limit: int = 0
    folder: str = ""
    agent: str = ""
    place: str = ""
    label: str = ""


class _Told(msgspec.Struct, array_like=True):
    """A moment, on its way to another node."""

    agent: str
    at: float
    kind: str
    label: str
    place: str

    @classmethod
    def of(cls, moment: Moment) -> _Told:
        return cls(str(moment.address), moment.at.timestamp(), moment.kind, moment.label, moment.place)

    def moment(self) -> Moment:
        at = datetime.fromtimestamp(self.at, UTC)
        return Moment(Address.parse(self.agent), at, self.kind, self.label, self.place)


_read = msgspec.msgpack.Decoder(PastRequest).decode
_time = msgspec.msgpack.Decoder(float).decode
_told = msgspec.msgpack.Decoder(list[_Told]).decode


async def moments(node: Node, root: Address, since: datetime | None, limit: int) -> list[Moment]:
    """Return the last moments of a tree, oldest first."""
    if limit < 1:
        raise UsageError(f"`limit` must be at least 1, got {limit}.")
    check_time(since)
    if node.keeper is not None:
        raise UsageError(
            "In a cluster, moments have no names: its archive has the past at any time. Pass a time as `at`."
        )
    asked = PastRequest(str(root), number=0.0 if since is None else since.timestamp(), limit=limit)
    return [one.moment() for one in _told(await _at_owner(node, root, MOMENTS, asked))]


async def write_tree_at(node: Node, root: Address, at: At, folder: Path) -> float:
    """Write the files of a tree as they were at a moment into a new folder, which is removed if that fails.

    Returns when the moment was.
    """
    check_at(node, at)
    try:
        if node.keeper is not None:
            return await _write_from_archive(node, root, at, folder)
        return _time(await _at_owner(node, root, TREE_AT, request_at(root, at, folder)))
    except BaseException:
        await to_the_end(shutil.rmtree, folder, ignore_errors=True)
        raise


def check_at(node: Node, at: At) -> None:
    """Refuse what names no moment."""
    if not isinstance(at, (Moment, BeforeTurn, datetime, str)):  # pyright: ignore[reportUnnecessaryIsInstance] - unchecked programs exist
        raise UsageError(f"`at` must be a Moment, a BeforeTurn, a datetime or the name of a mark, got {at!r}.")
    if isinstance(at, datetime):
        check_time(at)
        if at.timestamp() > node.clock.now():
            raise UsageError(f"`at` must not be in the future, got {at.isoformat()}.")


def check_time(at: datetime | None) -> None:
    if at is not None and at.tzinfo is None:
        raise UsageError(f"A time with a time zone was expected, such as datetime.now(UTC), got {at!r}.")


def request_at(root: Address, at: At, folder: Path | None = None) -> PastRequest:
    """Return what to ask the node that runs a tree."""
    asked = PastRequest(str(root), folder="" if folder is None else str(folder.resolve()))
    if isinstance(at, Moment):
        asked.kind, asked.agent, asked.place = "moment", str(at.address), at.place
        asked.number, asked.label = at.at.timestamp(), at.label
    elif isinstance(at, BeforeTurn):
        asked.kind, asked.text = "turn", at.id
    elif isinstance(at, datetime):
        asked.kind, asked.number = "time", at.timestamp()
    else:
        asked.kind, asked.text = "mark", at
    return asked


def _meant(asked: PastRequest) -> At:
    if asked.kind == "moment":
        at = datetime.fromtimestamp(asked.number, UTC)
        return Moment(Address.parse(asked.agent), at, "", asked.label, asked.place)
    if asked.kind == "turn":
        return BeforeTurn(asked.text)
    return datetime.fromtimestamp(asked.number, UTC) if asked.kind == "time" else asked.text


async def _at_owner(node: Node, root: Address, verb: str, asked: PastRequest) -> bytes:
    """Have the node that runs a tree do something with its past: only it knows what is not written yet."""
    if node.far is None or node.owns(root):
        return await PAST_ORDERS[verb](node, pack(asked))
    return await node.far.ask_owner(root, verb, pack(asked))


async def settle(node: Node, root: Address) -> None:
    """Have the past of a tree of this node be recorded up to now."""
    if isinstance(node.history, HistoryRecorder) and await node.loader.exists(root):
        await node.loader.load_files(root)
        await node.history.settle(root)


async def _settled(node: Node, root: Address) -> TreePast:
    """Return the past of a tree of this node, up to now."""
    past, tree = history_folder(node.folder, root), tree_folder(node.folder, root)
    if not await node.loader.exists(root):
        node.loader.check_not_moved(root)
    if isinstance(node.history, HistoryRecorder):
        await settle(node, root)
    else:
        if await node.loader.exists(root):
            await node.loader.load_files(root)  # tree and past may be stored under a former type id
        if not await asyncio.to_thread(is_complete, past, tree):
            raise UsageError(OFF.format(root=root))
    if not past.exists():
        raise NotFound(f"{root} has no history: it does not exist, or nothing was written since.", path=root.segments)
    return TreePast(past, root)


async def _list(node: Node, message: bytes) -> bytes:
    asked = _read(message)
    past = await _settled(node, Address.parse(asked.root))
    try:
        found = await asyncio.to_thread(past.moments, asked.number, asked.limit)
    except FileNotFoundError:
        raise _gone(past.root) from None
    return pack([_Told.of(one) for one in found])


def _gone(root: Address) -> NotFound:
    what = f"The history of {root} was removed while it was read: the tree was destroyed, or this part is too old."
    return NotFound(what, path=root.segments)


async def _write(node: Node, message: bytes) -> bytes:
    asked = _read(message)
    return pack(await write_own(node, asked, Path(asked.folder)))


async def write_own(node: Node, asked: PastRequest, folder: Path) -> float:
    """Write the files of a tree of this node as they were into a new folder; return when the moment was."""
    root = Address.parse(asked.root)
    past = await _settled(node, root)
    try:
        place, at = await asyncio.to_thread(_found, past, _meant(asked))
        state = await asyncio.to_thread(past.read, place)
    except FileNotFoundError:
        raise _gone(root) from None
    await _put(state, root, folder)
    tree = tree_folder(node.folder, root)
    await to_the_end(link_files, past.folder, tree, folder, node.past.named_files)
    _check_files(root, await asyncio.to_thread(damage_in, folder, node.content_checks))
    return at


def _found(past: TreePast, at: At) -> tuple[Place, float]:
    """Return the state that is meant, and when it was: as `moments` says, if it has a name."""
    try:
        place = past.find(at)
    except NotFound as error:
        if isinstance(at, (datetime, Moment)) or not (turn := _turn_like(past, at)):
            raise
        raise NotFound(
            f"{error} Did you mean the moment before a turn? Pass BeforeTurn({turn!r}), or `--at turn:{turn}` on the "
            "command line.",
            path=error.path,
        ) from None
    if isinstance(at, datetime):
        return place, place.at
    named = [one for one in past.moments(0.0, MOST_SEARCHED) if one.place == text_of(place)]
    label = at if isinstance(at, str) else at.id if isinstance(at, BeforeTurn) else at.label
    best = [one for one in named if one.label == label] or named
    return place, best[-1].at.timestamp() if best else place.at


def _turn_like(past: TreePast, at: BeforeTurn | str) -> str:
    """Return the id of the last turn that begins like this, or what looks like one."""
    text = at.id if isinstance(at, BeforeTurn) else at
    turns = [one.label for one in past.moments(0.0, MOST_SEARCHED) if one.kind == MomentKind.BEFORE_TURN.value]
    known = [turn for turn in turns if text and turn.startswith(text)]
    if known:
        return known[-1]
    return text if isinstance(at, str) and text.startswith(TURN_PREFIX) else ""


PAST_ORDERS: Mapping[str, Callable[[Any, bytes], Awaitable[bytes]]] = {MOMENTS: _list, TREE_AT: _write}
"""What a node does if another one asks it to."""


async def _write_from_archive(node: Node, root: Address, at: At, folder: Path) -> float:
    assert node.keeper is not None
    if not isinstance(at, datetime) or node.past.archive is None:
        raise UsageError("In a cluster, `at` must be a time: its history has no names of moments.")
    state = await node.past.archive.tree_at(root, at.timestamp())
    if state is None:
        raise NotFound(
            f"The archive has no {root} at {at.isoformat()}: it did not exist, or Settings(history=…) does not reach "
            "back so far.",
            path=root.segments,
        )
    await _put(state, root, folder)
    if node.file_copies is not None:
        _check_files(root, await node.file_copies.fetch(folder, archive=node.keeper.archive))
    return at.timestamp()


async def _put(state: TreeContent, root: Address, folder: Path) -> None:
    if not state.files:
        raise StoredDataError(f"The history of {root} has no files at this moment.")
    await write_elsewhere(state, root, folder)
    await to_the_end(mark_copies, folder, is_durable=True)


def _check_files(root: Address, problems: Sequence[str]) -> None:
    if problems:
        raise StoredDataError(f"{root} cannot be read as it was: {' '.join(problems)}")
