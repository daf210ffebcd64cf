"""`agenda`: what agents have to do later, below one agent or in all trees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.admin.agent_lookup import AgentLookup, is_there
from sapwood.admin.cursors import cursor, values_in
from sapwood.admin.due_agents import DueAgents
from sapwood.admin.endpoint import LONG_PATIENCE, AdminCall, Answer, Endpoint, Page
from sapwood.admin.merged import by_page
from sapwood.admin.unread import Unread
from sapwood.capabilities.due_work import Agenda
from sapwood.errors import NotFound, SapwoodError
from sapwood.kernel.actors.row_ids import row_id
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.read_models import UnfinishedWork
from sapwood.kernel.trees.tree import Tree

KINDS = ("schedule", "queued", "fiber")
"""In the order in which they are listed for each agent."""
READ_AT_ONCE = 100
FIBER = "fiber:"
"""How the ids of fibers begin: calls and fibers are numbered apart."""
Place = tuple[str, str, int]
"""The agent, the kind and the number of a row."""


class AgendaParams(Page):
    below: bool = False


class Found(NamedTuple):
    """Unfinished work, and whose it is."""

    tree: Tree
    owner: Address
    stem: str
    work: UnfinishedWork

    @property
    def id(self) -> str:
        """The id of the work. No two agents use the same, nor does one that is created again."""
        id = row_id(self.work.number, self.tree.birthplace_of(self.owner), self.stem)
        return f"{FIBER}{id}" if self.work.kind == "fiber" else id

    @property
    def is_running(self) -> bool:
        """Whether it runs now."""
        actor = self.tree.actors.get(self.owner)
        agenda = None if actor is None else actor.found(Agenda)
        if agenda is None:
            return False
        runs = agenda.fibers.is_running if self.work.kind == "fiber" else agenda.calls.is_running
        return runs(self.work.number)


class UnfinishedWorks:
    """The unfinished work of one node, as it is stored."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lookup = AgentLookup(node)
        self._due = DueAgents(node)

    async def everywhere(self, place: Place | None) -> AsyncGenerator[Found | Unread]:
        """Yield the work of all trees, in order, from a place on."""
        first = None if place is None else str(Address.parse(place[0]).root)
        for root in await self._due.roots():
            if (first is not None and str(root) < first) or not is_there(self._node, root):
                continue
            await asyncio.sleep(0)
            try:
                async with aclosing(self.below(root, place if str(root) == first else None)) as works:
                    async for found in works:
                        yield found
            except NotFound:
                continue  # destroyed
            except SapwoodError as error:
                yield Unread(root, error)

    async def below(self, address: Address, place: Place | None) -> AsyncGenerator[Found]:
        """Yield the work of an agent and of those below it that have an alarm or dead letters."""
        tree, _, _ = await self._lookup.find(address)
        tree.slices.commit()
        tree.visitors += 1
        try:
            after = None if place is None else Address.parse(place[0])
            async with aclosing(self._due.below(tree, address, after)) as owners:
                async for owner in owners:
                    await asyncio.sleep(0)
                    if tree.destroyed is not None:
                        return
                    try:
                        async with aclosing(self.of(owner, place if owner == after else None)) as works:
                            async for found in works:
                                yield found
                    except NotFound:
                        continue  # deleted, and the index does not know it yet
        finally:
            tree.visitors -= 1

    async def of(self, owner: Address, place: Place | None) -> AsyncGenerator[Found]:
        """Yield the work of one agent."""
        tree, found, stem = await self._lookup.find(owner)
        tree.slices.commit()
        for work in self._stored(tree, stem, place):
            yield Found(tree, found, stem, work)

    def _stored(self, tree: Tree, stem: str, place: Place | None) -> Iterator[UnfinishedWork]:
        database = self._lookup.database(tree, stem)
        for kind in KINDS:
            if place is not None and KINDS.index(kind) < KINDS.index(place[1]):
                continue
            after = place[2] if place is not None and kind == place[1] else 0
            while page := self._node.read_models.unfinished_work(database, kind, after, READ_AT_ONCE):
                yield from page
                after = page[-1].number

    async def find(self, owner: Address, id: str) -> Found:
        """Return the work of an id. Raises `NotFound` if there is none."""
        tree, found, stem = await self._lookup.find(owner)
        tree.slices.commit()
        database = self._lookup.database(tree, stem)
        text = id.removeprefix(FIBER).partition("-")[0]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        for kind in KINDS[2:] if id.startswith(FIBER) else KINDS[:2]:
            for work in self._node.read_models.unfinished_work(database, kind, number - 1, 1):
                if (one := Found(tree, found, stem, work)).id == id:
                    return one
        raise NotFound(f"{found} has no unfinished work {id!r}.", path=found.segments)


async def _agenda(call: AdminCall, params: AgendaParams) -> Answer:
    place = None if params.after is None else _place(params.after)
    works = UnfinishedWorks(call.node)
    if params.address is None:
        source = works.everywhere(place)
    else:
        address = Address.parse(params.address)
        source = works.below(address, place) if params.below else works.of(address, place)
    rows: list[dict[str, Any]] = []
    unread: list[dict[str, Any]] = []
    last: Found | None = None
    has_more = False
    async for found in source:
        if isinstance(found, Unread):
            unread.append(found.shown(call.content))
        elif has_more := len(rows) == params.limit:
            break
        else:
            rows.append(_shown(call, found))
            last = found
    following = None if last is None or not has_more else cursor(str(last.owner), last.work.kind, last.work.number)
    return {"rows": rows, "next": following, "unread": unread, "unanswered": []}


def _place(after: str) -> Place:
    place = values_in(after, Place)
    if place[1] not in KINDS:
        values_in("", Place)
    return place


def _shown(call: AdminCall, found: Found) -> dict[str, Any]:
    work, content = found.work, call.content
    arguments = None if work.arguments is None else msgspec.msgpack.decode(work.arguments)
    arguments = msgspec.to_builtins(arguments, str_keys=True, enc_hook=repr)
    return {
        "address": str(found.owner),
        "id": found.id,
        "kind": work.kind,
        "name": work.name,
        "arguments": content.value("arguments", arguments),
        "due_at": work.due_at,
        "status": _status(found, call.node.clock.now()),
        "queue": work.queue,
        "repeats": work.repeats,
        "failures": work.failures,
        "error": content.text("error", work.error),
        "created_at": work.created_at,
    }


def _status(found: Found, now: float) -> str:
    work = found.work
    if work.status == "failed":
        return "failed"
    if found.is_running:
        return "running"
    return "due" if work.due_at is not None and work.due_at <= now else "waiting"


def _key(row: dict[str, Any]) -> tuple[str, str, int, int]:
    number = int(row["id"].removeprefix(FIBER).partition("-")[0])
    return str(Address.parse(row["address"]).root), row["address"], KINDS.index(row["kind"]), number


AGENDA = Endpoint(
    "agenda",
    "look",
    AgendaParams,
    _agenda,
    merge=by_page(_key, lambda key: cursor(key[1], KINDS[key[2]], key[3])),
    patience=LONG_PATIENCE,
)
