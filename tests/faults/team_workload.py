"""What teams do while processes are killed: one shares out its work, keeps children, and follows what they show.

As in `run_workload`, and of the same agents; but the roots fan out, in every way there is, by
fibers and by tools, their models keep children to whom they talk, and somebody far down asks
for approval (`team_questions`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any, cast

import msgspec
from tests.faults.run_checker import BY_HOOK
from tests.faults.run_workload import (
    DETACHED,
    KINDS,
    WORLD,
    Chief,
    Clerk,
    Digger,
    Hearing,
    Person,
    Porter,
    Speaking,
    Tab,
    Working,
    place_of,
    sub_of,
)
from tests.faults.team_questions import LADDER, Reeve

from sapwood import Agent, Branch, Retry, Run, Unavailable, agent_tool, on_child_state, persistent_agent, tool
from sapwood.address import PathSegment
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.fiber_rows import FIBERS
from sapwood.errors import NotFound
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.tables.work_column import stored_work

NOBODY = "nobody"
GAUGES = ("north", "south")
WAYS = ("settle", "fail-fast", "quorum", "race", "map")
MOST_ASKED = 2
"""How many runs may be open when somebody has one begun that asks: each is five agents."""
AGAIN = Retry(max_attempts=3, initial_delay=timedelta(milliseconds=20))
SHARED = "s-"
"""What the work begins with that is shared out by code; by a tool, it is the id of the call."""
COMPANIONS = {
    "spawn_agent": 16,
    "send_message": 4,
    "wait_for_result": 2,
    "terminate_child": 1,
    "list_children": 1,
    "get_child_status": 1,
}
"""What a model does with its children, and how often."""
WITH_BUSY = {"send_message": 12, "terminate_child": 4, "wait_for_result": 2, "spawn_agent": 2}
"""The same, while one of them does something."""


class Overworked(Unavailable):
    """Has no time now."""

    code = "overworked"


class Hauler(Working):
    """Hauls; some have no time at first."""

    async def on_run(self, input: str) -> dict[str, Any]:
        random = await self._begin(input)
        await self._do(random, input)
        if Random(f"{input} {self._run()}").random() < 0.5:
            raise Overworked
        return {"did": input, "number": next(WORLD.numbers)}


class Mate(Speaking):
    """Does what it is told, and is waited for."""


class Rover(Speaking):
    """Does what it is told, by itself, and takes its time; its captain hears of it."""

    most_rounds = 4


class Hand(Digger):
    """Does what it is told, and cannot be told more meanwhile."""


class Reading(msgspec.Struct):
    """What a gauge shows."""

    number: int = 0


class Gauge(Agent[Reading]):
    """Shows a number that grows."""

    initial_state = Reading()

    async def show(self, number: int) -> None:
        if number > self.state.number:
            self.set_state(Reading(number))

    async def owes(self) -> bool:
        """Return whether its captain is still to be told."""
        rows = self._actor.of(Agenda).calls.rows
        return rows.exist and bool(rows.find(""))


class SlowGauge(Gauge):
    """The same, for one that takes its time with it."""


def shares(key: str) -> tuple[str, list[Branch], dict[str, Any]]:
    """Return how some work is shared out, always the same: the way, the branches, and how they are gathered."""
    random = Random(f"share {key}")
    way, count = random.choice(WAYS), random.randint(2, 5)
    kinds: list[type[Agent[Any]]] = [random.choice((Digger, Porter, Clerk, Hauler, Hauler)) for _ in range(count)]
    if random.random() < 0.2:
        kinds[random.randrange(count)] = Reeve
    if way == "map":
        kinds = [kinds[0]] * count
    retry = random.choice((None, AGAIN))
    branches = [Branch(kind, f"{key}.{at}", retry=retry) for at, kind in enumerate(kinds)]
    how: dict[str, Any] = {"concurrency": random.choice((None, 1, 2))}
    if way == "fail-fast":
        how["fail_fast"] = True
    if way == "quorum":
        how["quorum"] = random.randint(1, count)
    return way, branches, how


class Captain(Chief):
    """A root that has a team."""

    migrations = (
        *cast("tuple[str, ...]", Hearing.migrations),
        "CREATE TABLE shown (gauge TEXT NOT NULL, number INTEGER NOT NULL) STRICT",
    )
    most_rounds = 4
    tools = (
        agent_tool(Digger),
        agent_tool(Reeve),
        persistent_agent(Mate),
        persistent_agent(Rover, mode="non-blocking", notify=True),
        persistent_agent(Hand, mode="non-blocking"),
    )

    async def share(self, key: str) -> str:
        """Have some work shared out, whatever happens in between; return what its runs are part of."""
        fiber = self.start_fiber(key, self.share_out, key)
        rows = self._actor.database.execute("SELECT number FROM sapwood_fibers WHERE key = ?", fiber.key)
        return stored_work(WorkId.fiber(rows[0][0]))

    async def share_out(self, key: str) -> list[str]:
        """Share out some work, and come to the same however often it is begun again."""
        return await self._share_out(key)

    async def _share_out(self, key: str) -> list[str]:
        way, branches, how = shares(key)
        if way == "race":
            runs = [await self.runs.race(*branches)]
        elif way == "map":
            inputs = [branch.input for branch in branches]
            more = {"concurrency": how["concurrency"] or 10, "retry": branches[0].retry}
            runs = await self.runs.map(branches[0].cls, inputs, **more)
        else:
            runs = await self.runs.gather(*branches, **how)
        place = str(self._actor.address)
        for run in runs:
            WORLD.note("i", place, run.id, run.status, run.output)
        stopped = [row.id for row in self._of(key) if row.is_open]
        if any(self._actor.of(Runs).registry.get(id).cancelled is None for id in stopped):  # pyright: ignore[reportOptionalMemberAccess]
            WORLD.note("e", f"{place}: {key} is decided, and {stopped} are not to stop")
        await self.flush()
        WORLD.note("w", place, key, [[run.id, run.status, run.input] for run in runs])
        for id in stopped:
            WORLD.note("C", place, id)
        return [run.id for run in runs]

    def _of(self, key: str) -> list[Any]:
        """Return the runs that some work was shared out to."""
        return [row for row in self._actor.of(Runs).registry.all() if row.input.startswith(f'"{key}.')]

    async def sharing(self) -> list[tuple[str, str]]:
        """Return the work that is shared out now, with what its runs are part of."""
        if not self._actor.database.has(FIBERS):
            return []
        rows = self._actor.database.execute(
            "SELECT key, number FROM sapwood_fibers WHERE method = 'share_out' AND due_at IS NOT NULL"
        )
        return [(str(key), stored_work(WorkId.fiber(number))) for key, number in rows]

    async def have_asked(self, key: str) -> str:
        """Have somebody far down ask for approval, on behalf of nobody who waits."""
        return (await self.start_run(Reeve, key, run_id=f"{DETACHED}{key}", on_finish=self.heard)).id

    async def end_sharing(self, key: str) -> bool:
        return self.fibers.cancel(key)

    @tool(idempotent=True)
    async def share_with_others(self, key: str) -> str:
        """Share out some work."""
        self._begins(key, "share_with_others")
        await self._share_out(key)
        return self._ends(key, "share_with_others")

    def _choose(self, names: list[str]) -> str:
        if WORLD.asks and WORLD.random.random() < 0.6:
            return "reeve"
        if WORLD.random.random() < 0.2:
            return super()._choose(names)
        tools = WITH_BUSY if self._busy() else COMPANIONS
        (name,) = WORLD.random.choices([*tools], [*tools.values()])
        return name

    def _busy(self) -> list[str]:
        """Return the children that do something now."""
        return [row.name for row in self._actor.of(Runs).registry.last_of_children() if row.is_open]

    def _arguments(self, tool: str, id: str) -> dict[str, str]:
        random = WORLD.random
        known = [row.name for row in self._actor.of(Runs).registry.last_of_children()][-3:]
        if tool in WITH_BUSY and tool != "spawn_agent" and random.random() < 0.8:
            known = self._busy() or known
        name = random.choice(known) if known and random.random() < 0.9 else NOBODY
        if tool == "spawn_agent":
            new = name if random.random() < 0.1 else f"n{id}"
            return {"agent": random.choice(("mate", "rover", "rover", "rover", "hand")), "name": new, "message": id}
        if tool == "send_message":
            return {"name": name, "message": id}
        if tool == "list_children":
            return {}
        if tool in COMPANIONS:
            return {"name": name}
        return {"key": id} if tool == "share_with_others" else super()._arguments(tool, id)

    async def on_run_finish(self, run: Run) -> None:
        if run.agent.type in BY_HOOK:
            await self.heard(run)

    async def show(self, name: str, number: int, slowly: bool) -> None:
        gauge = await self.sub_agent(SlowGauge if slowly else Gauge, name)
        await gauge.show(number)

    @on_child_state(Gauge)
    async def shown(self, child: PathSegment, state: Reading) -> None:
        """Hear what a gauge shows: in one slice, or in several."""
        if child.type == "SlowGauge":
            await self.flush()
        self.sql("INSERT INTO shown VALUES (?, ?)", f"{child.type} {child.name}", state.number)

    async def still_open(self) -> list[str]:
        found = await super().still_open()
        for child in self.children.list():
            if child.type in ("Gauge", "SlowGauge"):
                kind = SlowGauge if child.type == "SlowGauge" else Gauge
                found += [f"{child.name} owes"] if await (await self.sub_agent(kind, child.name)).owes() else []
        return found


TEAM = {one.__name__: one for one in (Hauler, Mate, Rover, Hand)}
KINDS |= {**TEAM, **LADDER}


class Owner(Person):
    """One user of such a root."""

    stops = 0.05

    def acts(self) -> dict[Callable[[str], Awaitable[None]], int]:
        common: dict[Callable[[str], Awaitable[None]], int] = {self.show: 3, self.watch: 2, self.sleep: 2}
        if WORLD.asks:
            asked = {self.ask: 4, self.have_asked: 12, self.decide: 16, self.stop_asking: 1, self.stop_turn: 1}
            return {**asked, self.watch: 1, self.sleep: 2, self.pause: 24}
        common[self.decide] = 3
        if WORLD.talks:
            return {self.ask: 24, **common, self.stop_turn: 1, self.pause: 24}
        return {self.share: 12, self.ask: 1, **common, self.end_sharing: 1, self.stop_run: 1, self.drill_in: 2}

    async def have_asked(self, tree: str) -> None:
        """Have somebody far down ask, and do not wait."""
        root = await self._root(tree)
        if sum(status in ("queued", "running") for *_, status in await root.given()) >= MOST_ASKED:
            return await self.pause(tree)
        id = await root.have_asked(f"{next(WORLD.numbers)}")
        WORLD.note("D", place_of(tree, ()), id)
        return None

    async def decide(self, tree: str) -> None:
        """Answer something that is asked far down: at the root, or at anybody on the way to who asks."""
        wishes = await (await self._root(tree)).questions.list()
        if not wishes:
            return await self.pause(tree)
        wish = self._random.choice(wishes)
        steps, depth = [(step.type, step.name) for step in wish.path], self._random.randint(0, len(wish.path))
        above, approved = tuple(steps[:depth]), self._random.random() < 0.6
        kind = "approved" if approved else "denied"
        WORLD.note("r", wish.id, kind)
        try:
            if self._random.random() < 0.7:
                agent: Any = await self._app.get_agent(WORLD.root, tree, sub=sub_of(above))
                wish = dataclasses.replace(wish, path=wish.path[depth:])
                if await (agent.questions.approve(wish) if approved else agent.questions.deny(wish)):
                    WORLD.note("R", wish.id, kind, wish.tool)
            else:
                tab = Tab(self._app, tree, above)
                tab.approve(wish.id, steps[depth:], approved=approved)
                await tab.until(lambda: False, 0.02)
                await tab.close()
        except NotFound:  # power was lost between what the root knows and what was asked
            return None
        return None

    async def stop_asking(self, tree: str) -> None:
        """Stop somebody on the way to who asks."""
        wishes = await (await self._root(tree)).questions.list()
        if not wishes:
            return await self.pause(tree)
        steps = [(step.type, step.name) for step in self._random.choice(wishes).path]
        depth = self._random.randrange(len(steps))
        above, run = tuple(steps[:depth]), steps[depth][1]
        try:
            agent: Any = await self._app.get_agent(WORLD.root, tree, sub=sub_of(above))
        except NotFound:
            return None
        WORLD.note("c", place_of(tree, above), run)
        if await agent.stop(run):
            WORLD.note("C", place_of(tree, above), run)
        return None

    async def decide_all(self) -> None:
        """Answer whatever is asked, for ever."""
        while True:
            for tree in self._trees:
                await self.decide(tree)

    async def share(self, tree: str) -> None:
        root = await self._may_give(tree)
        if root is None:
            return await self.pause(tree)
        key = f"{SHARED}{next(WORLD.numbers)}"
        await root.share(key)
        WORLD.note("s", place_of(tree, ()), key)
        return None

    async def end_sharing(self, tree: str) -> None:
        root = await self._root(tree)
        if going_on := await root.sharing():
            key, part_of = self._random.choice(going_on)
            WORLD.note("c", place_of(tree, ()), key)
            if await root.end_sharing(key):
                WORLD.note("C", place_of(tree, ()), part_of)
                WORLD.note("C", place_of(tree, ()), key)

    async def show(self, tree: str) -> None:
        root, name, slowly = await self._root(tree), self._random.choice(GAUGES), self._random.random() < 0.4
        number = next(WORLD.numbers)
        await root.show(name, number, slowly)
        WORLD.note("n", place_of(tree, ()), f"{'SlowGauge' if slowly else 'Gauge'} {name}", number)
