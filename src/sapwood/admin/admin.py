"""What an operator may ask of a running node: who lives here, what they hold, and to do something to them.

Looking at an agent does not wake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS, AgentLookup, is_there, iso_time
from sapwood.admin.content import Content
from sapwood.admin.dead_letters import AdminDeadLetters
from sapwood.admin.spending import AdminSpending
from sapwood.admin.waiting_runs import with_waits
from sapwood.capabilities.failing_calls import FailingCalls
from sapwood.errors import InvalidArguments, NotFound, SapwoodError, UnknownAgent, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.pending_work import pending_work
from sapwood.kernel.marshal.call import as_operator
from sapwood.kernel.marshal.copier import json_hook, unjson_hook
from sapwood.kernel.marshal.method_schemas import method_list
from sapwood.kernel.node.backup import OnDamage, backup, restore, root_of, verify
from sapwood.kernel.node.data_folder import TREES, OddEntry, entries
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import Tree
from sapwood.web.stats import busiest, counted, name_of

MOST_AGENTS = 500
MOST_FAILING = 20
"""Failing calls of each process that `top` shows."""
PAGE = 256


@dataclass(slots=True)
class AgentBranch:
    """One agent, as an operator sees it, with those below it."""

    address: str
    status: str
    """`live`, `busy`, `starting`, `asleep`, `aborted` or `quarantined`."""
    calls: int = 0
    sockets: int = 0
    bytes: int = 0
    children: int = 0
    last_error: str | None = None
    queued_calls: int = 0
    """Calls in its queues, the running ones included."""
    runs: int = 0
    """Unfinished runs that it started."""
    fibers: int = 0
    """Unfinished fibers, sleeping ones included."""
    next_schedule_at: str | None = None
    """When its next scheduled call is due, as ISO 8601."""
    below: list[AgentBranch] = field(default_factory=list["AgentBranch"])
    """Its children, as many as are shown; `children` counts all."""


class Admin:
    """Looks at the agents of one node, and acts on them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lookup = AgentLookup(node)
        self.dead_letters = AdminDeadLetters(node, self.lookup)
        self.spending = AdminSpending(node, self.lookup)

    async def tree(
        self, address: str | None = None, *, agents: int = MOST_AGENTS, children: int = 50
    ) -> dict[str, Any]:
        """Return the trees, or an agent and those below it; at most so many agents, and children of each."""
        left = [agents]
        odd: list[OddEntry] = []
        if address is not None:
            found = [await self._seen(Address.parse(address), left, children)]
            total = 1
        else:
            seen = list(entries(self.node.folder))
            odd = [one for one in seen if isinstance(one, OddEntry)]
            roots = {one for one in seen if isinstance(one, Address)}
            all_roots = sorted({*roots, *self.node.trees}, key=str)
            all_roots = [root for root in all_roots if self.node.owns(root) and is_there(self.node, root)]
            total, found = len(all_roots), list[AgentBranch]()
            for root in all_roots:
                if left[0] <= 0:
                    break
                found.append(await self._root(root, left, children))
        return {
            "roots": [asdict(branch) for branch in found],
            "count": total,
            "sockets": self.node.sockets.count,
            "ready": self.node.is_ready,
            "odd": [asdict(entry) for entry in odd],
        }

    def top(self, *, trees: int = 20) -> dict[str, Any]:
        """Return what the process uses and does, its busiest trees, and which stored calls fail again and again."""
        slow = [
            {"method": method, "worker": name_of(self.node), "times": times, "seconds": longest}
            for method, (times, longest) in list(self.node.watchdog.slow.items())
        ]
        return {
            "workers": [asdict(counted(self.node))],
            "busiest": [asdict(one) for one in busiest(self.node, trees)],
            "slow": slow,
            "failing": [
                asdict(one) | {"worker": name_of(self.node)}
                for one in self.node.shared(FailingCalls).list(MOST_FAILING)
            ],
        }

    async def _root(self, root: Address, left: list[int], children: int) -> AgentBranch:
        try:
            return await self._seen(root, left, children)
        except SapwoodError as error:
            left[0] -= 1
            return AgentBranch(str(root), "asleep", last_error=str(error))

    async def _seen(self, address: Address, left: list[int], children: int) -> AgentBranch:
        tree, found, stem = await self.lookup.find(address)
        tree.visitors += 1  # or it may be forgotten before this ends, and its files opened twice
        try:
            branch = await self._branch(tree, found, stem, left, children)
        finally:
            tree.visitors -= 1
        if tree.is_held and (error := self.node.loader.held_back(found.root)) is not None:
            branch.status, branch.last_error = "quarantined", str(error)
        return branch

    async def _branch(self, tree: Tree, address: Address, stem: str, left: list[int], children: int) -> AgentBranch:
        left[0] -= 1
        database = self.lookup.database(tree, stem)
        branch = AgentBranch(
            str(address),
            *_doing(tree, address),
            sockets=self.node.sockets.number_of(address),
            bytes=_size(database.path) + _size(database.wal),
        )
        if not database.exists:
            return branch
        branch.children = self.lookup.children(tree, stem).count()
        work = pending_work(database)
        branch.queued_calls, branch.runs, branch.fibers = work.queued_calls, work.runs, work.fibers
        branch.next_schedule_at = iso_time(work.next_schedule_at)
        for child in self.lookup.children(tree, stem).page(None, 0, children) if branch.children else ():
            if left[0] <= 0:
                break
            await asyncio.sleep(0)  # to look must not hold up those who work
            if tree.destroyed is not None:
                break
            below = address.child(child.type, child.name), child_stem(stem, child.generation)
            try:
                branch.below.append(await self._branch(tree, *below, left, children))
            except NotFound:
                continue  # deleted since
            except SapwoodError as error:
                branch.below.append(AgentBranch(str(below[0]), "asleep", last_error=str(error)))
        return branch

    async def state(self, address: str) -> Any:
        """Return the state an agent has stored; that of its class if it has not set one yet."""
        tree, found, stem = await self.lookup.find(Address.parse(address))
        tree.slices.commit()
        if (stored := self.node.read_models.state(self.lookup.database(tree, stem))) is not None:
            return msgspec.json.decode(stored)
        try:
            kind = self.lookup.kind(tree, found)
        except UnknownAgent:
            text = f"{found} has not set its state yet, and only a running server knows its initial state."
            raise NotFound(text, path=found.segments) from None
        return msgspec.to_builtins(getattr(kind.cls, "initial_state", None), enc_hook=json_hook)

    async def methods(self, address: str) -> bytes:
        """Return the exposed methods of an agent as JSON, with their schemas. The agent is not woken."""
        tree, found, _ = await self.lookup.find(Address.parse(address))
        return method_list(self.lookup.kind(tree, found))

    async def sql(self, address: str, sql: str, arguments: list[Any], *, write: bool = False) -> dict[str, Any]:
        """Run a statement on an agent's database. Unless `write`, it can only read, and the agent is not woken."""
        tree, found, stem = await self.lookup.find(Address.parse(address))
        if write:
            rows = await self._as_call(await self.lookup.wake(found), sql, arguments)
            columns, values = tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows]
        else:
            tree.slices.commit()
            database = self.lookup.database(tree, stem)
            if not database.exists:
                raise NotFound(f"{found} has not stored anything yet.", path=found.segments)
            columns, values = database.look(sql, arguments, MOST_ROWS + 1)
        return {
            "columns": columns,
            "rows": [[_shown(value) for value in row] for row in values[:MOST_ROWS]],
            "more": len(values) > MOST_ROWS,
        }

    async def _as_call(self, actor: Actor, sql: str, arguments: list[Any]) -> list[dict[str, Any]]:
        rows = actor.user_database().run(sql, arguments)
        await actor.leave()
        return list(rows)

    async def call(self, address: str, method: str, arguments: list[Any]) -> AsyncIterator[bytes]:
        """Call a public method with JSON arguments; yields the result as JSON, or each item of a stream."""
        where = Address.parse(address)
        if not any(where.segments[0].type in kind.type_ids for kind in self.node.roots):
            names = ", ".join(kind.type for kind in self.node.roots) or "none"
            raise UnknownAgent(f"{where.segments[0].type} is not a root of this app. Roots: {names}.")
        actor = await self.lookup.wake(where)
        called = actor.kind.method(method)
        stub = self.node.stub_of(actor)
        given: list[Any] = []
        names = [p for p in called.signature.parameters if p.kind is not p.KEYWORD_ONLY]
        for at, value in enumerate(arguments):
            name = names[min(at, len(names) - 1)].name if names else ""
            try:
                given.append(msgspec.convert(value, called.signature.hints.get(name, Any), dec_hook=unjson_hook))
            except msgspec.ValidationError as error:
                text = f"{called.full_name}() argument {name!r} does not fit: {error}."
                raise InvalidArguments(text) from None
        with as_operator():
            answer = getattr(stub, method)(*given)
        if called.streams:
            async for item in answer:
                yield msgspec.json.encode(item, enc_hook=json_hook)
        else:
            yield msgspec.json.encode(await answer, enc_hook=json_hook)

    async def decisions(self, address: str) -> dict[str, Any]:
        """Return the decisions about tool calls of an agent and of all below it, as they are stored. Wakes no agent."""
        tree, found, stem = await self.lookup.find(Address.parse(address))
        agents: list[dict[str, Any]] = []
        to_visit, count = [(found, stem)], 0
        tree.visitors += 1
        try:
            while to_visit and tree.destroyed is None and count <= MOST_ROWS:
                await asyncio.sleep(0)  # other agents have their turn
                owner, stem = to_visit.pop()
                tree.slices.commit()
                database = self.lookup.database(tree, stem)
                if not database.exists:
                    continue
                if (told := self.node.read_models.decisions(database, MOST_ROWS + 1)) is not None:
                    count += len(told)
                    agents.append({"address": str(owner), "decisions": told})
                children, after = self.lookup.children(tree, stem), 0
                while page := children.page(None, after, PAGE):
                    to_visit += [(owner.child(one.type, one.name), child_stem(stem, one.generation)) for one in page]
                    after = page[-1].generation
        finally:
            tree.visitors -= 1
        return {"agents": agents, "more": count > MOST_ROWS}

    async def explain(self, address: str, turn: str | None = None, step: int | None = None) -> dict[str, Any]:
        """Return the records of a turn, or the latest turns, calls and fibers. Wakes no agent.

        With `step`, also what the model was sent in it, in each attempt. Step 0 is the summaries of the conversation
        that were made in the turn.
        """
        tree, found, stem = await self.lookup.find(Address.parse(address))
        tree.slices.commit()
        database, reads = self.lookup.database(tree, stem), self.node.read_models
        work = None if turn is None else str(WorkId.run(turn))
        rows = reads.spans(database, work, MOST_ROWS + 1)
        if turn is not None and not rows:
            raise NotFound(f"{found} has no record of a turn {turn!r}.", path=found.segments)
        content = Content(self.node, is_shown=True)
        # What an agent recorded was redacted when it was written; the spans of runs are made now.
        shown = [content.span(row) if row["number"] < 0 else row for row in rows[:MOST_ROWS]]
        shown = with_waits(tree, found, shown)
        told: dict[str, Any] = {"address": str(found), "spans": shown, "more": len(rows) > MOST_ROWS}
        told["incarnations"] = [one._asdict() for one in reads.incarnations(database)]
        if step is not None:
            steps = [row for row in rows if row["kind"] == "step" and row["step"] == (step or None)]
            if not steps:
                raise NotFound(f"Turn {turn!r} of {found} has no record of a step {step}.", path=found.segments)
            told["requests"] = [
                {"attempt": row["attempt"], "status": row["status"]} | one
                for row in steps
                for one in reads.sent_requests(database, row["number"])
            ]
        return told

    def release(self, address: str) -> None:
        """Let the tree of an agent run again that was put in quarantine."""
        root = Address.parse(address).root
        if not self.node.strikes.release(root):
            raise NotFound(f"{root} is not in quarantine, and has no strikes.", path=root.segments)

    async def backup(self, folder: str, address: str | None = None) -> dict[str, Any]:
        """Copy all trees, or one, into a folder; return how many, and which are damaged."""
        return msgspec.to_builtins(await backup(self.node, Path(folder), root_of(address)))

    async def verify(self, address: str | None = None) -> dict[str, Any]:
        """Check all trees, or one; return how many are whole, and which are damaged."""
        return msgspec.to_builtins(await verify(self.node, root_of(address)))

    async def restore(self, folder: str, address: str | None = None, damaged: str = "refuse") -> dict[str, Any]:
        """Put all trees of a backup back, or one; return how many, and which of the backup are damaged."""
        if not (Path(folder) / TREES).is_dir():
            raise UsageError(f"{folder!r} is not a backup: it has no folder {TREES!r}.")
        what = msgspec.convert(damaged, OnDamage)
        return msgspec.to_builtins(await restore(self.node, Path(folder), root_of(address), what))


def _doing(tree: Tree, address: Address) -> tuple[str, int]:
    actor = tree.actors.get(address)
    if actor is None:
        return "aborted" if address in tree.aborted else "asleep", 0
    return "starting" if actor.is_starting else "busy" if actor.calls else "live", len(actor.calls)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _shown(value: object) -> object:
    return f"x'{value.hex()}'" if isinstance(value, bytes) else value
