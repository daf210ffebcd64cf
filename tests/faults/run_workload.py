"""What agents have others do while processes are killed: helpers and theirs, by models and by code, waited for or not.

A root has helpers, who have helpers of their own: some talk, some only work. Everything that
happens has a number of its own, so nothing can be mistaken for what it was before. A run that
nobody waits for has an id that begins with `d-`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any, ClassVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.faults import chat_rules
from tests.faults.chat_workload import rounds
from tests.faults.line import Line
from tests.faults.time_workload import World
from tests.faults.workload import EXPECTED

from sapwood import Agent, App, ChatAgent, Run, Turn, agent_tool, tool
from sapwood.address import Address
from sapwood.chat.store.record import ConversationRecord
from sapwood.errors import Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.contract import doing
from sapwood.runs.tables import executed_runs_table
from sapwood.runs.tables.executed_runs_table import SERVED
from sapwood.runs.tables.runs_table import RunsTable
from sapwood.wire import chat as wire
from sapwood.wire import runs as runs_wire

CLIENTS = 4
MOST_TURNS = 3
"""How many turns may be open when somebody says something."""
MOST_RUNS = 6
"""How many runs may be open when somebody gives one."""
ONCE = ("once", "hand_on", "send_off")
"""Tools that may not be called again when nobody knows whether they were."""
DETACHED = "d-"


class RunWorld(World):
    """The same, with the class of the roots."""

    root: type[Chief]
    talks = False
    """Whether people talk to it in this life, rather than share out its work."""
    asks = False
    """Whether what its model does then is mostly to have somebody far down ask for approval."""


WORLD = RunWorld()


async def takes_time() -> None:
    await asyncio.sleep(WORLD.random.choice((0.0, 0.005, 0.03)) * WORLD.random.random())


def chain(actor: Actor, run: str | None) -> list[str]:
    """Return all that a run an agent does is part of: whoever cancels any of it cancels what the agent does."""
    found: list[str] = []
    while actor.parent is not None and run is not None:
        parent = actor.parent
        row = RunsTable(parent.database, actor.host.clock).get(run)
        if row is None:
            found.append(f"{parent.address} does not know {run}")
            break
        found.append(f"{parent.address} {run}")
        if row.detached is not None or row.work is None:
            break
        found.append(f"{parent.address} {row.work}")
        served = executed_runs_table.find(parent.database, row.work) if parent.database.has(SERVED) else None
        if served is None:
            break  # it is part of something that the parent does by itself
        if row.status == "interrupted" and served.status != "running":
            break  # the parent gave it up, and ended without it: it is part of nothing that could still be cancelled
        actor, run = parent, row.work
    return found


class Hearing(Agent):
    """One that is told of what nobody waited for."""

    migrations = ("CREATE TABLE heard (run TEXT NOT NULL, status TEXT NOT NULL) STRICT",)

    async def heard(self, run: Run) -> None:
        """Hear of a run, in one slice."""
        WORLD.note("h", str(self._actor.address), run.id, run.status)
        self.sql("INSERT INTO heard VALUES (?, ?)", run.id, run.status)

    async def heard_slowly(self, run: Run) -> None:
        """Hear of a run, in several."""
        WORLD.note("h", str(self._actor.address), run.id, run.status)
        await takes_time()
        self.sql("INSERT INTO heard VALUES (?, ?)", run.id, run.status)

    async def _send_off(self, key: str, *, notify: bool = False) -> Run:
        """Have something done that nobody waits for."""
        slowly = Random(key).random() < 0.3
        return await self.start_run(
            Random(key).choice((Digger, Porter, Clerk)),
            key,
            run_id=f"{DETACHED}{key}",
            on_finish=self.heard_slowly if slowly else self.heard,
            notify=notify,
        )

    async def given(self) -> list[tuple[str, str, str, str]]:
        """Return the runs it has given: id, type and name of who does it, and status."""
        return [(row.id, row.type, row.name, row.status) for row in self._actor.of(Runs).registry.all()]

    def _run(self) -> str:
        """Return the run that this code belongs to."""
        found = doing.get()
        assert found is not None
        return found[1]

    async def still_open(self) -> list[str]:
        """Return what is not over here."""
        database, found = self._actor.database, list[str]()
        for table, what in (
            ("sapwood_runs", "status IN ('queued', 'running')"),
            ("sapwood_served_runs", "status = 'running'"),
            ("sapwood_turns", "status IN ('queued', 'running', 'waiting')"),
            ("sapwood_fibers", "due_at IS NOT NULL"),
            ("sapwood_calls", "1"),
        ):
            if database.exists and database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", table):
                ((count,),) = database.execute(f"SELECT count(*) FROM {table} WHERE {what}")
                found += [f"{count} of {table}"] if count else []
        return found


class Working(Hearing):
    """A plain agent, whose work is a method."""

    async def _begin(self, input: str) -> Random:
        WORLD.note("b", str(self._actor.address), self._run(), chain(self._actor, self._run()))
        await asyncio.sleep(0)
        return Random(input)

    async def _do(self, random: Random, input: str) -> None:
        """Do some steps, report of them, and perhaps have others do more."""
        for at in range(random.randint(0, 3)):
            await self.step(f"dig {at}", self._dig, f"{self._actor.address} {self._run()} {at}")
            if random.random() < 0.4:
                self.report_progress(0.1 * at, f"dug {at}", milestone=f"m{at}" if random.random() < 0.5 else None)
        if len(self._actor.address.segments) < 4:
            draw = random.random()
            if draw < 0.25:
                run = await self.run_agent(random.choice((Digger, Porter, Clerk)), f"{input}.x")
                WORLD.note("i", str(self._actor.address), run.id, run.status, run.output)
            elif draw < 0.4:
                await self._send_off(f"{input}.y")
        await takes_time()
        if random.random() < 0.1:
            raise ValueError(f"poor {input}")

    async def _dig(self, key: str) -> int:
        WORLD.note("p", key, chain(self._actor, self._run()))
        await takes_time()
        WORLD.note("P", key)
        return next(WORLD.numbers)


class Digger(Working):
    """Digs, and says what it has found at the end."""

    async def on_run(self, input: str) -> dict[str, Any]:
        random = await self._begin(input)
        await self._do(random, input)
        return {"did": input, "number": next(WORLD.numbers)}


class Porter(Working):
    """Carries, and talks all the way."""

    async def on_run(self, input: str) -> AsyncIterator[str]:
        random = await self._begin(input)
        for word in range(random.randint(1, 4)):
            yield f"w{next(WORLD.numbers)}.{word} "
            await takes_time()
        await self._do(random, input)
        yield f"did {input} {next(WORLD.numbers)}"


class Conversing(ChatAgent[str], Hearing):
    """A conversation, of which it is noted down when its model is asked, and when its tools run."""

    max_steps = 12

    def get_model(self) -> Any:
        return FunctionModel(stream_function=self._say, model_name="made-up")

    async def before_step(self, turn: Turn, step: int) -> None:
        WORLD.note("q", str(self._actor.address), turn.id, step, self._part_of(turn.id))

    def _part_of(self, turn: str) -> list[str]:
        """Return all that a turn is part of, itself included."""
        row = self._actor.of(ConversationRecord).turns.get(turn)
        return [f"{self._actor.address} {turn}", *chain(self._actor, None if row is None else row.run)]

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for problem in chat_rules.broken(messages, is_asked=True):
            WORLD.note("e", f"the model of {self._actor.address} was asked what no provider takes: {problem}")
        async for said in self._answer(messages, info):
            yield said

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        """Say what the model says."""
        raise NotImplementedError

    def _begins(self, key: str, name: str) -> None:
        running = self._actor.of(ConversationRecord).turns.running()
        WORLD.note("t", key, name, [] if running is None else self._part_of(running.id))

    def _ends(self, key: str, name: str) -> str:
        value = f"{name} {key} {next(WORLD.numbers)}"
        WORLD.note("z", key, value)
        return value


class Speaking(Conversing):
    """One whose model makes it up."""

    most_rounds: ClassVar = 2
    """How often the model calls tools in one turn, at most."""

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        number, random = next(WORLD.numbers), WORLD.random
        draw = random.random()
        if draw < 0.02 and WORLD.journal is not None and not WORLD.calm:
            raise ValueError(f"the model has no answer {number}")
        deep = len(self._actor.address.segments) - 1
        calling = rounds(messages) < self.most_rounds and draw < (0.9, 0.75, 0.5, 0.5)[deep] and not WORLD.calm
        for word in range(random.choice((0, 2)) if calling else random.choice((1, 4, 10))):
            yield f"w{number}.{word} "
            if random.random() < 0.4:
                await asyncio.sleep(random.random() * 0.01)
        if calling:
            names = [one.name for one in info.function_tools if deep < 3 or one.name in ("once", "again")]
            for at in range(random.choice((1, 1, 2, 3))):
                id, name = f"c{number}-{at}", self._choose(names)
                yield {at: DeltaToolCall(name=name, json_args=json.dumps(self._arguments(name, id)), tool_call_id=id)}

    def _choose(self, names: list[str]) -> str:
        """Return the tool that the model calls."""
        return WORLD.random.choice(names)

    def _arguments(self, tool: str, id: str) -> dict[str, str]:
        """Return what the model calls a tool with."""
        return {"key" if tool in TOOLS else "message": id}

    @tool
    async def once(self, key: str) -> str:
        """Do it once."""
        self._begins(key, "once")
        await takes_time()
        return self._ends(key, "once")

    @tool(idempotent=True)
    async def again(self, key: str) -> str:
        """Do it, perhaps again."""
        self._begins(key, "again")
        await takes_time()
        return self._ends(key, "again")

    @tool
    async def hand_on(self, key: str) -> str:
        """Have two others do it, side by side."""
        self._begins(key, "hand_on")
        await self._both(key)
        return self._ends(key, "hand_on")

    @tool(idempotent=True)
    async def hand_on_again(self, key: str) -> str:
        """The same, perhaps again."""
        self._begins(key, "hand_on_again")
        await self._both(key)
        return self._ends(key, "hand_on_again")

    async def _both(self, key: str) -> None:
        kinds = Random(key).sample((Digger, Porter, Clerk), 2)
        runs = await asyncio.gather(*(self.run_agent(kind, f"{key}.{at}") for at, kind in enumerate(kinds)))
        for run in runs:
            WORLD.note("i", str(self._actor.address), run.id, run.status, run.output)

    @tool
    async def send_off(self, key: str) -> str:
        """Have another do it, and do not wait."""
        self._begins(key, "send_off")
        await self._send_off(key, notify=Random(f"notify {key}").random() < 0.5)
        return self._ends(key, "send_off")


TOOLS = ("once", "again", "hand_on", "hand_on_again", "send_off")


class Clerk(Speaking):
    """Knows what is written."""


class Scout(Speaking):
    """Looks, and has others look."""

    tools = (agent_tool(Clerk), agent_tool(Digger))


class Chief(Speaking):
    """A root."""

    tools = (agent_tool(Scout), agent_tool(Porter), agent_tool(Digger))

    async def give(self, kind: str, id: str, timeout: float | None) -> tuple[str, Any]:
        """Have something done, and wait for it."""
        run = await self.run_agent(KINDS[kind], f"k{id}", run_id=id, timeout=timeout)
        return run.status, run.output

    async def send_out(self, key: str, *, notify: bool) -> str:
        return (await self._send_off(key, notify=notify)).id

    async def plan(self, key: str) -> None:
        self.start_fiber(f"plan {key}", self.carry_out, key)

    async def carry_out(self, key: str) -> None:
        """Have several things done, one after the other, whatever happens in between."""
        for at in range(2):
            run = await self.run_agent(KINDS[Random(f"{key} {at}").choice([*KINDS])], f"{key}.{at}")
            WORLD.note("i", str(self._actor.address), run.id, run.status, run.output)

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id, "enough")

    async def open_turns(self) -> list[str]:
        return [row.id for row in self._actor.of(ConversationRecord).turns.all() if row.is_open]


WORLD.root = Chief
KINDS: dict[str, type[Agent[Any]]] = {one.__name__: one for one in (Digger, Porter, Clerk, Scout)}
Path = tuple[tuple[str, str], ...]


def path_of(address: Address) -> Path:
    return tuple((step.type, step.name) for step in address.segments[1:])


def sub_of(path: Path) -> list[tuple[type[Agent[Any]], str]]:
    return [(KINDS[kind], name) for kind, name in path]


def place_of(tree: str, path: Path) -> str:
    address = Address.root_of(WORLD.root.__name__, tree)
    for kind, name in path:
        address = address.child(kind, name)
    return str(address)


class Tab(Line):
    """One client's socket: notes down every frame about runs when it arrives."""

    def __init__(self, app: App, tree: str, path: Path = (), *, at_the_end: bool = False) -> None:
        super().__init__(f"tab-{next(WORLD.numbers)}")
        self._news = asyncio.Event()
        self.is_over = False
        self.ended: set[str] = set()
        """The runs that have come to an end, as far as this client knows."""
        self.done: set[str] = set()
        """The turns that have."""
        where = app.path_to(WORLD.root, tree, sub=sub_of(path))
        scope = {"type": "websocket", "path": where, "raw_path": where.encode(), "query_string": b"", "headers": []}
        WORLD.note("o", self.name, place_of(tree, path), at_the_end)
        self._served = asyncio.ensure_future(app(scope, self.inbox.get, self.send))

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.is_over = True
        if isinstance(text := message.get("text"), str):
            frame = json.loads(text)
            if frame["type"] == runs_wire.EVENT:
                WORLD.note("f", self.name, frame)
                WORLD.note("a", [1])
                if frame["event"]["kind"] not in ("started", "chunk"):
                    self.ended.add(frame["event"]["runId"])
            elif frame["type"] == wire.RESPONSE and frame["done"]:
                self.done.add(frame["id"])
        self._news.set()

    async def until(self, test: Callable[[], bool], seconds: float) -> bool:
        """Return whether this came true in time."""
        end = time.monotonic() + seconds
        while not test() and not self.is_over and time.monotonic() < end:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(end - time.monotonic(), 0))
        return test()

    def speak(self) -> str:
        """Say something; return what the answer will be called by."""
        number = next(WORLD.numbers)
        said = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": f"say {number}"}]}
        body = {"messages": [said], "trigger": "submit-message"}
        frame = {"id": f"r{number}", "init": {"method": "POST", "body": json.dumps(body)}, "type": wire.REQUEST}
        self.say(json.dumps(frame))
        return f"r{number}"

    def approve(self, call: str, path: Sequence[tuple[str, str]], *, approved: bool) -> None:
        """Answer what is asked by somebody further down."""
        steps = [{"type": kind, "name": name} for kind, name in path]
        frame = {"type": wire.TOOL_APPROVAL, "toolCallId": call, "approved": approved, "path": steps}
        self.say(json.dumps(frame))

    async def close(self) -> None:
        self.leave()
        await asyncio.wait({self._served})


