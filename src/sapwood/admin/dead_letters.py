"""The dead letters of the agents of a node, as an operator sees, replays and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS, AgentLookup, iso_time
from sapwood.capabilities.due_work import Agenda
from sapwood.errors import NotFound, SapwoodError, SignatureChanged, UsageError
from sapwood.kernel.actors.row_ids import row_id
from sapwood.kernel.marshal.agent_class import resolve
from sapwood.kernel.node.data_folder import roots_in
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree

SOON = 1.0
"""Seconds within which a call that is due is called now."""
ALL = "all"
"""Said in place of the id of a dead letter."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A call that was given up, as an operator sees it."""

    id: str
    agent: str
    """The address of the agent it belongs to."""
    method: str
    arguments: Any
    """By name, as what JSON has."""
    code: str
    """Why, in one word."""
    error: str
    attempts: int
    occurrences: int
    failed_at: str
    """The last time it was given up, as ISO 8601."""


class AdminDeadLetters:
    """Lists the dead letters of one node, and acts on them."""

    def __init__(self, node: Node, lookup: AgentLookup) -> None:
        self._node = node
        self._lookup = lookup

    async def list(self, address: str | None = None, *, below: bool = False) -> dict[str, Any]:
        """Return the calls that were given up: of one agent, with `below` of those below it too, or of all."""
        found: list[Letter] = []
        unread: list[dict[str, str]] = []
        if address is not None:
            first = Address.parse(address)
            tree, here, stem = await self._lookup.find(first)
            found += self._letters(tree, here, stem)
            roots: Sequence[Address] = [here.root] if below else []
        else:
            first, roots = None, await self._with_dead_letters()
        for root in roots:
            try:
                found += await self._letters_within(root, first)
            except SapwoodError as error:  # damaged: the others are shown nevertheless
                unread.append({"address": str(root), "error": str(error)})
            if len(found) > MOST_ROWS:
                break
        return {
            "letters": [asdict(letter) for letter in found[:MOST_ROWS]],
            "more": len(found) > MOST_ROWS,
            "unread": unread,
        }

    async def replay(self, address: str, id: str, *, below: bool = False) -> int:
        """Call again what was given up: one dead letter by its id, or `all`. Wakes the agent. Return how many."""
        return (await self.replay_due(address, id, below=below))[0]

    async def replay_due(self, address: str, id: str, *, below: bool = False) -> tuple[int, Sequence[float]]:
        """Like `replay`; return also when those calls are due that are stored for later, because a fork held them."""
        now, later = self._node.clock.now(), list[float]()

        def replay(agenda: Agenda, letter: str) -> bool:
            is_done, due = agenda.replay_due(letter)
            if due is not None and due > now + SOON:
                later.append(due)
            return is_done

        return await self._with_letters(address, id, below, replay), sorted(later)

    async def replay_as(self, address: str, id: str, method: str) -> tuple[int, int]:
        """Call this method with the arguments of one dead letter, or of `all`. Wakes the agent.

        Return how many were called, and how many were skipped because their arguments do not fit the method. Raises
        `SignatureChanged` if those of none do.
        """
        misfits: list[SignatureChanged] = []

        def replay(agenda: Agenda, letter: str) -> bool:
            try:
                return agenda.replay(letter, method)
            except SignatureChanged as error:
                misfits.append(error)
                return False

        done = await self._with_letters(address, id, False, replay)
        if misfits and not done:
            raise misfits[0]
        return done, len(misfits)

    async def delete(self, address: str, id: str, *, below: bool = False) -> int:
        """Forget what was given up: one dead letter by its id, or `all`. Wakes the agent. Return how many."""
        return await self._with_letters(address, id, below, Agenda.forget_dead_letter)

    async def find(self, address: str, id: str, *, below: bool = False) -> Sequence[dict[str, Any]]:
        """Return a dead letter, or all. Raises `NotFound` if there is none."""
        letters = (await self.list(address, below=below))["letters"]
        found = [letter for letter in letters if id in (ALL, letter["id"])]
        if not found:
            there = ", ".join(letter["id"] for letter in letters[:10]) or "none"
            what = "no dead letters" if id == ALL else f"no dead letter {id!r}. There are: {there}"
            raise NotFound(f"{address} has {what}.", path=Address.parse(address).segments)
        return found

    async def _with_letters(self, address: str, id: str, below: bool, act: Callable[[Agenda, str], bool]) -> int:
        done = 0
        for letter in await self.find(address, id, below=below):
            actor = await self._lookup.wake(Address.parse(letter["agent"]))
            done += act(actor.of(Agenda), letter["id"])
            await actor.leave()
        return done

    async def _with_dead_letters(self) -> Sequence[Address]:
        alarms = self._node.alarms
        if not alarms.is_whole:  # it is still being made from what the trees hold
            return sorted((root for root in roots_in(self._node.folder) if self._node.owns(root)), key=str)
        return list(dict.fromkeys([await self._known_as(root) for root, _ in alarms.with_dead_letters()]))

    async def _known_as(self, root: Address) -> Address:
        """Return a root by the type id that its class has now, if its tree has moved there already."""
        try:
            now = Address.root_of(resolve(root.type, self._node.roots).type, root.name)
        except UsageError:
            return root
        return now if not await self._node.loader.exists(root) else root

    async def _letters_within(self, root: Address, first: Address | None) -> Sequence[Letter]:
        """Return the dead letters of a tree, or of those below an agent of it."""
        if not await self._node.loader.exists(root):
            return []  # destroyed, and the index does not know it yet
        tree = await self._node.loader.load_files(root)
        found: list[Letter] = []
        tree.visitors += 1
        try:
            # The root may have had another type id when an entry was made.
            owners = [Address((*root.segments, *owner.segments[1:])) for owner, _ in tree.alarms.with_dead_letters()]
            for owner in dict.fromkeys(owners):
                await asyncio.sleep(0)  # to look must not hold up those who work
                if tree.destroyed is not None or len(found) > MOST_ROWS:
                    break
                if first is None or owner.is_below(first):
                    with contextlib.suppress(NotFound):  # deleted, and the index does not know it yet
                        _, here, stem = await self._lookup.find(owner)
                        found += self._letters(tree, here, stem)
        finally:
            tree.visitors -= 1
        return found

    def _letters(self, tree: Tree, address: Address, stem: str) -> Sequence[Letter]:
        tree.slices.commit()
        rows = self._node.read_models.dead_letters(self._lookup.database(tree, stem), MOST_ROWS + 1)
        return [
            Letter(
                row_id(number, tree.birthplace_of(address), stem),
                str(address),
                method,
                msgspec.to_builtins(msgspec.msgpack.decode(arguments), str_keys=True, enc_hook=repr),
                code,
                error,
                attempts,
                occurrences,
                str(iso_time(failed_at)),
            )
            for number, method, arguments, code, error, attempts, occurrences, failed_at in rows
        ]
