"""Reads what a dead process left of time, with nothing but SQLite: calls to come, fibers, letters, indexes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import apsw
import msgspec
from tests.faults.reading import has, opened, walk
from tests.faults.span_checker import Records, read_records
from tests.faults.time_workload import TREES

from sapwood.address import Address

EARLIER = 1e-6
"""Seconds that do not count."""


@dataclass(slots=True)
class Happened:
    """One row that a called method wrote."""

    number: int
    what: str
    at: float
    made: int | None


@dataclass(slots=True)
class Left:
    """What one agent has: what happened, and what is to come."""

    tree: str
    address: str
    stem: str
    happened: list[Happened] = field(default_factory=list[Happened])
    letters: dict[int, str] = field(default_factory=dict[int, str])
    """The code of each, by the number of the wish."""
    pending: dict[int, tuple[float | None, str]] = field(default_factory=dict[int, tuple[float | None, str]])
    """When each call and fiber is due, and what it is, by the number of the wish."""
    fibers: dict[int, str] = field(default_factory=dict[int, str])
    """What became of each."""
    steps: int = 0
    records: Records = field(default_factory=Records)
    fiber_rows: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The number of each, in its table, and what became of it."""


@dataclass(slots=True)
class Folder:
    """What a data folder has."""

    agents: list[Left]
    alarms: dict[str, tuple[float | None, int]]
    """What the trees' indexes say, by address."""
    node: dict[str, tuple[float | None, int]]
    """What the node's index says, by the address of the root."""
    buried: tuple[str, ...] = ()
    """Those whose tombstone is still there, each with a slash behind it."""

    def problems(self, promised: set[int] | None) -> list[str]:
        """Return where an index is later than what it finds. After a loss of power only what was `promised` counts."""
        found: list[str] = []
        for agent in self.agents:
            recorded = agent.records.problems() + agent.records.of_fibers(agent.fiber_rows)
            found += [f"{agent.address}: {problem}" for problem in recorded]
            root = agent.address.partition("/")[0]
            for number, (due, what) in agent.pending.items():
                if due is None or (promised is not None and number not in promised):
                    continue
                for index, entry in (
                    ("tree's", self.alarms.get(agent.address)),
                    ("node's", self.node.get(root)),
                ):
                    if entry is None or entry[0] is None or entry[0] > due + EARLIER:
                        found.append(
                            f"{what} {number} of {agent.address} is due at {due}, and the {index} index says {entry}"
                        )
            if agent.letters and promised is None:
                if not self.alarms.get(agent.address, (None, 0))[1]:
                    found.append(f"{agent.address} has dead letters, and the tree's index does not know")
                if not self.node.get(root, (None, 0))[1]:
                    found.append(f"{agent.address} has dead letters, and the node's index does not know")
        return found

    def leftovers(self, *, was_cut: bool) -> list[str]:
        """Return what is left although everything is done.

        A loss of power may leave an entry in a tree's index without the node's that leads to it: nobody looks there,
        and nobody misses anything.
        """
        found: list[str] = []
        for agent in self.agents:
            found += [f"{what} {number} of {agent.address} is left" for number, (_, what) in agent.pending.items()]
            if agent.steps:
                found.append(f"{agent.address} remembers {agent.steps} steps of work that is over")
            if agent.letters and not self.alarms.get(agent.address, (None, 0))[1]:
                found.append(f"{agent.address} has {len(agent.letters)} dead letters, and the index does not know")
        for root, (due, dead) in self.node.items():
            if due is not None:
                found.append(f"the node's index says that {root} is due at {due}")
            if dead < sum(owner.partition("/")[0] == root for owner, entry in self.alarms.items() if entry[1]):
                found.append(f"the node's index counts {dead} agents with dead letters in {root}")
        return found if was_cut else found + self._stale()

    def _stale(self) -> list[str]:
        """Return entries of the trees' indexes without a meaning.

        That of an agent whose tombstone is still there goes when its parent wakes, and nobody wakes it for that.
        """
        lettered = {agent.address for agent in self.agents if agent.letters}
        known = {agent.address for agent in self.agents}
        alarms = {owner: entry for owner, entry in self.alarms.items() if not f"{owner}/".startswith(self.buried)}
        return [
            *(f"the tree's index has {entry} for {owner}" for owner, entry in self.alarms.items() if entry[0]),
            *(f"the tree's index names {owner}, who is not there" for owner in alarms if owner not in known),
            *(
                f"the tree's index has {owner} down for dead letters, and there are none"
                for owner, entry in alarms.items()
                if entry[1] and owner not in lettered
            ),
        ]


def read_folder(data: Path) -> Folder:
    """Return what a data folder has. Reading changes files: give it a copy."""
    folder = Folder([], {}, {})
    if (data / "alarms.db").exists():
        with opened(data / "alarms.db") as database:
            if has(database, "sapwood_node_alarms"):
                for root, due, dead in database.execute("SELECT root, due_at, dead FROM sapwood_node_alarms"):
                    if root:
                        folder.node[root] = (due, dead)
    for tree in TREES:

        def read(address: Address, stem: str, database: apsw.Connection | None, tree: str = tree) -> None:
            agent = Left(tree, str(address), stem)
            folder.agents.append(agent)
            if database is not None:
                if has(database, "sapwood_children"):
                    gone = database.execute("SELECT type, name FROM sapwood_children WHERE deleted_at IS NOT NULL")
                    folder.buried += tuple(f"{address.child(type_, name)}/" for type_, name in gone)
                if has(database, "sapwood_alarms"):
                    for owner, due, dead in database.execute("SELECT owner, due_at, dead FROM sapwood_alarms"):
                        folder.alarms[owner] = (due, dead)
                _read_agent(database, agent)

        walk(data, Address.root_of("Trunk", tree), read)
    return folder


def _read_agent(database: apsw.Connection, agent: Left) -> None:
    agent.records = read_records(database)
    if has(database, "happened"):
        rows = database.execute("SELECT number, what, at, made FROM happened ORDER BY id")
        agent.happened = [Happened(*row) for row in rows]
    if has(database, "sapwood_calls"):
        for due, method, arguments in database.execute("SELECT due_at, method, arguments FROM sapwood_calls"):
            agent.pending[_number(arguments)] = (due, f"the call of {method}")
        for arguments, code in database.execute("SELECT arguments, code FROM sapwood_dead_letters"):
            agent.letters[_number(arguments)] = code
    if has(database, "sapwood_fibers"):
        for number, status, due, arguments in database.execute(
            "SELECT number, status, due_at, arguments FROM sapwood_fibers"
        ):
            agent.fiber_rows.append((number, status))
            agent.fibers[_number(arguments)] = status
            if due is not None:
                agent.pending[_number(arguments)] = (due, f"the {status} fiber")
    if has(database, "sapwood_steps"):
        # A fiber that failed may be resumed, and keeps its steps till then.
        failed = (
            "(SELECT 'fiber ' || number FROM sapwood_fibers WHERE status = 'failed')"
            if has(database, "sapwood_fibers")
            else "('')"
        )
        ((agent.steps,),) = database.execute(f"SELECT count(*) FROM sapwood_steps WHERE work NOT IN {failed}")


def _number(arguments: bytes) -> int:
    return int(msgspec.msgpack.decode(arguments)["number"])