class Person:
    """One user of the root."""

    stops = 0.15
    """How often it stops what it has asked for."""

    def __init__(self, app: App, random: Random, trees: Sequence[str], ids: list[str]) -> None:
        self._app = app
        self._random = random
        self._trees = trees
        self._ids = ids
        """The runs that were given from here, by any of us: some are given twice."""
        acts = self.acts()
        self._acts, self._weights = list(acts), list(acts.values())

    def acts(self) -> dict[Callable[[str], Awaitable[None]], int]:
        """Return what it does, and how often."""
        return {
            self.ask: 12,
            self.watch: 6,
            self.drill_in: 4,
            self.give: 6,
            self.send_out: 4,
            self.plan: 2,
            self.stop_run: 2,
            self.stop_turn: 2,
            self.sleep: 2,
            self.pause: 8,
        }

    async def run(self) -> None:
        while True:
            (act,) = self._random.choices(self._acts, self._weights)
            try:
                await act(self._random.choice(self._trees))
            except EXPECTED as error:
                if (
                    "sleep" not in str(error) and act != self.drill_in
                ):  # who has not begun, or was stopped, is not there
                    WORLD.note("e", f"{act.__name__}: {error!r}")
            except Refused as error:
                WORLD.note("e", f"{act.__name__}: {error!r}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
                WORLD.note("e", f"{act.__name__}: {error!r}{getattr(error, 'remote_traceback', '')}")

    async def _root(self, tree: str) -> Any:
        return await self._app.get_agent(WORLD.root, tree)

    async def ask(self, tree: str) -> None:
        """Say something, listen for a while, and leave."""
        root = await self._root(tree)
        if len(await root.open_turns()) >= MOST_TURNS:
            return await self.pause(tree)
        tab = Tab(self._app, tree)
        id = tab.speak()
        await tab.until(lambda: id in tab.done, self._random.choice((0.02, 0.1, 0.6)))
        if self._random.random() < self.stops:
            await self._stop_turn(root, tree, id)
        await tab.close()
        return None

    async def watch(self, tree: str) -> None:
        """Come in the middle, and listen."""
        await self._root(tree)
        tab = Tab(self._app, tree)
        await tab.until(lambda: False, self._random.choice((0.01, 0.05, 0.3)))
        await tab.close()

    async def drill_in(self, tree: str) -> None:
        """Watch a helper, and what its own helpers do."""
        runs = await (await self._root(tree)).given()
        if not runs:
            return await self.pause(tree)
        _, kind, name, _ = self._random.choice(runs[-6:])
        path = ((kind, name),)
        await self._app.get_agent(WORLD.root, tree, sub=sub_of(path))
        tab = Tab(self._app, tree, path)
        await tab.until(lambda: False, self._random.choice((0.01, 0.05, 0.2)))
        await tab.close()
        return None

    async def _may_give(self, tree: str) -> Any:
        root = await self._root(tree)
        open_runs = [id for id, *_, status in await root.given() if status in ("queued", "running")]
        return root if len(open_runs) < MOST_RUNS else None

    async def give(self, tree: str) -> None:
        """Have code of the root give a run, and wait; sometimes it is one that was given before."""
        root = await self._may_give(tree)
        if root is None:
            return await self.pause(tree)
        kind, id = self._random.choice([*KINDS]), f"{tree}-{next(WORLD.numbers)}"
        mine = [one for one in self._ids if one.startswith(tree)]
        if mine and self._random.random() < 0.4:
            id, kind = self._random.choice(mine[-4:]).split(" ")
        else:
            self._ids.append(f"{id} {kind}")
        timeout = self._random.choice((None, None, None, None, 0.05))
        WORLD.note("g", place_of(tree, ()), id)
        status, output = await root.give(kind, id, timeout)
        WORLD.note("G", place_of(tree, ()), id, status, output)
        return None

    async def send_out(self, tree: str) -> None:
        root = await self._may_give(tree)
        if root is None:
            return await self.pause(tree)
        id = await root.send_out(f"s{next(WORLD.numbers)}", notify=self._random.random() < 0.3)
        WORLD.note("D", place_of(tree, ()), id)
        return None

    async def plan(self, tree: str) -> None:
        root = await self._may_give(tree)
        if root is not None:
            await root.plan(f"p{next(WORLD.numbers)}")

    async def stop_run(self, tree: str) -> None:
        root = await self._root(tree)
        going_on = [id for id, *_, status in await root.given() if status in ("queued", "running")]
        if going_on:
            id = self._random.choice(going_on)
            WORLD.note("c", place_of(tree, ()), id)
            if await root.stop(id):
                WORLD.note("C", place_of(tree, ()), id)

    async def stop_turn(self, tree: str) -> None:
        root = await self._root(tree)
        if turns := await root.open_turns():
            await self._stop_turn(root, tree, turns[0])

    async def _stop_turn(self, root: Any, tree: str, id: str) -> None:
        WORLD.note("c", place_of(tree, ()), id)
        if await root.turns.cancel(id):
            WORLD.note("C", place_of(tree, ()), id)

    async def sleep(self, tree: str) -> None:
        self._app.node.sleep()

    async def pause(self, tree: str) -> None:
        await asyncio.sleep(self._random.random() * 0.04)


async def work(app: App, random: Random, trees: Sequence[str], person: type[Person] = Person) -> None:
    """Have people use the roots, for ever."""
    ids: list[str] = []
    people = [person(app, Random(random.random()), trees, ids) for _ in range(CLIENTS)]
    await asyncio.gather(*(person.run() for person in people))
