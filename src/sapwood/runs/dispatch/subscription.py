"""What happens in a tree, for one reader: everything that is stored, then everything that follows, each once.

A reader knows its position in every run. A live event is passed on if it is the very next one.
If events are missing in between, or the reader was too slow, they are read from storage. So no
event is repeated or left out, and a slow reader blocks nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec

from sapwood.address import Address, PathSegment
from sapwood.errors import InvalidArguments, StoredDataError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.actors.children_table import ChildrenTable as ChildRegistry
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.dispatch.waiting_agents import WaitingAgents
from sapwood.runs.events.cursor import OWN, Cursor, RunPosition, Shelf, TurnPlace
from sapwood.runs.events.events import ENDS, LEVELS, Ear, Event, Feed, turn_event
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.remote import nested_log
from sapwood.runs.tables import executed_runs_table
from sapwood.runs.tables.inputs import INPUT_DETAILS, InputDetail, full_input
from sapwood.runs.tables.runs_table import HARD, RunRow, RunsTable, given_with, parent_run, shown, types_of
from sapwood.storage.database import Database

log = logging.getLogger(__name__)
PAGE = 256
Path = tuple[PathSegment, ...]


@dataclass(frozen=True, slots=True)
class AgentNode:
    """One agent, asleep or awake."""

    path: Path
    key: str
    """The numbers of those on the way down to it, from the agent that is watched."""
    stem: str
    database: Database


class Subscription:
    """One reader of what happens in an agent, and below it."""

    def __init__(
        self,
        actor: Actor,
        depth: str,
        after: str | None,
        input: str = "preview",
        *,
        runs_only: bool = False,
    ) -> None:
        if depth not in LEVELS:
            raise InvalidArguments(f"`depth` must be one of {', '.join(LEVELS)}, got {depth!r}.")
        if input not in INPUT_DETAILS:
            raise InvalidArguments(f"`input` must be {' or '.join(INPUT_DETAILS)}, got {input!r}.")
        self._input: InputDetail = input
        self._runs_only = runs_only
        """Whether it tells of runs only: not what they say, and not of turns that are no runs."""
        tree = tree_of(actor)
        self._actor, self._tree = actor, tree
        self._cursor_chars = actor.host.timings.event_cursor_chars
        self._levels = LEVELS[depth]
        self._top = AgentNode(actor.address.segments, "", actor.stem, actor.database)
        self._cursor = Cursor(actor.address, actor.stem)
        if after:
            self._cursor.read(after)
        self._skips_children = False
        """Whether agents below that do no run that is told of are left out, with all below them."""
        self._ear: Ear | None = None
        self._known: dict[tuple[Path, str], tuple[Shelf, RunPosition]] = {}
        """Where the reader is in the unfinished runs."""
        self._keys: dict[Path, str] = {}
        """The agents that take turns outside of runs, with their keys."""
        self._waiting = WaitingAgents(actor, self._levels, self._kept)
        self._without = self._size = 0
        """How many events went without a cursor, and how long the last one was."""

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield all that is stored and was not sent yet, then what happens, until the reader leaves."""
        async with aclosing(self.events_or_silence(None)) as events:
            async for event in events:
                if event is not None:
                    yield event

    async def events_or_silence(
        self, quiet: float | None, *, marks_stored: bool = False
    ) -> AsyncGenerator[Event | None, None]:
        """Yield events, and None whenever nothing has happened for so many seconds.

        If it `marks_stored`, it also yields None after what was stored when it began to read.
        """
        feed = self._actor.of(Feed)
        ear = self._ear = feed.listen(self._levels, runs_only=self._runs_only)
        try:
            while not ear.is_over:
                if ear.is_behind:
                    ear.is_behind = False  # before it reads: events during the read are heard
                    async for event in self._everything():
                        yield self._marked(event)
                    if marks_stored:
                        marks_stored = False
                        yield None
                elif ear.heard:
                    event = ear.heard.popleft()
                    if event is not None and self._is_next(event):
                        yield self._marked(event)
                    else:
                        async for missed in self._waiting.changes() if event is None else self._missed(event):
                            yield self._marked(missed)
                elif not await ear.news(quiet):
                    yield None
        finally:
            feed.ears.discard(ear)

    def end(self) -> None:
        """Have no further event be told."""
        if self._ear is not None:
            self._ear.end()

    def look_again(self) -> None:
        """Read what is stored before anything that is heard."""
        if self._ear is not None:
            self._ear.close(0, "")

    def cursor(self) -> str:
        """Return where to continue after all events that were sent."""
        return self._cursor.text()

    def begin_after(self, run: int) -> None:
        """Tell only of the runs that the agent started after this one, and of what is below them."""
        self._skips_children = True
        if not self._cursor.shelves:
            self._cursor.shelf("").done = run

    def position(self, turn: str) -> int:
        """Return the number of the last event of a turn of the agent that was told; 0 if none was."""
        return place.seq - 1 if (place := self._cursor.turns.get("")) is not None and place.id == turn else 0

    def begin_turn_after(self, turn: str, seq: int) -> None:
        """Tell only what a turn of the agent says after this event."""
        self._cursor.turns[""] = TurnPlace(turn, seq + 1)

    def _marked(self, event: Event) -> Event:
        """Return an event with where to continue after it."""
        self._without += 1
        if self._without * self._cursor_chars < self._size:
            return event
        cursor = self._cursor.text()
        self._without, self._size = 0, len(cursor)  # below: dataclasses.replace costs more than all the rest
        about = (event.path, event.run_id, event.parent_run_id, event.seq, event.at, event.kind, event.body)
        return Event(*about, cursor, event.remote)

    def _is_next(self, event: Event) -> bool:
        """Return whether an event is what the reader is to be told next, and note it if so."""
        if event.run_id is None:
            return self._is_next_of_turn(event)
        found = self._known.get((event.path, event.run_id))
        if found is None or (found[1].seq != event.seq and not self._runs_only):
            return False
        place = found[1]
        if event.kind == "chunk":
            place.seq += 1
            return True
        if event.kind == "milestone" and event.body["sequence"] == place.milestones + 1:
            place.milestones += 1
            return True
        # Starts and ends are read from where they are stored: with the end, all has to be there.
        return event.kind == "progress"

    def _is_over(self, key: tuple[Path, str], shelf: Shelf, place: RunPosition) -> None:
        place.over = True
        shelf.shrink()
        self._known.pop(key, None)

    def _is_next_of_turn(self, event: Event) -> bool:
        turn = self._cursor.turns.get(self._keys.get(event.path, "?"))
        if turn is None or turn.seq != event.seq or turn.over:
            return False
        turn.seq += 1
        turn.over = event.kind in ENDS
        return True

    async def _missed(self, event: Event) -> AsyncGenerator[Event, None]:
        """Yield what is to be told now that an event was heard that is not the next one: perhaps nothing."""
        if event.run_id is None:
            async for missed in self._missed_of_turn(event):
                yield missed
        elif event.remote:
            node = self._find(event.path[: -event.remote])
            if node is not None and await self._kept(node.database):
                for missed in self._nested(node, len(node.path) - len(self._top.path)):
                    yield missed
        elif not self._was_told(event):
            is_own = event.path == self._top.path
            node = self._top if is_own else self._find(event.path[:-1])
            if node is not None:
                async for missed in self._own_run(event.run_id) if is_own else self._run(node, event.run_id):
                    yield missed

    def _was_told(self, event: Event) -> bool:
        """Return whether an event surely was told already, or is too old to be told."""
        if event.kind in ("chunk", "progress"):
            found = self._known.get((event.path, event.run_id or ""))
            return event.kind == "progress" or (found is not None and event.seq < found[1].seq)
        return False

    async def _everything(self) -> AsyncGenerator[Event, None]:
        """Yield what is stored and was not told yet."""
        await self._kept(self._top.database)
        shelf = self._cursor.shelf(OWN)
        own = executed_runs_table.numbers(self._top.database, shelf.done)
        _forget_gone(shelf, [number for number, _ in own])
        for _, id in own:
            async for event in self._own_run(id):
                yield event
        async for event in self._below(self._top, 0):
            yield event
        if not self._runs_only:
            async for event in self._waiting.changes():
                yield event

    async def _below(self, node: AgentNode, level: int) -> AsyncGenerator[Event, None]:
        """Yield what an agent does outside of runs, and what those below it did and do."""
        async for event in self._turn(node):
            yield event
        if level + 1 > self._levels or not await self._kept(node.database):
            return
        for event in self._nested(node, level):
            yield event
        registry = RunsTable(node.database, self._actor.host.clock)
        visited: set[int] = set()
        if registry.exists:
            shelf = self._cursor.shelf(node.key)
            rows = registry.find("WHERE number > ? ORDER BY number", shelf.done)
            _forget_gone(shelf, [row.number for row in rows])
            for id in [row.id for row in rows]:
                async for event in self._run(node, id, level=level, visited=visited):
                    yield event
        after = 0
        while not (self._skips_children and node is self._top) and (page := self._children(node, after)):
            for generation, child in page:
                if generation not in visited:
                    async for event in self._below(child, level + 1):
                        yield event
            after = page[-1][0]
            await asyncio.sleep(0)
            await self._kept(node.database)

    def _nested(self, node: AgentNode, level: int) -> Iterator[Event]:
        """Yield what happened below the remote run that an agent stands for, and was not told yet."""
        if not node.database.has(nested_log.NESTED):
            return
        shelf = self._cursor.shelf(node.key)  # such an agent starts no runs itself
        for number, event in nested_log.read(node.database, node.path, shelf.done):
            shelf.done = number
            if level + event.remote <= self._levels:
                yield event

    def _children(self, node: AgentNode, after: int) -> list[tuple[int, AgentNode]]:
        database = node.database
        if not (database.exists and database.has(CHILDREN)):
            return []
        found = ChildRegistry(database, self._actor.host.clock).page(None, after, PAGE)
        return [(one.generation, self._child(node, PathSegment(one.type, one.name), one.generation)) for one in found]

    def _child(self, node: AgentNode, step: PathSegment, generation: int) -> AgentNode:
        stem = child_stem(node.stem, generation)
        database = self._tree.database(stem, self._actor.limits)
        key = f"{node.key}.{generation}" if node.key else str(generation)
        return AgentNode((*node.path, step), key, stem, database)

    def _find(self, path: Path) -> AgentNode | None:
        """Return the agent at a path, if it is still there."""
        node = self._top
        for step in path[len(node.path) :]:
            if not (node.database.exists and node.database.has(CHILDREN)):
                return None
            found = ChildRegistry(node.database, self._actor.host.clock).find(
                types_of(step.type, self._tree.kinds), step.name
            )
            if found is None:
                return None
            node = self._child(node, step, found.generation)
        return node

    async def _run(
        self, node: AgentNode, id: str, *, level: int | None = None, visited: set[int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield what is stored of a run and was not told yet; with `level`, what happened below it too."""
        registry = RunsTable(node.database, self._actor.host.clock)
        row, child = None, None
        if await self._kept(node.database) and (row := registry.get(id)) is not None:
            child = self._doing(node, row)
            if child is not None and not await self._kept(node.database, child.database):
                child = None
            row = registry.get(id)
        shelf = self._cursor.shelf(node.key)
        if row is None or shelf.is_done(row.number):
            return
        path, place = (*node.path, PathSegment(row.type, row.name)), shelf.place(row.number)
        self._known[path, id] = shelf, place
        if place.seq == 0:
            place.seq = 1
            yield self._started(node, row, None if child is None else child.database)
        end = row if row.status == "interrupted" and row.seq != place.given_up else None
        for event in [] if child is None else self._readable(path, row, child.database, place):
            if end is not None and event.seq >= end.seq and event.kind == "chunk":
                place.given_up, end = end.seq, None
                yield ended(path, row)
            _note(place, event)
            yield event
        if child is not None and level is not None:
            if visited is not None:
                visited.add(int(child.key.rpartition(".")[2]))
            async for event in self._below(child, level + 1):
                yield event
        if end is not None:
            place.given_up = end.seq
            yield ended(path, end)
        if row.status in HARD:
            self._is_over((path, id), shelf, place)
            yield ended(path, row)

    def _started(self, node: AgentNode, row: RunRow, child: Database | None) -> Event:
        event = started((*node.path, PathSegment(row.type, row.name)), row)
        if self._input == "full":
            caller = self._tree.actors.get(Address(node.path))
            with suppress(StoredDataError, Unavailable):  # then the preview is all there is
                event.body["input"] = full_input(row.id, caller, child, event.body["input"])
        return event

    def _readable(self, path: Path, row: RunRow, database: Database, place: RunPosition) -> list[Event]:
        """Return what a run has said and was not told yet; nothing if it cannot be read any more."""
        try:
            found = executed_runs_table.find(database, row.id)
            if found is None:
                return []
            length = 0 if self._runs_only else row.said
            return _said(path, row.id, parent_run(row), database, found, place, length)
        except Exception:
            self._actor.check_live()
            where = {"address": str(self._actor.address)}
            log.exception("cannot read the chunks of a run run=%s address=%s", row.id, path[-2], extra=where)
            return []

    def _doing(self, node: AgentNode, row: RunRow) -> AgentNode | None:
        """Return who does a run, if it was made and is still there."""
        if not node.database.has(CHILDREN):
            return None
        found = ChildRegistry(node.database, self._actor.host.clock).find(
            types_of(row.type, self._tree.kinds), row.name
        )
        return None if found is None else self._child(node, PathSegment(row.type, row.name), found.generation)

    async def _own_run(self, id: str) -> AsyncGenerator[Event, None]:
        """Yield what is stored of a run that the agent itself does, and was not told yet."""
        await self._kept(self._top.database)
        served = self._actor.of(RunExecutor)
        row, shelf, path = served.row(id), self._cursor.shelf(OWN), self._top.path
        if row is None or shelf.is_done(row.number):
            return
        place = shelf.place(row.number)
        self._known[path, id] = shelf, place
        first = served.started(row)
        if place.seq == 0:
            place.seq = 1
            yield first if self._input == "preview" else served.started(row, self._input)
        length = 0 if self._runs_only else None
        for event in _said(path, id, first.parent_run_id, self._top.database, row, place, length):
            _note(place, event)
            yield event
        if row.status != "running":
            self._is_over((path, id), shelf, place)
            yield served.over(row)

    async def _turn(self, node: AgentNode) -> AsyncGenerator[Event, None]:
        """Yield what is stored of the agent's current turn outside of runs, if there is one."""
        feed = None if self._runs_only else self._feed(node.path)
        if feed is None:
            return
        place, turn = self._cursor.turns.get(node.key), feed.turn
        last = feed.last
        if place is not None and not place.over and last is not None and last.body["turn"] == place.id:
            place.over = True
            yield last
        if turn is None or not await self._kept(node.database):
            return
        self._keys[node.path] = node.key
        if place is None or place.id != turn.id:
            place = self._cursor.turns[node.key] = TurnPlace(turn.id)
        if place.seq == 0 or place.over:
            place.seq, place.over = max(place.seq, 1), False
            yield turn.started(node.path)
        for one in executed_runs_table.streamed(node.database, turn.stream, after=place.seq - 2):
            place.seq = one.number + 2
            yield turn_event(node.path, one.number + 1, one.at, msgspec.json.decode(one.text))

    async def _missed_of_turn(self, event: Event) -> AsyncGenerator[Event, None]:
        node = self._find(event.path)
        if node is None:
            return
        self._keys[node.path] = node.key
        if event.kind == "started":
            place = self._cursor.turns.get(node.key)
            if place is None or place.id != event.body["turn"] or place.over:
                is_new = place is None or place.id != event.body["turn"]
                seq = 1 if place is None or is_new else place.seq
                self._cursor.turns[node.key] = TurnPlace(event.body["turn"], seq)
                yield event
            return
        async for missed in self._turn(node):
            yield missed
        place = self._cursor.turns.get(node.key)
        if place is None or place.over or event.seq < place.seq:
            return
        # What lies between was said again after a crash, or is whole by now and forgotten.
        if event.kind not in ENDS or event.body["turn"] == place.id:
            place.seq, place.over = event.seq + 1, event.kind in ENDS
            yield event

    def _feed(self, path: Path) -> Feed | None:
        actor = self._tree.actors.get(Address(path))
        return None if actor is None else actor.found(Feed)

    async def _kept(self, *databases: Database) -> bool:
        """Return when all that these hold may be told; whether they are there."""
        gate = self._actor.host.gate
        while True:
            waiting = self._actor.to_leave()
            for database in databases:
                waiting = waiting or (gate.wait(database) if database.exists else None)
            if waiting is None:
                return all(database.exists for database in databases)
            await waiting


def started(path: Path, row: RunRow) -> Event:
    """Return the start of a run, as its caller has stored it."""
    return Event(path, row.id, parent_run(row), 0, row.started_at, "started", given_with(row))


def ended(path: Path, row: RunRow) -> Event:
    """Return the end of a run, as its caller has stored it."""
    run, at = shown(row), row.ended_at or row.started_at
    return Event(
        path,
        row.id,
        parent_run(row),
        row.seq,
        at,
        ENDS[row.status],
        run.output if run.ok else for_clients(run.failure()),
    )


def _said(
    path: Path,
    id: str,
    parent: str | None,
    database: Database,
    row: executed_runs_table.ExecutedRunRow,
    place: RunPosition,
    length: int | None = None,
) -> list[Event]:
    """Return the chunks and milestones of a run that were not told yet, in order."""
    found = [
        (one.number + 1, 1, Event(path, id, parent, one.number + 1, one.at, "chunk", msgspec.json.decode(one.text)))
        for one in (() if length == 0 else executed_runs_table.said(database, row, after=place.seq - 2, length=length))
    ]
    for seq, told in executed_runs_table.milestones(row)[place.milestones :]:
        found.append((seq, 0, Event(path, id, parent, seq, told["at"] / 1000, "milestone", told)))
    found.sort(key=lambda one: one[:2])  # of one number, the chunk is the last
    return [event for _, _, event in found]


def _note(place: RunPosition, event: Event) -> None:
    if event.kind == "chunk":
        place.seq = event.seq + 1
    else:
        place.milestones += 1


def _forget_gone(shelf: Shelf, numbers: list[int]) -> None:
    """Forget runs that were cleared away."""
    for number in set(shelf.places) - set(numbers):
        del shelf.places[number]
