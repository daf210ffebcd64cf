"""What an operator may ask of a running node: who lives here, what they hold, and to do something to them.

Looking at an agent does not wake it. Over HTTP all of it stands below `/_sapwood/`, and
answers only clients with the token that the server wrote into its data folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from sapwood.address import Address
from sapwood.errors import (
    Crashed,
    InvalidArguments,
    NotFound,
    SapwoodError,
    Unavailable,
    UnknownAgent,
    UsageError,
)
from sapwood.kernel.actor import Actor, row_id
from sapwood.kernel.backup import backup, restore, root_of
from sapwood.kernel.classes import resolve
from sapwood.kernel.context import as_operator
from sapwood.kernel.copying import json_hook, unjson_hook
from sapwood.kernel.deletion import child_stem
from sapwood.kernel.method_schemas import method_list
from sapwood.kernel.node import Node, roots_in
from sapwood.kernel.pending_work import pending_work
from sapwood.kernel.ports import Exchange
from sapwood.kernel.registry import Registry
from sapwood.kernel.tree import ROOT_STEM, Tree
from sapwood.storage.database import Database
from sapwood.web.asgi import ASGI, Receive, Scope, Send
from sapwood.web.carrying import answer_relayed, relay_to
from sapwood.web.counting import busiest, counted, name_of, silent
from sapwood.web.errors import status_of
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.routed import Routed
from sapwood.wire import frames

log = logging.getLogger(__name__)

PREFIX = "/_sapwood/"
OPERATE = "operate"
PATIENCE = 3.0
"""Seconds that another process is given to say what it knows; one that is stuck is left out."""
AT_ONCE = 1.0
"""And how many if it is asked again and again."""
FILE = "operator.json"
"""The file in the data folder that says where the running server is, and its token."""
MOST_AGENTS = 500
MOST_ROWS = 10_000
PAGE = 256
ANYWHERE = ("backup", "restore", "release")
"""What any of several nodes does: copies find their way by themselves, and strikes are read or told by all."""
ALL = "all"
"""Said in place of the id of a dead letter."""
SOME = 5
"""Of the children of an agent, so many are named in an error."""
BODY_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Branch:
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
    below: list[Branch] = field(default_factory=list["Branch"])
    """Its children, as many as are shown; `children` counts all."""


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


@dataclass(frozen=True, slots=True)
class Run:
    """A run that an agent has given, as an operator sees it."""

    id: str
    agent: str
    """The sub-agent that did it, or does."""
    status: str
    started_at: str | None
    """As ISO 8601."""
    ended_at: str | None
    bytes: int
    """What the sub-agent holds, with all below it, when last measured."""
    pinned: bool


class Operator:
    """Looks at the agents of one node, and acts on them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def tree(
        self, address: str | None = None, *, agents: int = MOST_AGENTS, children: int = 50
    ) -> dict[str, Any]:
        """Return the trees, or an agent and those below it; at most so many agents, and children of each."""
        left = [agents]
        if address is not None:
            found = [await self._seen(Address.parse(address), left, children)]
            total = 1
        else:
            everybody = sorted({*roots_in(self._node.folder), *self._node.trees}, key=str)
            everybody = [root for root in everybody if self._node.owns(root) and await self._node.exists(root)]
            total = len(everybody)
            found = [await self._root(root, left, children) for root in everybody[:agents]]
        return {
            "roots": [asdict(branch) for branch in found],
            "count": total,
            "sockets": self._node.sockets.count,
            "ready": self._node.is_ready,
        }

    def top(self, *, trees: int = 20) -> dict[str, Any]:
        """Return what the process uses and does, and its busiest trees."""
        slow = [
            {"method": method, "worker": name_of(self._node), "times": times, "seconds": longest}
            for method, (times, longest) in list(self._node.watchdog.slow.items())
        ]
        return {
            "workers": [asdict(counted(self._node))],
            "busiest": [asdict(one) for one in busiest(self._node, trees)],
            "slow": slow,
        }

    async def _root(self, root: Address, left: list[int], children: int) -> Branch:
        try:
            return await self._seen(root, left, children)
        except SapwoodError as error:
            return Branch(str(root), "asleep", last_error=str(error))

    async def _seen(self, address: Address, left: list[int], children: int) -> Branch:
        tree, found, stem = await self._find(address)
        tree.visitors += 1  # or it may be forgotten meanwhile, and its files opened twice
        try:
            branch = await self._branch(tree, found, stem, left, children)
        finally:
            tree.visitors -= 1
        if tree.is_held and (error := self._node.held_back(found.root)) is not None:
            branch.status, branch.last_error = "quarantined", str(error)
        return branch

    async def _find(self, address: Address) -> tuple[Tree, Address, str]:
        """Return the tree of an agent and the name of its file. It stays asleep if it is."""
        if not await self._node.exists(address.root):
            raise NotFound(f"{address} does not exist: {self._no_root(address)}", path=address.segments)
        tree = await self._node.brought(address.root, only_files=True)
        stem, here = ROOT_STEM, address.root
        for step in address.segments[1:]:
            row = self._registry(tree, stem).find((step.type,), step.name)
            if row is None:
                why = self._no_child(tree, stem, here, f"{step.type}:{step.name}")
                raise NotFound(f"{address} does not exist: {why}", path=address.segments)
            stem, here = child_stem(stem, row.generation), here.child(*step)
        return tree, here, stem

    def _no_root(self, address: Address) -> str:
        """Say why the root of an agent does not exist, and what would make it."""
        root = address.root
        roots = [known.type for known in self._node.roots]
        if roots and all(root.type not in known.type_ids for known in self._node.roots):
            return f"{root.type} is not a root of this app. Roots: {', '.join(roots)}."
        who = "it" if root == address else str(root)
        return f"{who} has not been created yet. The first page, socket or call creates it."

    def _no_child(self, tree: Tree, stem: str, parent: Address, missing: str) -> str:
        """Say that a child was not made yet, or was deleted, and which there are."""
        registry = self._registry(tree, stem)
        alive = registry.count()
        known = ", ".join(f"{child.type}:{child.name}" for child in registry.page(None, 0, SOME))
        more = f" and {alive - SOME} more" if alive > SOME else ""
        has = f"It has {known}{more}." if alive else "It has no children."
        return f"{parent} has not created {missing}, or has deleted it. {has}"

    def _database(self, tree: Tree, stem: str) -> Database:
        return tree.database(stem, tree.limits)

    def _registry(self, tree: Tree, stem: str) -> Registry:
        return Registry(self._database(tree, stem), self._node.clock)

    async def _branch(self, tree: Tree, address: Address, stem: str, left: list[int], children: int) -> Branch:
        left[0] -= 1
        database = self._database(tree, stem)
        branch = Branch(
            str(address),
            *_doing(tree, address),
            sockets=self._node.sockets.number_of(address),
            bytes=_size(database.path) + _size(database.wal),
        )
        if not database.exists:
            return branch
        branch.children = self._registry(tree, stem).count()
        work = pending_work(database)
        branch.queued_calls, branch.runs, branch.fibers = work.queued_calls, work.runs, work.fibers
        branch.next_schedule_at = _time(work.next_schedule_at)
        for child in self._registry(tree, stem).page(None, 0, children) if branch.children else ():
            if left[0] <= 0:
                break
            await asyncio.sleep(0)  # to look must not hold up those who work
            if tree.destroyed is not None:
                break
            below = address.child(child.type, child.name), child_stem(stem, child.generation)
            try:
                branch.below.append(await self._branch(tree, *below, left, children))
            except NotFound:
                continue  # deleted meanwhile
        return branch

    async def state(self, address: str) -> Any:
        """Return the state an agent has stored; that of its class if it has not set one yet."""
        tree, found, stem = await self._find(Address.parse(address))
        tree.slices.commit()
        database = self._database(tree, stem)
        if database.exists and _has_table(database, "sapwood_state"):
            _, rows = database.look("SELECT value FROM sapwood_state", (), 1)
            if rows:
                return msgspec.json.decode(rows[0][0])
        try:
            kind = tree.kinds.get(found.type) or resolve(found.type, self._node.roots)
        except UnknownAgent:
            text = f"{found} has not set its state yet, and only a running server knows its initial state."
            raise NotFound(text, path=found.segments) from None
        return msgspec.to_builtins(getattr(kind.cls, "initial_state", None), enc_hook=json_hook)

    async def methods(self, address: str) -> bytes:
        """Return the exposed methods of an agent as JSON, with their schemas. The agent is not woken."""
        tree, found, _ = await self._find(Address.parse(address))
        return method_list(tree.kinds.get(found.type) or resolve(found.type, self._node.roots))

    async def sql(self, address: str, sql: str, arguments: list[Any], *, write: bool = False) -> dict[str, Any]:
        """Run a statement on an agent's database. Unless `write`, it can only read, and the agent is not woken."""
        tree, found, stem = await self._find(Address.parse(address))
        if write:
            rows = await self._as_call(await self._reach(found), sql, arguments)
            columns, values = tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows]
        else:
            tree.slices.commit()
            database = self._database(tree, stem)
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

    async def _reach(self, address: Address) -> Actor:
        if address.parent is None:
            return await self._node.reach(address, resolve(address.type, self._node.roots), None)
        return await self._node.reach(address, None, None)

    async def call(self, address: str, method: str, arguments: list[Any]) -> AsyncIterator[bytes]:
        """Call a public method with JSON arguments; yields the result as JSON, or each item of a stream."""
        where = Address.parse(address)
        if not any(where.segments[0].type in kind.type_ids for kind in self._node.roots):
            names = ", ".join(kind.type for kind in self._node.roots) or "none"
            raise UnknownAgent(f"{where.segments[0].type} is not a root of this app. Roots: {names}.")
        actor = await self._reach(where)
        called = actor.kind.method(method)
        stub = self._node.stub_of(actor)
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

    async def dead_letters(self, address: str | None = None, *, below: bool = False) -> dict[str, Any]:
        """Return the calls that were given up: of one agent, with `below` of those below it too, or of all."""
        found: list[Letter] = []
        unread: list[dict[str, str]] = []
        if address is not None:
            first = Address.parse(address)
            tree, here, stem = await self._find(first)
            found += self._letters(tree, here, stem)
            roots = [here.root] if below else []
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
        return await self._with_letters(address, id, below, "replay")

    async def delete_letters(self, address: str, id: str, *, below: bool = False) -> int:
        """Forget what was given up: one dead letter by its id, or `all`. Wakes the agent. Return how many."""
        return await self._with_letters(address, id, below, "delete")

    async def _with_letters(self, address: str, id: str, below: bool, act: str) -> int:
        letters = (await self.dead_letters(address, below=below))["letters"]
        meant = [letter for letter in letters if id in (ALL, letter["id"])]
        if not meant and (id != ALL or not letters):
            there = ", ".join(letter["id"] for letter in letters[:10]) or "none"
            what = "no dead letters" if id == ALL else f"no dead letter {id!r}. There are: {there}"
            raise NotFound(f"{address} has {what}.", path=Address.parse(address).segments)
        done = 0
        for letter in meant:
            actor = await self._reach(Address.parse(letter["agent"]))
            done += getattr(actor.agent.dead_letters, act)(letter["id"])
            await actor.leave()
        return done

    async def _with_dead_letters(self) -> list[Address]:
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
        return now if not await self._node.exists(root) else root

    async def _letters_within(self, root: Address, first: Address | None) -> list[Letter]:
        """Return the dead letters of a tree, or of those below an agent of it."""
        if not await self._node.exists(root):
            return []  # destroyed, and the index does not know it yet
        tree = await self._node.brought(root, only_files=True)
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
                        _, here, stem = await self._find(owner)
                        found += self._letters(tree, here, stem)
        finally:
            tree.visitors -= 1
        return found

    def _letters(self, tree: Tree, address: Address, stem: str) -> list[Letter]:
        tree.slices.commit()
        database = self._database(tree, stem)
        if not database.exists or not _has_table(database, "sapwood_dead_letters"):
            return []
        _, rows = database.look(
            "SELECT number, method, arguments, code, error, attempts, occurrences, failed_at FROM sapwood_dead_letters"
            " ORDER BY number",
            (),
            MOST_ROWS + 1,
        )
        return [
            Letter(
                row_id(number, address, stem),
                str(address),
                method,
                msgspec.to_builtins(msgspec.msgpack.decode(arguments), str_keys=True, enc_hook=repr),
                code,
                error,
                attempts,
                occurrences,
                str(_time(failed_at)),
            )
            for number, method, arguments, code, error, attempts, occurrences, failed_at in rows
        ]

    async def runs(self, address: str, status: str | None = None) -> dict[str, Any]:
        """Return the runs that an agent has given and keeps, in that order; with `status`, only those."""
        tree, _, stem = await self._find(Address.parse(address))
        tree.slices.commit()
        database = self._database(tree, stem)
        rows: list[Any] = []
        if database.exists and _has_table(database, "sapwood_runs"):
            _, rows = database.look(
                "SELECT id, type, name, status, started_at, ended_at, bytes, pinned FROM sapwood_runs"
                " WHERE ?1 IS NULL OR status = ?1 ORDER BY number",
                (status,),
                MOST_ROWS + 1,
            )
        found = [
            Run(id, f"{type_}:{name}", status, _time(started_at), _time(ended_at), size, bool(pinned))
            for id, type_, name, status, started_at, ended_at, size, pinned in rows
        ]
        return {"runs": [asdict(run) for run in found[:MOST_ROWS]], "more": len(found) > MOST_ROWS}

    async def decisions(self, address: str) -> dict[str, Any]:
        """Return the decisions about tool calls of an agent and of all below it, as they are stored. Wakes no agent."""
        tree, found, stem = await self._find(Address.parse(address))
        agents: list[dict[str, Any]] = []
        to_visit, count = [(found, stem)], 0
        tree.visitors += 1
        try:
            while to_visit and tree.destroyed is None and count <= MOST_ROWS:
                await asyncio.sleep(0)  # other agents have their turn
                owner, stem = to_visit.pop()
                tree.slices.commit()
                database = self._database(tree, stem)
                if not database.exists:
                    continue
                if _has_table(database, "sapwood_decisions"):
                    columns, rows = database.look("SELECT * FROM sapwood_decisions ORDER BY number", (), MOST_ROWS + 1)
                    count += len(rows)
                    told = [dict(zip(columns, row, strict=True)) for row in rows]
                    agents.append({"address": str(owner), "decisions": told})
                children, after = self._registry(tree, stem), 0
                while page := children.page(None, after, PAGE):
                    to_visit += [(owner.child(one.type, one.name), child_stem(stem, one.generation)) for one in page]
                    after = page[-1].generation
        finally:
            tree.visitors -= 1
        return {"agents": agents, "more": count > MOST_ROWS}

    def release(self, address: str) -> None:
        """Let the tree of an agent run again that was put in quarantine."""
        root = Address.parse(address).root
        if not self._node.strikes.release(root):
            raise NotFound(f"{root} is not in quarantine, and has no strikes.", path=root.segments)

    async def backup(self, folder: str, address: str | None = None) -> int:
        """Copy all trees, or one, into a folder; return how many."""
        return await backup(self._node, Path(folder), root_of(address))

    async def restore(self, folder: str, address: str | None = None) -> int:
        """Put all trees of a backup back, or one; return how many."""
        if not (Path(folder) / "trees").is_dir():
            raise UsageError(f"{folder!r} is not a backup: it has no folder 'trees'.")
        return await restore(self._node, Path(folder), root_of(address))


