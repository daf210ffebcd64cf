"""The sessions of a tree on other servers: their names, and how their runs are stopped. Kept at the root.

A session is stored before its run is started there, and deleted once the other server reports the
end. So the root can stop the run after the agents that used it are deleted: the stop is a fiber of
the root, which survives crashes and retries until the other server answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from asyncio import Future
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.capabilities.due_work import Agenda
from sapwood.errors import Refused, RemoteRefused, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.tree_index import OWN_AND_BELOW
from sapwood.kernel.trees.tree import tree_of
from sapwood.randomness import Random
from sapwood.runs.execution.run_journal import RunJournals
from sapwood.runs.remote.remote_run import RemoteAgent, open_run
from sapwood.runs.tables import executed_runs_table
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

log = logging.getLogger(__name__)

REMOTE = Schema("sapwood.runs", "remote")
DELETED, DESTROYED, FAILED = "deleted", "destroyed", "failed"
"""Why runs are stopped whose caller is deleted or destroyed, or can no longer read them."""
SEND_STOP = "_sapwood_send_stop"
"""The method whose fibers stop runs of other servers."""
SOON = 0.1
MOST_BACK_OFF = 30.0
LAST_TRY = 24 * 3600.0
"""Seconds after which a server that cannot be reached is not tried any more."""
LONGEST = 200
"""Characters of a session's name that say whose it is; names have to fit into 512 bytes."""


class RemoteSessions:
    """The sessions of one tree."""

    def __init__(self, root: Actor) -> None:
        self._root = root
        self._db = root.database
        self._secret: bytes | None = None
        """The secret of the tree, from when it was first asked for; it may not be stored yet."""
        self._stops: dict[str, Future[None]] = {}
        """The stops that were not delivered yet, by session."""
        self._is_closing = False
        """Whether the root is about to be destroyed."""

    @staticmethod
    def of(actor: Actor) -> RemoteSessions:
        """Return the sessions of the tree that an agent belongs to."""
        *_, root = actor.lineage()
        return root.of(RemoteSessions)

    def name(self, caller: Actor, run: str, cleared: int) -> str:
        """Return the name of a run's session: always the same for the same run of the same agent.

        `cleared` is how often a run with this id was cleared. Clients that name a session can read all
        of it, so the name depends on a secret. A file stem is never used twice: another agent with the
        address of a deleted one has other sessions.
        """
        key = "\n".join((caller.stem, str(cleared), run))
        digest = hmac.new(self._secret_for(caller), key.encode(), hashlib.sha256).hexdigest()[:32]
        whose = re.sub(r"[^A-Za-z0-9._~-]+", "-", f"{caller.birthplace}-remote-{run}")[:LONGEST]
        return f"{whose}-{digest}"

    def _secret_for(self, caller: Actor) -> bytes:
        """Return the secret of the tree. If there is none, it is stored before the caller's next commit."""
        if self._db.has(REMOTE) and (rows := self._db.execute("SELECT secret FROM sapwood_remote_secret")):
            return rows[0][0]
        secret = self._secret = self._secret or caller.host.random.randbytes(32)
        if caller is self._root:
            self._store_secret(secret, self._db)
        else:
            caller.home.slices.before_commit("remote secret", lambda: self._store_secret(secret, caller.database))
        return secret

    def _store_secret(self, secret: bytes, before: Database) -> None:
        self._db.begin()
        self._db.ensure(REMOTE)
        self._db.execute("INSERT INTO sapwood_remote_secret VALUES (1, ?) ON CONFLICT DO NOTHING", secret)
        self._commit_before(before)

    def add(self, stand_in: Actor, session: str) -> None:
        """Store a session, before its run is started."""
        if self._is_closing:
            raise Refused(f"{self._root.address} is being destroyed.")
        self._db.begin()
        self._db.ensure(REMOTE)
        self._db.execute(
            "INSERT INTO sapwood_remote_sessions (owner, session) VALUES (?, ?)"
            " ON CONFLICT (owner) DO UPDATE SET session = ?2, memo = CASE WHEN session = ?2 THEN memo END",
            str(stand_in.birthplace),
            session,
        )
        self._commit_before(stand_in.database)

    def memo(self, owner: Address) -> str | None:
        """Return what the transport of an agent has stored."""
        rows = self._db.execute("SELECT memo FROM sapwood_remote_sessions WHERE owner = ?", self._owner(owner))
        return rows[0][0] if rows else None

    def store_memo(self, stand_in: Actor, text: str) -> None:
        """Store what the transport of an agent wants to be reminded of. No limit refuses it."""
        self._db.begin()
        self._db.execute("UPDATE sapwood_remote_sessions SET memo = ? WHERE owner = ?", text, str(stand_in.birthplace))
        self._commit_before(stand_in.database)

    def _owner(self, agent: Address) -> str:
        """Return what the rows of an agent name: its first address, which stays when the tree is moved."""
        return str(self._root.home.birthplace_of(agent))

    def remove(self, owner: Address) -> None:
        """Delete the session of an agent: its run is over, or was never started."""
        self._db.begin()
        self._db.execute("DELETE FROM sapwood_remote_sessions WHERE owner = ?", self._owner(owner))

    def stop(self, address: Address, reason: str, by: Actor) -> None:
        """Stop the remote runs of an agent and of all below it. Stored before the next commit of `by`."""
        if not self._db.has(REMOTE):
            return
        rows = self._db.execute(
            f"SELECT owner, session, memo FROM sapwood_remote_sessions WHERE {OWN_AND_BELOW}",  # noqa: S608 - ours
            self._owner(address),
        )
        if not rows:
            return
        self._db.begin()  # first, because no limit refuses a stop
        fibers, until = self._root.of(Agenda).fibers, self._root.host.clock.now() + LAST_TRY
        for owner, session, memo in rows:
            self._db.execute("DELETE FROM sapwood_remote_sessions WHERE owner = ?", owner)
            self._stops.setdefault(session, self._root.host.loop.create_future())
            fibers.launch(f"stop {owner}", SEND_STOP, owner, session, reason, until, memo)
        self._commit_before(by.database)

    def _commit_before(self, other: Database) -> None:
        """Commit what was written at the root, so that it is durable before what is written in `other`."""
        if other is not self._db:
            self._root.home.slices.commit()
            self._root.host.gate.follows(other, self._db)

    async def send_stop(self, owner: str, session: str, reason: str, until: float, memo: str | None) -> None:
        """Ask the other server to stop a run, and retry until this time while it cannot be reached."""
        clock, failed = self._root.host.clock, 0
        stop = self._stops.setdefault(session, self._root.host.loop.create_future())
        try:
            agent = self._stand_in(Address.parse(owner))
            async with open_run(self._root, agent, session, OldMemo(memo)) as remote:
                while clock.now() < until:
                    try:
                        await remote.cancel(reason)
                        return
                    except Unavailable:
                        failed += 1
                        await asyncio.sleep(back_off(failed, self._root.host.random))
            log.warning("remote run not stopped, server unreachable: address=%s url=%s", owner, agent.url)
        except RemoteRefused as error:
            log.warning("remote run not stopped, request refused: address=%s error=%s", owner, error)
        finally:
            self._stops.pop(session, None)
            stop.cancel()

    @asynccontextmanager
    async def all_stopped(self, reason: str) -> AsyncGenerator[None, None]:
        """Stop all remote runs of the tree before the block, and start none until its end.

        The block destroys the root, and the stops with it: so it waits until they are delivered, but not long.
        """
        self._is_closing = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._root.host.timings.remote_stop_timeout):
                    self.stop(self._root.address, reason, self._root)
                    if self._stops:
                        await asyncio.wait(self._stops.values())
            if self._stops:
                log.warning("remote runs not stopped: root=%s count=%d", self._root.address, len(self._stops))
            self._root.check_live()
            yield
        finally:
            self._is_closing = False

    def _stand_in(self, address: Address) -> RemoteAgent:
        """Return an agent that has the URL and the token of one that may be deleted, and no database."""
        tree, kind = tree_of(self._root), self._root.kind
        for step in address.segments[1:]:
            kind = tree.kind_of(step.type, kind)
        gone = Database(
            self._db.path.with_name("deleted.db"),
            tree.files,
            tree,
            exists=False,
            synced=False,
            sql_timeout=0,
            max_bytes=0,
        )
        gone.removed = True
        parent = None if address.parent is None else tree.actors.get(address.parent)
        actor = Actor(
            tree,
            address,
            kind,
            parent=parent or self._root,
            stem="",
            generation=0,
            created_at=0.0,
            limits=self._root.limits,
            database=gone,
        )
        return actor.agent


