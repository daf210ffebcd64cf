"""An app under test: running in a folder of its own, crashed and restarted at will."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, overload
from unittest.mock import patch

from sapwood.address import Address
from sapwood.agent import Agent
from sapwood.app import App
from sapwood.capabilities.children import check_approvers
from sapwood.capabilities.due_work import SETTLING
from sapwood.errors import UsageError
from sapwood.kernel.actors.watchdog import SlowSlice
from sapwood.kernel.marshal.agent_class import known, with_tool_classes
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.rpc.stub import Route
from sapwood.kernel.trees.tree import Tree
from sapwood.runtimes.local import LocalRuntime
from sapwood.settings import Settings
from sapwood.storage.files import Files
from sapwood.testing.clock import FakeClock
from sapwood.testing.faults import CountingFiles, CountingGate, CrashPoints, Dead
from sapwood.testing.loop import VirtualLoop, until
from sapwood.timings import DEFAULTS, Timings

if TYPE_CHECKING:
    from sapwood.testing.recorded_tools import RecordedTools

A = TypeVar("A", bound=Agent[Any])
V = TypeVar("V")
ByAgent: TypeAlias = Mapping[type[Any], V] | Mapping[str, V] | Mapping[type[Any] | str, V]
"""Values by agent classes, or by addresses."""

PATIENCE = 0.2
"""Real seconds to wait for something that may wait for the test itself, counted from the last thing it wrote."""
CHANCES = 50
"""How often other threads must have had the core in that time: a busy machine may make no progress."""
STEP = 0.005
"""Virtual seconds between two looks at something that waits."""
ENDLESS = 5.0
"""Real seconds after which what still writes is taken for something that never ends."""


class World:
    """A running app in a test, with methods to crash and restart it."""

    def __init__(self, app: App, settings: Settings, *, slow_slices: str, timings: Timings = DEFAULTS) -> None:
        self.clock = FakeClock()
        """The clock of the app; it stands still until the test moves it."""
        self.clock.settled = self.settled
        self.points = CrashPoints()
        """The places where the app may be made to crash; they are counted from zero after every crash and restart."""
        self.slow: list[SlowSlice] = []
        """What held up the loop so far; unless the test empties it, it fails at the end."""
        self.settings = settings
        """The app's settings, with what `running` changed."""
        self.timings = timings
        self._given = app
        self._slow_slices = slow_slices
        self.app = app
        """The running app; a new one after every crash and restart."""

    async def start(self) -> None:
        self.points = CrashPoints()
        runtime = _Runtime(self.settings, self.clock, self.points, self.timings)
        self.app = WorldApp(
            agents=self._given.agents,
            deps=self._given.deps,
            authenticate=self._given.authenticate,
            authorize=self._given.authorize,
            redact=self._given.redact,
            protocols=self._given.protocols,
            user_limits=self._given.user_limits,
            operate=self._given.operate,
            models=self._given.models,
            pages=self._given.pages,
            settings=self.settings,
            runtime=runtime,
            driver=self._given.driver,
        )
        await self.app.__aenter__()
        if self._slow_slices == "fail":
            self.node.watchdog.on_slow.append(self.slow.append)

    @property
    def node(self) -> Node:
        return self.app.node

    @property
    def data(self) -> Path:
        """The data folder."""
        return Path(self.settings.data)

    @overload
    async def get_agent(self, cls: type[A], name: str) -> A: ...
    @overload
    async def get_agent(
        self,
        cls: type[Agent[Any]],
        name: str,
        *,
        sub: tuple[*tuple[tuple[type[Agent[Any]], str], ...], tuple[type[A], str]],
    ) -> A: ...
    @overload
    async def get_agent(self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[A], str]]) -> A: ...
    async def get_agent(
        self, cls: type[Agent[Any]], name: str, *, sub: Sequence[tuple[type[Agent[Any]], str]] = ()
    ) -> Any:
        """Return a stub, as `App.get_agent` does."""
        return await self.app.get_agent(cls, name, sub=sub)

    async def put_messages(self, agent: Agent[Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Add messages to the conversation of a chat agent, in the format of the AI SDK. No turn answers them.

        The model gets their texts and files, and no tool calls.
        """
        from sapwood.testing.stored_messages import put_messages

        line: Route = cast(Any, agent)._line
        await put_messages(await self.node.reach(line.address, None, None), messages)

    async def crash(self) -> None:
        """Crash the app, as kill -9 does, and start it again on the same data folder."""
        self.points.ended = True
        await self.node.die()
        await self.app.__aexit__()
        await self.start()

    def crash_at(self, point: str, nth: int = 1) -> None:
        """Crash the app when it passes a crash point. `crash()` then starts it again.

        After the crash, every call raises `Unavailable`.
        """

        node, points = self.node, self.points

        def die() -> None:
            points.ended = True
            # Once more, later: a database that was just being opened is not open yet.
            node.loop.call_soon_threadsafe(_close_databases, list(node.trees.values()))
            if node.on_other_thread():  # a flush; it fails first, and nothing is reported as durable
                node.loop.call_soon_threadsafe(node.die_now)
            else:
                node.die_now()
            raise Dead(f"The process crashed at {point!r}.")

        points.arm(point, nth, die)

    async def settled(self) -> None:
        """Wait until all work that the clock started has ended, or waits for something else.

        `clock.advance` awaits it after every step.
        """
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and not loop.has_files:
            await self._settled_on(loop)
            return
        rounds, idle, written, chances = 0, 0, -1, 0
        begun = wrote = time.monotonic()
        while idle < 3:
            now = time.monotonic()
            if written != (written := self.points.passed.total()) or self._is_flushing():
                wrote, chances = now, 0  # on a busy machine or a slow disk, that may be long after the step before
            if (now > wrote + PATIENCE and chances > CHANCES) or now > begun + ENDLESS:
                return
            rounds += 1
            if rounds < 100 and idle < 2:  # most things are over after a few rounds of the loop
                await asyncio.sleep(0)
            else:  # a longer wait leaves the core to others
                chances += 1
                await asyncio.sleep(0.0005)
            idle = 0 if self._something_due() else idle + 1

    async def _settled_on(self, loop: VirtualLoop) -> None:
        """Return when the loop is idle. What is due but waits may wait for a timer, so virtual time passes for it."""
        begun = wrote = loop.time()
        written = -1
        while await loop.idle(ENDLESS) and self._something_due():
            if written != (written := self.points.passed.total()):
                wrote = loop.time()
            if loop.time() > wrote + PATIENCE or loop.time() > begun + ENDLESS:
                return
            await asyncio.sleep(STEP)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds.

        ```python
        await world.until(lambda: "answered" in seen)
        ```

        Fails if the condition is not true within 30 seconds. On a `VirtualLoop`, these seconds are virtual: they pass
        at once when nothing is left to do, so a condition that cannot become true fails without waiting.
        """
        await until(condition)

    def _is_flushing(self) -> bool:
        try:
            gate = self.node.gate
        except UsageError:  # not running
            return False
        return isinstance(gate, CountingGate) and gate.is_flushing

    def _something_due(self) -> bool:
        try:
            node = self.node
        except UsageError:  # not running
            return False
        if not node.waking.is_quiet:
            return True
        actors = [actor for tree in node.trees.values() for actor in tree.actors.values()]
        return any(call.work is not None or call.method == SETTLING for actor in actors for call in actor.calls)

    async def restart(self) -> None:
        """Shut down the app and start it again."""
        await self.app.__aexit__()
        await self.start()

    def sleep(self) -> None:
        """Put every idle agent to sleep now."""
        self.node.sleep()


class WorldApp(App):
    """The app of a world."""

    def _check_agents(self) -> None:
        """Start without the keys of models, because most tests never ask one. Approvals are checked as in `App`."""
        if self.authenticate is not None:
            check_approvers(known(cls) for cls in self.agents)


class _Runtime(LocalRuntime):
    def __init__(self, settings: Settings, clock: FakeClock, points: CrashPoints, timings: Timings) -> None:
        super().__init__(settings, clock=clock, files=CountingFiles(points, Files()), timings=timings)
        self._points = points

    def make_gate(self) -> Gate:
        return CountingGate(self._points, super().make_gate())


W = TypeVar("W", bound=World)
SLOW = 0.5
"""Seconds without an await that fail a test: machines that run tests are slow now and then."""


@asynccontextmanager
async def running(
    app: App,
    *,
    models: ByAgent[Any] | None = None,
    tools: ByAgent[RecordedTools] | None = None,
    slow_slices: str = "fail",
    timings: Timings = DEFAULTS,
    **settings: Any,
) -> AsyncGenerator[World, None]:
    """Run an app for a test, with a new data folder and a fake clock. Changing a state in place raises.

    `models` replaces the models of chat agents by class, also where `get_model` chooses one:
    `models={Desk: ScriptedModel(text("Hello."))}`. `tools` replaces all tools of chat agents by recorded results:
    `tools={Desk: RecordedTools({"c1": "6650 km"})}`. A key may also be the address of one agent, such as
    `"Desk:main/Helper:ann"`.

    Code that blocks the event loop for half a second fails the test, unless `slow_slices="allow"`. Further
    keyword arguments replace individual settings of the app.
    """
    with _replaced(app, models or {}), _recorded(app, tools or {}):
        async with lived(World, app, slow_slices, settings, timings) as world:
            yield world
    for recorded in (tools or {}).values():
        recorded.check()


def _by_class(app: App, what: str, given: ByAgent[Any]) -> dict[type[Any], dict[str | None, Any]]:
    """Return values by class, and then by address; `None` is for all other agents of the class."""
    found: dict[type[Any], dict[str | None, Any]] = {}
    for key, value in given.items():
        if isinstance(key, type):
            found.setdefault(key, {})[None] = value
            continue
        if not isinstance(cast("object", key), str) or ":" not in key:
            one = what if what == "tools" else "model"
            raise UsageError(f"{what}: expected agent classes as keys, got {key!r}. Write {what}={{Desk: {one}}}.")
        type_id = Address.parse(key).type
        kinds = with_tool_classes([known(cls) for cls in app.agents])
        cls = next((kind.cls for kind in kinds if type_id in kind.type_ids), None)
        if cls is None:
            raise UsageError(f"{what}: the app has no class {type_id}, got the key {key!r}.")
        found.setdefault(cls, {})[key] = value
    return found


@contextmanager
def _replaced(app: App, models: ByAgent[Any]) -> Generator[None, None, None]:
    with ExitStack() as replaced:
        for cls, by_address in _by_class(app, "models", models).items():
            if not hasattr(cls, "get_model"):
                raise UsageError(f"models: {cls.__name__} is not a chat agent, so it has no model.")
            replaced.enter_context(patch.object(cls, "get_model", _getter(by_address, cls.get_model)))
        yield


@contextmanager
def _recorded(app: App, tools: ByAgent[RecordedTools]) -> Generator[None, None, None]:
    if not tools:
        yield
        return
    from sapwood.testing.recorded_tools import check_recorded

    with ExitStack() as replaced:
        for cls, by_address in _by_class(app, "tools", tools).items():
            for recorded in by_address.values():
                check_recorded(cls, recorded)
            make = _toolbox_maker(by_address, cls._toolbox)
            replaced.enter_context(patch.object(cls, "_toolbox", staticmethod(make)))
            if (own := getattr(cls, "loop", None)) is not None and None in by_address:
                replaced.enter_context(own.override(tools=[], toolsets=[by_address[None].toolset()]))
        yield


def _getter(by_address: Mapping[str | None, Any], otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def get_model(agent: Any) -> Any:
        address = str(agent.address)
        if address in by_address:
            return by_address[address]
        return by_address[None] if None in by_address else otherwise(agent)

    return get_model


def _toolbox_maker(by_address: Mapping[str | None, Any], otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def toolbox(actor: Any) -> Any:
        recorded = by_address.get(str(actor.address), by_address.get(None))
        return otherwise(actor) if recorded is None else recorded.toolbox(actor)

    return toolbox


@asynccontextmanager
async def lived(
    kind: type[W], app: App, slow_slices: str, settings: dict[str, Any], timings: Timings = DEFAULTS
) -> AsyncGenerator[W, None]:
    """Run an app in a world of this kind, as `running` does."""
    with tempfile.TemporaryDirectory(prefix="sapwood-") as folder:
        changed = replace(app.settings, **{"data": folder, "check_state": True, "slow_after": SLOW, **settings})
        world = kind(app, changed, slow_slices=slow_slices, timings=timings)
        await world.start()
        try:
            yield world
        finally:
            world.points.disarm()  # the test is over: nothing fails while it shuts down
            await world.app.__aexit__()
        if world.slow:
            raise AssertionError("\n".join(str(slow) for slow in world.slow))


def _close_databases(trees: Sequence[Tree]) -> None:
    for tree in trees:
        for database in tree.databases.values():
            database.close()