class OperatorDoor:
    """Stands before an ASGI application, and answers what is below `/_sapwood/` itself."""

    def __init__(self, app: ASGI, node: Callable[[], Node], token: str) -> None:
        self._app = app
        self._node = node
        self._token = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._when_started(send))
            return
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        given = request.headers.get("authorization", "").encode("latin-1")
        if (refused := cross_origin_refusal(request, self._node().settings)) is not None:
            await refused(scope, receive, send)
            return
        if not hmac.compare_digest(given, self._token):
            response: Response = JSONResponse({"error": "This request needs the token in operator.json."}, 401)
        else:
            response = await self._answer(request)
        await response(scope, receive, send)

    def _when_started(self, send: Send) -> Send:
        async def started(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete" and (far := self._node().far) is not None:
                answer_relayed(far.transport, OPERATE, self._asked_by_another)
            await send(message)

        return started

    def _asked_by_another(self, message: bytes) -> ASGI:
        what, asked = msgspec.msgpack.decode(message, type=tuple[str, dict[str, Any]])

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await (await self._answered(self._do(what, asked)))(scope, receive, send)

        return answer

    async def _answer(self, request: Request) -> Response:
        return await self._answered(self._read(request))

    async def _read(self, request: Request) -> Response:
        asked = await _body(request)
        what = request.url.path.removeprefix(PREFIX)
        far, address = self._node().far, asked.get("address")
        if far is None or what in ANYWHERE:
            return await self._do(what, asked)
        message = msgspec.msgpack.encode((what, asked))
        if address is None:
            others = await far.others()
            patience = AT_ONCE if what == "top" else PATIENCE
            asking = (_collected(far.transport.open(node, OPERATE, message), patience) for node in others)
            answers = await asyncio.gather(*asking)
            missing = [node for node, answer in zip(others, answers, strict=True) if answer is None]
            own = _json(await self._do(what, asked))
            together = _together([own, *filter(None, answers)]) | {"unanswered": missing}
            together["called"] = "worker" if self._node().keeper is None else "node"
            if what == "top":
                together["silent"] = [asdict(silent(far, self._node().folder, node)) for node in missing]
            if what == "tree":
                del together["roots"][int(asked.get("agents", MOST_AGENTS)) :]
            return JSONResponse(together)
        root = Address.parse(str(address)).root
        if self._node().owns(root):
            return await self._do(what, asked)
        return Routed(partial(relay_to, far, root, OPERATE, message))

    async def _answered(self, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except SapwoodError as error:
            return JSONResponse({"error": str(error), "code": error.code}, status_of(error))
        except (OSError, TypeError, ValueError, KeyError) as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

    async def _do(self, what: str, asked: dict[str, Any]) -> Response:
        operator = Operator(self._node())
        address: Any = asked.get("address")
        if what == "tree":
            sizes = {name: int(asked[name]) for name in ("agents", "children") if name in asked}
            return JSONResponse(await operator.tree(address, **sizes))
        if what == "top":
            return JSONResponse(operator.top(trees=int(asked.get("trees", 20))))
        if what == "state":
            return JSONResponse({"state": await operator.state(str(address))})
        if what == "methods":
            return Response(await operator.methods(str(address)), media_type="application/json")
        if what == "sql":
            arguments = cast("list[Any]", asked.get("arguments") or [])
            write = asked.get("write") is True
            return JSONResponse(await operator.sql(str(address), str(asked["sql"]), arguments, write=write))
        if what == "call":
            answer = operator.call(str(address), str(asked["method"]), cast("list[Any]", asked.get("arguments") or []))
            return StreamingResponse(_lines(answer), media_type="application/x-ndjson")
        if what == "dead-letters":
            return JSONResponse(await self._letters(operator, address, asked))
        if what == "runs":
            return JSONResponse(await operator.runs(str(address), asked.get("status")))
        if what == "decisions":
            return JSONResponse(await operator.decisions(str(address)))
        if what == "release":
            operator.release(str(address))
            return JSONResponse({})
        if what == "backup":
            return JSONResponse({"trees": await operator.backup(str(asked["folder"]), address)})
        if what == "restore":
            return JSONResponse({"trees": await operator.restore(str(asked["folder"]), address)})
        return JSONResponse({"error": f"Unknown operator request {what!r}."}, 404)

    async def _letters(self, operator: Operator, address: str | None, asked: dict[str, Any]) -> dict[str, Any]:
        below = asked.get("below") is True
        if asked.get("replay") is not None:
            return {"done": await operator.replay(str(address), str(asked["replay"]), below=below)}
        if asked.get("delete") is not None:
            return {"done": await operator.delete_letters(str(address), str(asked["delete"]), below=below)}
        return await operator.dead_letters(address, below=below)


async def _collected(opening: Awaitable[Exchange], patience: float) -> dict[str, Any] | None:
    """Return what another node answers; None if it does not soon enough, or cannot."""
    body = b""
    try:
        async with asyncio.timeout(patience):
            exchange = await opening
            while (message := await exchange.receive()) is not None:
                body += msgspec.msgpack.decode(message, type=dict[str, Any]).get("body", b"")
    except (Unavailable, TimeoutError):
        return None
    answer = msgspec.json.decode(body, type=dict[str, Any])
    return None if "error" in answer else answer


def _json(response: Response) -> dict[str, Any]:
    return msgspec.json.decode(bytes(response.body), type=dict[str, Any])


def _together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what several nodes say as one answer: lists are joined, numbers added."""
    joined: dict[str, Any] = {}
    for answer in answers:
        for key, value in answer.items():
            if isinstance(value, bool):
                joined[key] = value and joined.get(key, True) if key == "ready" else value or joined.get(key, False)
            elif isinstance(value, int | list):
                joined[key] = joined[key] + value if key in joined else value
            else:
                joined[key] = value
    if "roots" in joined:
        joined["roots"].sort(key=itemgetter("address"))
    return joined


async def _lines(answer: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield results as lines of JSON; the last one says that it is done, or what went wrong.

    The status has been sent by then, and a connection that broke looks like one that ended.
    """
    try:
        async for item in answer:
            yield b'{"result":' + item + b"}\n"
        yield b'{"done":true}\n'
    except SapwoodError as error:
        # What the user's own code raised keeps its name; ours are sentences.
        text = f"{type(error).__name__}: {error}" if isinstance(error, Crashed) else str(error)
        yield json.dumps({"error": text, "code": error.code}).encode() + b"\n"
    except Exception as error:  # noqa: BLE001 - whatever the user's method raised; the operator may know it
        yield json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise InvalidArguments(f"The body of a request must have at most {BODY_BYTES} bytes.")
    try:
        return frames.read_json(body, dict[str, Any]) if body else {}
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"The body of a request must be a JSON object: {error}.") from None


def _doing(tree: Tree, address: Address) -> tuple[str, int]:
    actor = tree.actors.get(address)
    if actor is None:
        return "aborted" if address in tree.aborted else "asleep", 0
    return "starting" if actor.is_starting else "busy" if actor.calls else "live", len(actor.calls)


def _has_table(database: Database, name: str) -> bool:
    return bool(database.look("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,), 1)[1])


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _shown(value: object) -> object:
    return f"x'{value.hex()}'" if isinstance(value, bytes) else value
