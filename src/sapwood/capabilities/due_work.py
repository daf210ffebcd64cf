"""When an agent next has work to do, and how the indexes above it learn of it.

Calls and fibers are rows of their agent. Code that writes one reports here when it is due:
the indexes above are updated before the commit, and again when the work is done.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from sapwood.capabilities.call_rows import CALLS, retry_of
from sapwood.capabilities.fiber_rows import FIBERS
from sapwood.capabilities.fibers import Fibers
from sapwood.capabilities.file_rows import FILES
from sapwood.capabilities.files import FileStore
from sapwood.capabilities.steps import Steps
from sapwood.capabilities.stored_calls import StoredCalls
from sapwood.capabilities.stored_method import check_stored
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.node_index import FOREVER
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.ports.work_id import WorkId
from sapwood.storage.blobs import blob_folder
from sapwood.when import After

log = logging.getLogger(__name__)

AT_ONCE = After(timedelta(0))
SETTLING = "settle"


class Agenda:
    """What one agent has to do."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.calls = StoredCalls(actor, self._changed)
        self.fibers = Fibers(actor, changed=self._changed)
        self._due, self._dead = actor.home.alarms.stored(actor.address)
        """What the index of the tree says."""
        self._wanted = FOREVER
        self._noted = 0
        """How often something was written."""
        self._settling = self._to_settle = False

    def note(self, due: float | None) -> None:
        """Something was written in this slice that is due then: have it known before it is committed."""
        self._noted += 1
        if due is not None:
            self._wanted = min(self._wanted, due)
        slices = self._actor.home.slices
        if slices.open is self._actor.database:  # else nothing was written, and another's commit is not ours to join
            slices.before_commit(f"alarm {self._actor.stem}", self._index)
        elif due is not None:
            self._actor.host.alarms.look_by(self._actor.address.root, due)

    def _index(self) -> None:
        actor = self._actor
        due, self._wanted = self._wanted, FOREVER
        dead = int(self.calls.dead_letters.exist)
        sooner = due < (FOREVER if self._due is None else self._due)
        if sooner or dead > self._dead:
            actor.home.alarms.earlier(actor.address, actor.database, due if sooner else None, dead)
            self._due = due if sooner else self._due
            self._dead = max(dead, self._dead)
        if due < FOREVER:
            actor.host.alarms.look_by(actor.address.root, due)

    def begin_due(self) -> float | None:
        """Begin what is due, and return when there is more."""
        now = self._actor.host.clock.now()
        more = [self.calls.begin_due(now), self.fibers.begin_due(now)]
        self.settle_soon()
        return min((due for due in more if due is not None), default=None)

    def _changed(self, due: float | None) -> None:
        """A call or a fiber began, or ended and is due again then."""
        if self._actor.dropped is None:
            self.note(due)
            self.settle_soon()

    def replay(self, id: str, renamed: str | None = None) -> bool:
        """Call once more what was given up; return whether there was such a dead letter.

        A call that a fork holds is stored again as it was: a schedule is due at its own time, and repeats.

        With `renamed`, call that method of the class, with the same arguments, which must fit it.
        """
        return self.replay_due(id, renamed)[0]

    def replay_due(self, id: str, renamed: str | None = None) -> tuple[bool, float | None]:
        """Like `replay`; return also when the call is due, or `None` if it waits in a queue."""
        self._actor.check_use()
        if renamed is not None and (stored := self.calls.dead_letters.arguments(id)) is not None:
            check_stored(self._actor, renamed, stored)
        letter = self.calls.dead_letters.take(id)
        if letter is None:
            return False, None
        rows, retry = self.calls.rows, retry_of(letter.retry)
        letter = letter._replace(method=renamed or letter.method)
        if (held := letter.held_call()) is not None:
            due = rows.add_held(letter, held)
        elif letter.queue is None:
            now = self._actor.host.clock.now()
            due = rows.add(letter.method, letter.arguments, due=now, retry=retry, wish=AT_ONCE).due_at
        else:
            due = rows.enqueue(letter.method, letter.arguments, letter.queue, retry).due_at
        self.note(due)
        self.settle_soon()
        return True, due

    def make_due(self, id: str) -> bool:
        """Make a scheduled or queued call due now. Returns `False` if it does not exist, runs, or waits for others."""
        self._actor.check_use()
        number = self.calls.rows.ids.number_of(id)
        rows = [] if number is None else self.calls.rows.find("WHERE number = ? AND due_at IS NOT NULL", number)
        if not rows or self.calls.is_running(rows[0].number):
            return False
        self.note(self.calls.rows.make_due(rows[0].number))
        self.settle_soon()
        return True

    def forget_dead_letter(self, id: str) -> bool:
        """Forget what was given up; return whether there was such a dead letter."""
        self._actor.check_use()
        letter = self.calls.dead_letters.take(id)
        if letter is not None and (held := letter.held_call()) is not None:
            self._actor.of(Steps).forget(held.work)
        self.settle_soon()
        return letter is not None

    def settle_soon(self) -> None:
        """Have the indexes say when there is more to do, once what was done is kept."""
        self._to_settle = True
        if not self._settling:
            self._settling = True
            call = Call(self._actor, SETTLING, None)
            call.deadline = None
            self._actor.spawn(call, self._settle(call))

    async def _settle(self, call: Call) -> None:
        call.enter()
        try:
            while self._to_settle:
                self._to_settle = False
                await self._settle_once()
        except SapwoodError:
            pass  # the indexes have a time that is too early, which costs one look in vain
        finally:
            self._settling = False
            self._actor.finished(call)

    async def _settle_once(self) -> None:
        actor = self._actor
        actor.home.slices.commit()
        noted, due, dead = self._noted, self.first_due(), int(self.calls.dead_letters.exist)
        await actor.leave()
        if noted != self._noted:
            self._to_settle = True  # more was written since, and is not durable yet
            return
        if actor.detached:
            return  # it deletes itself, and the entry may be of one that was made in its place
        late = due is not None and due <= actor.host.clock.now() and self._due is not None and self._due <= due
        if (due, dead) != (self._due, self._dead) and (not late or dead < self._dead):
            actor.home.alarms.exactly(actor.address, due, dead)
            self._due, self._dead = due, dead
            await actor.home.alarms.tell_node()

    def is_under_way(self, work: WorkId) -> bool:
        """Return whether a fiber or a stored call is not over, and may repeat the code that it ran before."""
        if work.kind == "call":
            return any(row.work == work for row in self.calls.rows.find("WHERE number = ?", work.number))
        return self.fibers.is_open(work.number)

    def first_due(self) -> float | None:
        """Return when the first thing is due, what is under way included."""
        both = [self.calls.rows.first_due(), self.fibers.first_due()]
        return min((due for due in both if due is not None), default=None)

    def woke(self) -> None:
        """The agent has started: if the indexes do not know what it has to do, tell them."""
        due, dead, actor = self.first_due(), int(self.calls.dead_letters.exist), self._actor
        sooner = due is not None and (self._due is None or due < self._due or not actor.home.alarms.is_known_by(due))
        if sooner or dead > self._dead:
            actor.home.alarms.restore(actor.address, actor.database, due if sooner else None, dead)
            self._due = min((one for one in (due, self._due) if one is not None), default=None)
            self._dead = max(dead, self._dead)
        if due is not None:
            actor.host.alarms.look_by(actor.address.root, due)


def begin_due(actor: Actor) -> float | None:
    """Begin what an agent has to do by now, and return when it has more."""
    return actor.of(Agenda).begin_due()


def when_started(actor: Actor) -> None:
    """See what an agent has to do, if it ever had anything."""
    database = actor.database
    try:
        if database.exists and (database.has(CALLS) or database.has(FIBERS)):
            actor.of(Agenda).woke()
        if (database.exists and database.has(FILES)) or blob_folder(database.path).is_dir():
            actor.of(FileStore).sweep_later()
    except SapwoodError as error:
        text, who = "cannot read the due work address=%s", actor.address
        actor.host.failures.report(
            log, logging.ERROR, text, who, error=error, about=who, traceback=error, address=str(who)
        )