class SessionMemo:
    """What is stored for the transport of a run that an agent stands for."""

    def __init__(self, stand_in: Actor, run: str) -> None:
        self._actor, self._run = stand_in, run

    @property
    def text(self) -> str | None:
        """The text that was stored last."""
        return RemoteSessions.of(self._actor).memo(self._actor.address)

    async def store(self, text: str) -> None:
        """Store a text, and return when it is durable."""
        self._actor.check_live()
        RemoteSessions.of(self._actor).store_memo(self._actor, text)
        self._actor.of(RunJournals).remote(self._run, _ids_in(text))
        *_, root = self._actor.lineage()
        await root.leave()
        self._actor.check_live()

    def chunks(self) -> Sequence[Any]:
        """Return the bodies of the chunks of the run."""
        row = executed_runs_table.find(self._actor.database, self._run)
        stored = [] if row is None else executed_runs_table.streamed(self._actor.database, row.stream)
        return [msgspec.json.decode(one.text) for one in stored]


def _ids_in(memo: str) -> dict[str, str]:
    """Return the ids of a memo that the other server chose: a task, and the context that it belongs to."""
    try:
        told = msgspec.json.decode(memo, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return {name: one for name in ("task", "context") if (one := told.get(name)) and isinstance(one, str)}


class OldMemo:
    """What was stored for the transport of a run whose agent may be deleted."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    async def store(self, text: str) -> None:
        """Keep a text for as long as this try to stop the run lasts."""
        self.text = text

    def chunks(self) -> Sequence[Any]:
        """Return nothing: the chunks may be deleted."""
        return []


def back_off(failed: int, random: Random) -> float:
    """Return how many seconds to wait; callers that lost the same server do not all come back at once."""
    return min(SOON * 2 ** min(failed - 1, 20), MOST_BACK_OFF) * random.uniform(0.5, 1.0)
