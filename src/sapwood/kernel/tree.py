"""A root with all its descendants: what is placed, written in order, limited and destroyed as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import (
    Aborted,
    NotFound,
    OverLimit,
    SapwoodError,
    Unavailable,
)
from sapwood.kernel.actor import Actor, Host, again
from sapwood.kernel.alarms import TreeAlarms
from sapwood.kernel.classes import AgentClass, resolve
from sapwood.kernel.context import Call
from sapwood.kernel.deletion import Deletion, child_stem
from sapwood.kernel.givers import Givers
from sapwood.kernel.ledger import Ledger
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.questions import TreeQuestions
from sapwood.kernel.registry import Registry
from sapwood.kernel.slices import Slices
from sapwood.kernel.spending import Spending
from sapwood.settings import Limits
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE

log = logging.getLogger(__name__)

ROOT_STEM = "root"
LABEL = "address"
"""The file in a tree's folder that says, for people and for backups, whose it is."""
DESTROYED = "destroyed"
"""A file of this name in a tree's folder is the tombstone of the whole tree."""
MEASURE_EVERY = 16
"""How many pages a database may write before it is measured again."""
NEW_DATABASE = 8 * PAGE_SIZE


class Tree:
    """The live agents of one tree, and its databases."""

    def __init__(
        self, host: Host, files: Files, folder: Path, address: Address, opened: Callable[[Tree, Database], None]
    ) -> None:
        self.host = host
        self.files = files
        self.folder = folder
        self.address = address
        self.slices = Slices(address, host.gate, host.loop)
        self.actors: dict[Address, Actor] = {}
        self.databases: dict[str, Database] = {}
        self.aborted: dict[Address, Aborted] = {}
        """Agents that were aborted, until `sub_agent` asks for them again."""
        self.kinds: dict[str, AgentClass] = {}
        """The class each type id meant when it was last used here."""
        self.destroyed: asyncio.Future[None] | None = None
        """Set once the whole tree has a tombstone; done when nothing is left of it."""
        self.is_held = False
        """Whether it was in quarantine when somebody last wanted something of it."""
        self.deletions: set[asyncio.Task[None]] = set()
        self.visitors = 0
        """How many are on their way to an agent of this tree. It may not be forgotten meanwhile: they would go on
        in a second tree over the same files."""
        self.limits = host.settings.limits
        self._copies = 0
        self._moving = asyncio.Event()
        self._moving.set()
        self._opened = opened
        self._exists = folder.exists()
        self._labelled = False
        self._measured: dict[Database, tuple[int, int]] = {}
        self._written: Database | None = None
        """The database that was written last."""
        self.root = self.database(ROOT_STEM, host.settings.limits)
        self.root_registry = Registry(self.root, host.clock)
        self.ledger = Ledger(self.root, self._estimate, self._measure_all)
        self.spending = Spending(self.root, self.slices, host.gate)
        self.givers = Givers(self.root, self.slices, host.gate)
        self.alarms = TreeAlarms(address, self.root, self.slices, host.alarms, host.gate)
        self.questions = TreeQuestions(self.root, self.slices, host.gate)
        self.kept_awake: dict[object, Actor] = {}
        """Who asked that the tree stay awake, by what they hold."""
        self.calls_done = 0
        """How many calls have ended in it."""

    def database(self, stem: str, limits: Limits, *, new: bool = False) -> Database:
        """Return the database of the agent with this file stem; one object each, whichever agent is alive."""
        database = self.databases.get(stem)
        if database is None:
            path = self.folder / f"{stem}.db"
            database = self.databases[stem] = Database(
                path,
                self.files,
                self,
                exists=not new and path.exists(),
                synced=self.host.gate.synced,
                sql_timeout=self.host.settings.sql_timeout,
                max_bytes=limits.database_bytes,
                checkpoint_frames=self.host.timings.checkpoint_frames,
                reader_frames=self.host.timings.reader_frames,
            )
            if stem == ROOT_STEM:
                database.beside = self.folder / LABEL
        return database

    def before_create(self, database: Database) -> None:
        if not self._exists:
            self.files.make_folder(self.folder)
            self._exists = True
        if not self._labelled:
            self._label()
        self._account(NEW_DATABASE, "")
        self._measured[database] = (0, NEW_DATABASE)

    def before_write(self, database: Database, sql: str) -> None:
        last, self._written = self._written, database
        if last is not None and last is not database:
            # What it wrote may be all it ever writes, and counts before anybody else may write.
            self.slices.commit()
            if last.is_open:
                self._measure(last, sql)
        size = self._measure(database, sql)
        if self.ledger.is_full(self.limits):
            self._account(0, sql)
        if size > database.max_bytes - MEASURE_EVERY * PAGE_SIZE and not _frees_space(sql):
            size = database.used_bytes()
            self._measured[database] = (database.frames, size)
            if size >= database.max_bytes - PAGE_SIZE:
                raise OverLimit(
                    f"The database has {size} bytes; the limit is {database.max_bytes}. Delete rows, or raise "
                    "Limits(database_bytes=…).",
                    limit="database_bytes",
                )
        self.slices.begin(database)

    def _measure(self, database: Database, sql: str) -> int:
        """Return how large a database was when last looked at; look again once it has written enough."""
        frames, size = self._measured.get(database, (-1, 0))
        if frames >= 0 and 0 <= database.frames - frames < MEASURE_EVERY:
            return size
        used = database.used_bytes()
        self._measured[database] = (database.frames, used)
        if frames >= 0 and used != size:  # what it held when it was opened is accounted for already
            self._account(used - size, sql)
        return used

    def _account(self, by: int, sql: str) -> None:
        try:
            if self.ledger.grow(by, self.limits, self.address.segments):
                self.slices.before_commit("grant", self.ledger.grant)
        except OverLimit:
            if not _frees_space(sql):
                raise
            self.ledger.freed()

    def _estimate(self) -> int:
        """Return what the files take on the disk: never less than they hold."""
        return sum(entry.stat().st_size for entry in self.folder.iterdir()) if self._exists else 0

    def _measure_all(self) -> int:
        """Return what all databases of the tree hold. Opens each of them, so only before a refusal."""
        names = sorted(entry.stem for entry in self.folder.iterdir() if entry.suffix == ".db")
        return sum(self.database(name, self.limits).used_bytes() for name in names)

    def whose_slice(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return None

    def _label(self) -> None:
        """Have the folder say whose it is; a crash or a new type id may have left it wrong."""
        label, text = self.folder / LABEL, str(self.address).encode()
        if not label.exists() or label.read_bytes() != text:
            self.files.remove(label)
            self.files.close(self.files.create(label, text))
        self._labelled = True

    def opened(self, database: Database) -> None:
        if not self._labelled:
            self._label()
        self.host.gate.opened(database)
        self._opened(self, database)

    def lost(self, database: Database, error: BaseException) -> None:
        self.slices.forget(database)
        if database is self.databases[ROOT_STEM]:
            self.ledger.reload()
        for actor in list(self.actors.values()):
            if actor.database is database:
                # Also without clients of its own: those of its parent are told by way of it.
                if self.host.sockets.number_of(actor.address) or actor.found(Outbox) is not None:
                    actor.of(Outbox).lose()
                self.drop(actor, Unavailable(f"{actor.address} lost a transaction and restarts: {error}"))
                # What it had done by the clock may be undone, and due again.
                self.host.alarms.look_again(self.address)

    async def reach(
        self, address: Address, kind: AgentClass | None, caller: Call | None, *, alone: bool = False
    ) -> Actor | None:
        """Return the live, started agent at this address; wake it, parents first, if it sleeps.

        `alone`: those above it are in memory then, but not started. None: the tree was destroyed or
        replaced in between, and the caller has to find the next one.
        """
        while self.destroyed is None:
            actor = self.actors.get(address) or await self._load(address, kind, caller, alone)
            if actor is not None and (actor.ready or await actor.started(caller)):
                return actor
        return None

    async def _load(self, address: Address, kind: AgentClass | None, caller: Call | None, alone: bool) -> Actor | None:
        """Return the agent at this address, about to start; None if the world may have changed meanwhile."""
        parent_address = address.parent
        if parent_address is None:
            return self.make_root(kind)
        if alone:
            parent = self.actors.get(parent_address) or await self._load(parent_address, None, caller, alone)
        else:
            parent = await self.reach(parent_address, None, caller)
        if parent is None or parent.dropped is not None:
            return None
        return self.actors.get(address) or await self._wake_child(parent, address, kind)

    def has(self, address: Address) -> bool:
        """Return whether an agent was made and not deleted; none is woken."""
        stem = ROOT_STEM
        for step in address.segments[1:]:
            kind = self.kinds.get(step.type)
            aliases = kind.aliases if kind is not None else ()
            registry = Registry(self.database(stem, self.limits), self.host.clock)
            row = registry.find((step.type, *aliases), step.name) if self.destroyed is None else None
            if row is None:
                return False
            stem = child_stem(stem, row.generation)
        return self.destroyed is None and self.root.exists

    @property
    def stays_awake(self) -> bool:
        """Whether it was asked for."""
        for hold in [hold for hold, actor in self.kept_awake.items() if actor.dropped is not None]:
            del self.kept_awake[hold]
        return bool(self.kept_awake)

    def make_root(self, kind: AgentClass | None) -> Actor:
        kind = kind or self.kind_of(self.address.type)
        self.kinds[kind.type] = kind
        self.limits = limits = self._limits(kind, self.host.settings.limits)
        database = self.database(ROOT_STEM, limits)
        database.limit(limits.database_bytes)
        actor = Actor(
            self,
            self.address,
            kind,
            parent=None,
            stem=ROOT_STEM,
            generation=0,
            created_at=0.0,
            limits=limits,
            database=database,
        )
        self.actors[self.address] = actor
        return actor

    async def _wake_child(self, parent: Actor, address: Address, kind: AgentClass | None) -> Actor | None:
        """Return the child, about to start; None if the world may have changed meanwhile."""
        aborted = self.aborted.get(address)
        if aborted is not None:
            raise again(aborted)
        kind = kind or parent.kind.brought(address.type) or self.kinds.get(address.type)
        aliases = kind.aliases if kind is not None else ()
        row = parent.registry.find((address.type, *aliases), address.name)
        if row is None:
            raise NotFound(
                f"{parent.address} has no {address.type} named {address.name!r}. "
                f"Only {parent.address.type} can create it, with sub_agent().",
                path=address.segments,
            )
        if (waiting := self.until_named(parent, row.generation)) is not None:
            await waiting
            # Not waited for again: under steady writing there would be no end.
            if parent.dropped is not None or address in self.actors or address in self.aborted:
                return None
            if parent.registry.find((row.type,), row.name) != row:
                return None
        return self.make_child(
            parent, kind or self.kind_of(address.type, parent.kind), row.name, row.generation, row.created_at
        )

    def until_named(self, parent: Actor, generation: int) -> asyncio.Future[None] | None:
        """Return what to await before this child may have a file: under `disk` none outlives the row that names it."""
        if not self.host.gate.synced or (self.folder / f"{child_stem(parent.stem, generation)}.db").exists():
            return None
        return parent.to_leave()

    def make_child(
        self, parent: Actor, kind: AgentClass, name: str, generation: int, created_at: float, *, new: bool = False
    ) -> Actor:
        self.kinds[kind.type] = kind
        address = parent.address.child(kind.type, name)
        stem = child_stem(parent.stem, generation)
        limits = self._limits(kind, parent.limits)
        database = self.database(stem, limits, new=new)
        # Whoever looked at it while it slept did not know its class's limits.
        database.limit(limits.database_bytes)
        actor = Actor(
            self,
            address,
            kind,
            parent=parent,
            stem=stem,
            generation=generation,
            created_at=created_at,
            limits=limits,
            database=database,
        )
        self.actors[address] = actor
        parent.children[address.segments[-1]] = actor
        return actor

    def kind_of(self, type_id: str, parent: AgentClass | None = None) -> AgentClass:
        """Return the class that a type id means here, or as a child of this class, which may name those it uses."""
        brought = None if parent is None else parent.brought(type_id)
        return brought or self.kinds.get(type_id) or resolve(type_id)

    def _limits(self, kind: AgentClass, above: Limits) -> Limits:
        return above if kind.limits is None else kind.limits.within(above)

    def drop(self, actor: Actor, error: SapwoodError) -> None:
        """End this incarnation and those below it, at once; what they committed stays."""
        doomed = self.detach(actor)
        for one in doomed:
            one.end(error)
            one.children.clear()
        if any(call.work is not None for one in doomed for call in one.calls):
            # What they did is due still, if they are not gone for good.
            self.host.alarms.look_again(self.address)
        me = self.whose_slice()
        # First all are marked, then all are told: nobody unwinds into a neighbour that still believes it lives.
        for one in doomed:
            for call, task in list(one.calls.items()):
                if task is me:
                    continue  # it learns of it by the exception it is about to get
                reply = call.reply
                inside = call.caller is not None and call.caller.actor in doomed
                if reply is not None and not reply.done() and not inside:
                    reply.set_exception(again(error))
                    reply.exception()
                one.cancel(call)

    def drop_unstarted(self, actor: Actor, error: SapwoodError) -> None:
        """End an incarnation that could not start. Those below it go on: an alarm may have woken them without it."""
        children = dict(actor.children)
        actor.children.clear()
        self.drop(actor, error)
        if not children:
            return
        # They need somebody above them, who is started when next asked for.
        if actor.parent is None:
            anew = self.make_root(actor.kind)
        else:
            anew = self.make_child(actor.parent, actor.kind, actor.address.name, actor.generation, actor.created_at)
        anew.children = children
        for child in children.values():
            child.parent = anew

    def detach(self, actor: Actor) -> list[Actor]:
        """Make an agent and those below it unreachable, and return them; what runs in them runs on."""
        found = self.live_below(actor)
        for one in found:
            one.ready = False
            one.detached = True
            if self.actors.get(one.address) is one:
                del self.actors[one.address]
        siblings = actor.parent.children if actor.parent is not None else {}
        if siblings.get(actor.address.segments[-1]) is actor:
            del siblings[actor.address.segments[-1]]
        return found

    def live_below(self, actor: Actor) -> list[Actor]:
        """Return this agent and its descendants in memory, lowest first."""
        found: list[Actor] = []
        for child in list(actor.children.values()):
            found.extend(self.live_below(child))
        found.append(actor)
        return found

    def abort(self, address: Address, reason: object) -> None:
        """Stop an agent and those below it; they answer again once `sub_agent` asks for it again."""
        error = Aborted(reason, path=address.segments)
        self.aborted[address] = error
        actor = self.actors.get(address)
        if actor is not None:
            self.drop(actor, error)

    def forget_aborts(self, address: Address) -> None:
        """An agent is being deleted: no abort of it, or of one below it, is remembered."""
        for one in [one for one in self.aborted if one == address or one.is_below(address)]:
            del self.aborted[one]

    def sleep(self, actor: Actor) -> None:
        """Forget an idle agent; its next call wakes it."""
        self.slices.commit()
        actor.asleep = True
        self.drop(actor, Unavailable(f"{actor.address} is asleep. Get it again with sub_agent() or get_agent()."))
        if self.close_database(actor.database) and actor.parent is not None:
            self.databases.pop(actor.stem).let_go = True

    def close_database(self, database: Database) -> bool:
        """Close a database if nothing of it is under way; return whether it is closed now."""
        if database.in_use or not self.host.gate.is_quiet(database):
            return False
        measured = self._measured.pop(database, None)
        if measured is not None and measured[0] != database.frames and database.is_open:
            # It is written already: too late to refuse.
            self._account(database.used_bytes() - measured[1], "DELETE")
        database.close()
        self.host.gate.forget(database)
        return True

    @contextmanager
    def visited(self) -> Generator[None, None, None]:
        """Keep the tree from being forgotten: a task that still uses it would open its files a second time."""
        self.visitors += 1
        try:
            yield
        finally:
            self.visitors -= 1

    @property
    def is_quiet(self) -> bool:
        busy = self.actors or self.deletions or self.aborted or self.visitors or self._copies
        return not busy and self.destroyed is None

    def close(self) -> bool:
        """Close every database that can be; return whether all are, and for good."""
        self.slices.commit()
        # The root last: it keeps the account that closing the others adds to.
        root, *others = self.databases.values()
        closed = [self.close_database(database) for database in others]
        self.ledger.settle()
        self.slices.commit()
        is_closed = self.close_database(root) and all(closed)
        if is_closed:
            for database in self.databases.values():
                database.let_go = True
        return is_closed

    def die(self, error: SapwoodError) -> None:
        """Forget everything that was not committed, and let go of the files, as the end of a process does."""
        self.slices.ended = error
        for database in self.databases.values():
            self.slices.forget(database)
        for actor in list(self.actors.values()):
            self.drop(actor, error)
        for database in self.databases.values():
            database.close()

    @contextmanager
    def kept_still(self) -> Generator[None, None, None]:
        """Let no file of the tree change but by growing, and none vanish; agents work on."""
        self._copies += 1
        self.slices.may_checkpoint = False
        self._moving.clear()
        try:
            yield
        finally:
            self._copies -= 1
            if not self._copies:
                self.slices.may_checkpoint = True
                self._moving.set()

    async def may_remove(self) -> None:
        """Return when files may be removed."""
        await self._moving.wait()

    def resume_deletions(self, actor: Actor) -> None:
        """Go on with deletions that a crash interrupted."""
        for row in actor.registry.buried():
            self.delete_in_background(actor, row.generation, actor.address.child(row.type, row.name))

    def delete_in_background(self, parent: Actor, generation: int, address: Address) -> asyncio.Task[None]:
        task = self.host.loop.create_task(
            Deletion(self).finish(parent, generation, address), context=self.host.context.copy()
        )
        self.deletions.add(task)
        task.add_done_callback(self._deleted)
        return task

    def _deleted(self, task: asyncio.Task[None]) -> None:
        self.deletions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("deletion interrupted: %s", self.address, extra={"root": str(self.address)}, exc_info=error)


def _frees_space(sql: str) -> bool:
    return sql.lstrip()[:6].upper() in ("DELETE", "DROP T")
