"""Ways to break time on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from collections.abc import Callable

from sapwood.address import Address
from sapwood.capabilities.call_rows import CallRow, CallRows
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.steps import Steps, Work
from sapwood.capabilities.stored_calls import StoredCalls
from sapwood.errors import NotFound, SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.tree_index import TreeAlarms
from sapwood.kernel.trees.deletion import Deletion
from sapwood.kernel.trees.tree import Tree
from sapwood.when import Retry


def index_after() -> None:
    """The indexes are told after the commit."""

    def note(self: Agenda, due: float | None) -> None:
        self._noted += 1
        if due is not None:
            self._wanted = min(self._wanted, due)
        self._actor.host.loop.call_soon(lambda: None if self._actor.detached else self._index())

    Agenda.note = note


def moved_after() -> None:
    """A row moves on in a commit of its own, after what its method wrote."""
    move_on = StoredCalls._done

    def done(self: StoredCalls, row: CallRow) -> float | None:
        self._db.keep()
        self._actor.home.slices.commit()
        return move_on(self, row)

    StoredCalls._done = done


def no_steps() -> None:
    """What a step returned is not stored."""

    def store(self: Steps, work: Work, name: str, packed: bytes, began_at: float, ended_at: float) -> None:
        pass

    Steps._store = store


def too_early() -> None:
    """What is about to be due is begun along with what is."""
    begin_due = StoredCalls.begin_due
    StoredCalls.begin_due = lambda self, now: begin_due(self, now + 0.02)


def no_queues() -> None:
    """What is queued waits for nobody."""

    def enqueue(self: CallRows, method: str, arguments: bytes, queue: str, retry: Retry) -> CallRow:
        return self.add(method, arguments, due=self._actor.host.clock.now(), retry=retry, queue=queue)

    CallRows.enqueue = enqueue


def deleted_goes_on() -> None:
    """A deletion writes its tombstone, and leaves everything else as it was."""
    drop = Tree.drop

    def forget_below(self: TreeAlarms, address: Address) -> None:
        pass

    async def finish(self: Deletion, owner: Actor, generation: int, address: Address) -> None:
        pass

    def drop_others(self: Tree, actor: Actor, error: SapwoodError) -> None:
        if not isinstance(error, NotFound):
            drop(self, actor, error)

    TreeAlarms.forget_below, Deletion.finish, Tree.drop = forget_below, finish, drop_others


MUTANTS: dict[str, Callable[[], None]] = {
    "index-after": index_after,
    "moved-after": moved_after,
    "no-steps": no_steps,
    "too-early": too_early,
    "no-queues": no_queues,
    "deleted-goes-on": deleted_goes_on,
}
