"""Erases trees and subtrees, step by step, and signs a receipt.

The order of the steps makes it safe to die anywhere. What is to be erased is stored before anything is removed, and
each step is stored when it is done: a node that starts continues with the step that was interrupted, and each step can
be done again. The receipt is made last, from what the steps have removed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.kernel.aio import cancel_all
from sapwood.kernel.erasure.archive import ClusterErasure
from sapwood.kernel.erasure.backup_erasure import backups_with
from sapwood.kernel.erasure.receipt import ErasedPlace, ErasureReceipt, PlaceState, signed, subject_of, time_text
from sapwood.kernel.erasure.records import ErasureRecord, ErasureRecords
from sapwood.kernel.erasure.stores import ArchiveStore
from sapwood.kernel.erasure.subject_names import names_of
from sapwood.kernel.erasure.subtree import ErasedSubtree
from sapwood.kernel.erasure.traces import erase_traces
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.backup_notes import noted_archived_backups, noted_backups
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.erasure import ErasureHooks
from sapwood.kernel.ports.placement import Forwarded, Moved
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.ports.transport import Exchange
from sapwood.kernel.trees.former_addresses import within
from sapwood.randomness import new_id
from sapwood.storage.availability import refusals

log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[ErasureRecord], Awaitable[Sequence[ErasedPlace]]]
"""One step of an erasure, which returns what it has removed."""
MOVES = 10
"""How often a tree is followed to another address in one step."""
LOOK_EVERY = 60.0
"""Seconds between two looks, in a cluster, for erasures that a node did not finish."""
STOPS = "The server stops. The erasure continues when it starts again: the same id returns its receipt."
ERASE, ERASE_TRACES = "erase", "erase traces"
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_COVERED = (
    "Log lines on stderr and in files outside of the data folder, metrics, and exported traces.",
    "What clients, other agents, model providers, MCP servers and other servers received and stored.",
    "Forks, exports, and copies of the data folder that were made without sapwood.",
    "Totals of spending, and those of users, which have no content.",
    "Blocks of the disk that had the removed files: files are unlinked and not overwritten.",
)

ABOVE = "Conversations, state, tables and files of the agents above: what they sent to the sub-agent, and received."

OFFLINE = "Data folders of nodes that do not run now: they may have copies."
VERSIONED = "Old versions of objects, if the object storage of the archive keeps any."


class ErasureRequest(msgspec.Struct, array_like=True):
    """What another node is asked to erase."""

    address: str
    by: str
    id: str


read_request = msgspec.msgpack.Decoder(ErasureRequest).decode
read_places = msgspec.msgpack.Decoder(list[ErasedPlace]).decode
read_receipt = msgspec.msgpack.Decoder(ErasureReceipt).decode


class Erasures:
    """The erasures of one node."""

    def __init__(self, node: Node, hooks: ErasureHooks) -> None:
        self._node = node
        self._hooks = hooks
        keeper = node.keeper
        store = None if keeper is None else ArchiveStore(keeper.archive)
        self._records = ErasureRecords(node.folder, node.files, store)
        self._cluster = None if keeper is None else ClusterErasure(node, keeper, self._place, self._records.write)
        self._looking: asyncio.Task[None] | None = None
        self._known: list[ErasureRecord] = []
        """The unfinished erasures of the last look."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._subtree = ErasedSubtree(node, hooks, self._place)
        if node.far is not None:
            node.far.transport.answer(ERASE, partial(self._answer, self._erase_for_other))
            node.far.transport.answer(ERASE_TRACES, partial(self._answer, self._erase_traces_for_other))

    async def resume(self) -> None:
        """Continue the erasures that a crash or a failure interrupted. Until they are done, calls do not find them.

        In a cluster, the owner of a tree continues, which may be another node now.
        """
        if self._cluster is None:
            await self._resume()
        else:
            self._looking = self._node.loop.create_task(self._keep_looking(), context=self._node.context.copy())

    async def close(self) -> None:
        """Work on no erasure any more. Those that are unfinished continue at the next start."""
        await cancel_all([*([] if self._looking is None else [self._looking]), *self._running.values()])

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._resume()
            except Unavailable as error:
                log.warning("looking for unfinished erasures failed: %s", error)
            except Exception:
                log.exception("looking for unfinished erasures failed")
            await asyncio.sleep(LOOK_EVERY)

    async def gained(self, shards: Collection[int]) -> None:
        """Learn which agents of these shards are being erased. Calls reach their trees once this returns."""
        try:
            self._known = await self._records.unfinished()
        except Unavailable as error:  # what was known at the last look is better than no owner
            log.warning("looking for unfinished erasures failed: %s", error)
        erasing = self._node.erasing
        for subject in erasing.subjects:
            if shard_of(subject.root) in shards:
                erasing.end(subject)  # another node may have finished it
        for record in self._known:
            if shard_of(record.subject.root) in shards:
                erasing.begin(record.subject)

    async def _resume(self) -> None:
        self._known = await self._records.unfinished()
        for record in self._known:
            if record.id in self._running:
                continue
            self._follow(record)
            if self._node.owns(record.subject.root):
                self._node.erasing.begin(record.subject)
                if self._node.roots or record.subject.parent is None:  # else a server with the classes continues
                    self._start(record)

    async def erase(self, address: Address, *, by: str, id: str | None = None) -> ErasureReceipt:
        """Erase an agent with all below it, wherever it runs, and return the receipt.

        The same `id` joins an erasure that runs, and returns the receipt of one that is finished.
        """
        if id is not None and not ID.fullmatch(id):
            raise UsageError(f"The id of an erasure must be 1 to 64 letters, digits, '-' and '_', got {id!r}.")
        id = id or new_id(self._node.random)
        far = self._node.far
        if far is not None and not self._node.owns(address.root):
            answer = await far.ask_owner(address.root, ERASE, pack(ErasureRequest(str(address), by, id)))
            return read_receipt(answer)
        return await self._erase_here(address, by, id)

    async def _erase_here(self, address: Address, by: str, id: str) -> ErasureReceipt:
        if (receipt := await self._records.receipt(id)) is not None:
            if not receipt.is_about(str(address)):
                raise UsageError(f"The erasure {id!r} is about another agent. Choose another id.")
            return receipt
        known = await self._records.unfinished()
        for one in known:
            self._follow(one)
        record = next((one for one in known if one.id == id), None)
        if record is not None and record.address != str(address):
            raise UsageError(f"The erasure {id!r} is about another agent. Choose another id.")
        record = record or next((one for one in known if str(address) in (one.address, *one.names[:1])), None)
        if record is None:
            record = await self._begin(address, by, id)
        running = self._running.get(record.id) or self._start(record)
        await asyncio.wait({running})
        if running.cancelled():
            raise Unavailable(STOPS)
        running.result()
        receipt = await self._records.receipt(record.id)
        assert receipt is not None
        return receipt

    async def _begin(self, address: Address, by: str, id: str) -> ErasureRecord:
        """Store that an agent is erased, before anything of it is removed."""
        node = self._node
        self._records.key(node.settings.erasure_key)
        await self._hear()
        record = ErasureRecord(
            id=id, address=str(address), salt=new_id(node.random, 32), by=by, asked_at=node.clock.now()
        )
        if address.parent is None:
            record.names = await self._names(address)
            if not await self._is_known(record.subjects):
                raise NotFound(f"{address} has no data.", path=address.segments)
            files = [path for path in self._folder(address).rglob("*") if path.is_file()]
            record.agents = sum(path.suffix == ".db" for path in files)
            record.files, record.bytes = len(files), sum(path.stat().st_size for path in files)
            if self._cluster is not None:  # a folder of a node has a copy, or none
                record.agents = await self._cluster.number_of_agents(address)
        else:
            await self._subtree.find(record)
        node.erasing.check(address)  # another one may have begun since, of an agent above
        node.erasing.begin(address)  # first: two of the same agent must not begin
        try:
            if address.parent is None:
                await self._names(address)  # it may have been moved since; from now on it is not
            await self._records.write(record)
        except BaseException as error:
            node.erasing.end(address)
            if isinstance(error, SapwoodError):
                await self._records.withdraw(record)
            raise
        return record

    def _folder(self, root: Address) -> Path:
        return tree_folder(self._node.folder, root)

    async def _names(self, root: Address) -> list[str]:
        """Return all addresses that a tree has had. `Forwarded` if it was moved."""
        node = self._node
        kind = next((known for known in node.roots if root.type in known.type_ids), None)
        while (tree := await node.loader.load(root, kind, only_files=True)).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        return names_of(root, tree, node.roots)

    async def _is_known(self, roots: Sequence[Address]) -> bool:
        """Return whether there is anything of a tree. `roots`: all its addresses, the present one first."""
        node, root = self._node, roots[0]
        folder = self._folder(root)
        if any(path.name.startswith(folder.name) for path in folder.parent.iterdir()):
            return True
        if (tree := node.trees.get(root)) is not None and tree.actors:
            return True
        if self._cluster is not None:
            return any([await self._cluster.knows(one) for one in roots])
        return any(one.state == "still there" for one in await self._backups_with(roots))

    async def _backups_with(self, roots: Sequence[Address], *, is_subtree: bool = False) -> list[ErasedPlace]:
        """Return the backups that hold a tree, or may."""
        far, keeper = self._node.far, self._node.keeper
        here = "" if far is None or keeper is None else far.directory.here
        notes = noted_backups(self._node.folder) if keeper is None else await noted_archived_backups(keeper.archive)
        return await asyncio.to_thread(backups_with, roots, notes, here, is_subtree=is_subtree)

    async def _hear(self) -> None:
        """Make sure that all processes answer before anything is removed: each may have traces in memory."""
        far = self._node.far
        for other in [] if far is None else await far.others():
            if far is not None and not await far.is_there(other):
                raise Unavailable(f"{other} does not answer, and it may have traces of the agent. Nothing was erased.")

    def _start(self, record: ErasureRecord) -> asyncio.Task[None]:
        """Work on an erasure in the background, whatever becomes of the call that asked for it."""
        task = self._running[record.id] = self._node.background.start(self._run(record))
        task.add_done_callback(lambda _: self._running.pop(record.id, None))
        return task

    async def _run(self, record: ErasureRecord) -> None:
        with refusals():
            self._follow(record)
            if record.subject.parent is not None and record.done and await self._subtree.files_left(record):
                record.done.clear()  # the tree was restored from a backup since
            for name, step in self._steps(record):
                if name not in record.done:
                    record.done[name] = list(await self._done(record, step))
                    await self._records.write(record)
            await self._records.finish(self._receipt(record))
        if record.subject.parent is None:
            await self._finish_below(record)
        self._node.erasing.end(record.subject)
        log.info("erasure finished id=%s agents=%d", record.id, record.agents)

    async def _done(self, record: ErasureRecord, step: Step) -> Sequence[ErasedPlace]:
        """Do a step at the present address of the tree, which may be moved at any time."""
        for _ in range(MOVES):
            self._follow(record)
            if not self._node.owns(record.subject.root):
                raise Unavailable(f"{record.address} was moved. Its erasure continues when the server starts again.")
            with suppress(Forwarded):
                return await step(record)
        raise Unavailable(f"{record.address} is moved again and again.")

    def _follow(self, record: ErasureRecord) -> None:
        """Continue at the present address if the tree was moved since the erasure began. Whole trees are not moved."""
        subject = record.subject
        if subject.parent is None:
            return
        try:
            target = self._node.loader.moved_to(subject.root)
        except StoredDataError as error:
            log.warning("former address not read id=%s error=%s", record.id, error)
            return
        if target is not None:
            record.names = list(dict.fromkeys((str(within(subject, target)), *record.names)))
            if subject in self._node.erasing.subjects:
                self._node.erasing.end(subject)
                self._node.erasing.begin(record.subject)

    async def _finish_below(self, record: ErasureRecord) -> None:
        """Finish the erasures of agents of a tree that was erased: there is nothing left that could stop them."""
        for one in await self._records.unfinished():
            if not any(name.is_below(root) for name in one.subjects for root in record.subjects):
                continue
            if (running := self._running.get(one.id)) is not None:
                await asyncio.wait({running})
            if await self._records.receipt(one.id) is None:
                await asyncio.wait({self._start(one)})  # the failure of a task in the background is logged

    def _steps(self, record: ErasureRecord) -> Sequence[tuple[str, Step]]:
        """Return what is done, in this order. Each step may have been done before, in part or whole."""
        if record.subject.parent is not None:
            own = [("files", self._subtree.remove), ("rows", self._subtree.erase_rows)]
        else:
            own = [("files", self._remove_tree)]
        if self._hooks.history is not None:
            own.append(("history", self._forget_history))
        if self._cluster is not None:
            own.append(("cluster", self._cluster.erase_past if record.subject.parent else self._cluster.erase_tree))
        return [*own, ("traces", self._erase_traces), ("backups", self._look_at_backups), ("check", self._check)]

    async def _remove_tree(self, record: ErasureRecord) -> list[ErasedPlace]:
        await self._node.removal.erase(record.subject)
        return [self._place("files", count=record.files, bytes=record.bytes)]

    async def _forget_history(self, record: ErasureRecord) -> list[ErasedPlace]:
        assert self._hooks.history is not None
        return [self._place("history", count=await self._hooks.history(self._node, record.subject.root))]

    async def _erase_traces(self, record: ErasureRecord) -> list[ErasedPlace]:
        found = await erase_traces(self._node, record.subjects, self._hooks, self._place)
        far = self._node.far
        for other in [] if far is None else await far.others():
            if far is not None:
                found += read_places(await far.ask(other, ERASE_TRACES, pack(record.names)))
        return found

    async def _look_at_backups(self, record: ErasureRecord) -> list[ErasedPlace]:
        now = self._now()
        roots = list(dict.fromkeys(one.root for one in record.subjects))
        held = await self._backups_with(roots, is_subtree=record.subjects[0].parent is not None)
        return [msgspec.structs.replace(one, done_at=now) for one in [*held, *self._kept(record.subjects)]]

    def _kept(self, subjects: Sequence[Address]) -> list[ErasedPlace]:
        notes = [find(self._node.folder, subjects) for find in self._hooks.kept]
        return [self._place("records", state="kept", note=note) for note in notes if note]

    async def _check(self, record: ErasureRecord) -> list[ErasedPlace]:
        """Look again whether anything is left, before the receipt says that nothing is."""
        if record.subject.parent is not None:
            await self._subtree.check(record)
            return []
        folder = self._folder(record.subject)
        if left := [path.name for path in folder.parent.iterdir() if path.name.startswith(folder.name)]:
            raise Unavailable(f"Files are left of the erased tree: {', '.join(left)}.")
        if self._cluster is not None:
            await self._cluster.check(record)
        return []

    def _receipt(self, record: ErasureRecord) -> ErasureReceipt:
        receipt = ErasureReceipt(
            id=record.id,
            salt=record.salt,
            subject=subject_of(record.salt, record.address),
            is_subtree=record.subject.parent is not None,
            by=record.by,
            asked_at=time_text(record.asked_at),
            finished_at=self._now(),
            agents=record.agents,
            places=[place for places in record.done.values() for place in places],
            not_covered=self._not_covered(record.subject),
            public_key="",
            fingerprint="",
        )
        return signed(receipt, self._records.key(self._node.settings.erasure_key))

    def _not_covered(self, subject: Address) -> list[str]:
        above = [] if subject.parent is None else [ABOVE]
        return [*NOT_COVERED, *above, *([] if self._cluster is None else [OFFLINE, VERSIONED])]

    def _place(
        self,
        place: str,
        *,
        count: int = 0,
        bytes: int = 0,
        state: PlaceState = "erased",
        until: float | None = None,
        note: str = "",
    ) -> ErasedPlace:
        far = self._node.far
        return ErasedPlace(
            place=place,
            state=state,
            node="" if far is None else far.directory.here,
            count=count,
            bytes=bytes,
            until="" if until is None else time_text(until),
            note=note,
            done_at=self._now(),
        )

    def _now(self) -> str:
        return time_text(self._node.clock.now())

    async def _erase_for_other(self, message: bytes) -> bytes:
        asked = read_request(message)
        address = Address.parse(asked.address)
        if not self._node.owns(address.root):
            raise Moved(address.root)
        return pack(await self._erase_here(address, asked.by, asked.id))

    async def _erase_traces_for_other(self, message: bytes) -> bytes:
        subjects = [Address.parse(name) for name in msgspec.msgpack.decode(message, type=list[str])]
        found = await erase_traces(self._node, subjects, self._hooks, self._place)
        return pack([*found, *([] if self._cluster is None else self._kept(subjects))])  # workers share a folder

    def _answer(self, act: Callable[[bytes], Awaitable[bytes]], message: bytes, exchange: Exchange) -> None:
        async def work() -> None:
            try:
                exchange.end(await act(message))
            except SapwoodError as error:
                exchange.fail(error)
            except Exception as error:
                log.exception("erasing for another node failed")
                exchange.fail(Unavailable(str(error)))

        task = self._node.background.start(work())
        task.add_done_callback(lambda task: exchange.fail(Unavailable(STOPS)) if task.cancelled() else None)
