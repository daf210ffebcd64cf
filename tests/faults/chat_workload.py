"""What is said while processes are killed: conversations at three depths, tools side by side, people who come and go.

Everything a model says has a number of its own in every word, and so has every tool call: a
model that is asked again says something else, as real ones do, so nothing can be mistaken
for what it was before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from tests.faults import chat_rules
from tests.faults.line import Line
from tests.faults.time_workload import World
from tests.faults.workload import EXPECTED

from sapwood import App, ChatAgent, Turn, tool
from sapwood.address import Address
from sapwood.chat.store.record import ConversationRecord
from sapwood.errors import Refused
from sapwood.wire import chat as wire

TREES = ("ash", "fir")
CLIENTS = 4
AT_ONCE = 3
"""How many conversations the clients of one folder have."""
MOST_ROUNDS = 3
"""How often a model calls tools in one turn, at most."""
BROWSER = "browser"
"""The tool that clients run."""
ONCE = ("once", "quick", "careful", "far", "poor")
"""Tools that may not be called again when nobody knows whether they were."""
IDEMPOTENT = ("again", "far_again")
NAMES = (*ONCE, *IDEMPOTENT)
REFUSALS = (
    "There is no turn to continue.",
    "The turn was cleared.",
    "The conversation has a ",
    "There is no message ",  # it was cleared since
)

WORLD = World()


def _begins(key: str, name: str) -> None:
    WORLD.note("t", key, name)


def _ends(key: str, name: str) -> str:
    value = f"{name} {key} {next(WORLD.numbers)}"
    WORLD.note("z", key, value)
    return value


async def _takes_time() -> None:
    await asyncio.sleep(WORLD.random.choice((0.0, 0.005, 0.05)) * WORLD.random.random())


def far(key: str) -> str:
    """Run in a thread."""
    _begins(key, "far")
    time.sleep(WORLD.random.random() * 0.004)
    return _ends(key, "far")


@tool(idempotent=True)
async def far_again(key: str) -> str:
    """Run without an agent, perhaps again."""
    _begins(key, "far_again")
    await _takes_time()
    return _ends(key, "far_again")


class Talker(ChatAgent[str]):
    """One conversation, whose model makes it up."""

    tools = (far, far_again)
    max_steps = 12
    debounce = 0.02
    migrations = (
        "CREATE TABLE runs (key TEXT NOT NULL) STRICT",
        "CREATE TABLE ends (turn TEXT NOT NULL, status TEXT NOT NULL) STRICT",
    )

    def get_model(self) -> Any:
        return FunctionModel(self._summarise, stream_function=self._say, model_name="made-up")

    @property
    def _place(self) -> str:
        return str(self._actor.address)

    async def before_step(self, turn: Turn, step: int) -> None:
        WORLD.note("q", self._place, turn.id, step)

    async def after_turn(self, turn: Turn) -> None:
        self.sql("INSERT INTO ends VALUES (?, ?)", turn.id, turn.status)

    async def _summarise(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._check(messages)
        await asyncio.sleep(WORLD.random.random() * 0.01)
        return ModelResponse(parts=[TextPart(f"short {next(WORLD.numbers)}")])

    def _check(self, messages: Sequence[ModelMessage]) -> None:
        for problem in chat_rules.broken(messages, is_asked=True):
            WORLD.note("e", f"the model of {self._place} was asked what no provider takes: {problem}")

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self._check(messages)
        number, random = next(WORLD.numbers), WORLD.random
        draw = random.random()
        if draw < 0.03:
            raise ValueError(f"the model has no answer {number}")
        calling = rounds(messages) < MOST_ROUNDS and draw < 0.75 and not WORLD.calm
        for word in range(random.choice((0, 0, 2, 8)) if calling else random.choice((1, 4, 16))):
            yield f"w{number}.{word} "
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.006)
        if calling:
            known = [one.name for one in info.function_tools]
            for at in range(random.randint(1, 4)):
                id = f"c{number}-{at}"
                name = BROWSER if BROWSER in known and random.random() < 0.25 else random.choice(NAMES)
                yield {at: DeltaToolCall(name=name, json_args=json.dumps({"key": id}), tool_call_id=id)}
                if random.random() < 0.2:
                    await asyncio.sleep(random.random() * 0.004)

    @tool
    async def once(self, key: str) -> str:
        """Do it once."""
        _begins(key, "once")
        self.sql("INSERT INTO runs VALUES (?)", key)
        await _takes_time()
        return _ends(key, "once")

    @tool(name="quick")
    def _quick(self, key: str) -> str:
        """Do it at once, and once."""
        _begins(key, "quick")
        self.sql("INSERT INTO runs VALUES (?)", key)
        return _ends(key, "quick")

    @tool(requires_approval=True)
    async def careful(self, key: str) -> str:
        """Do it if somebody allows it."""
        _begins(key, "careful")
        await _takes_time()
        return _ends(key, "careful")

    @tool
    async def poor(self, key: str) -> str:
        """Fail."""
        _begins(key, "poor")
        await _takes_time()
        raise ValueError(f"poor {key}")

    @tool(idempotent=True)
    async def again(self, key: str) -> str:
        """Do it, perhaps again."""
        _begins(key, "again")
        await _takes_time()
        return _ends(key, "again")

    async def grow(self, kind: str, name: str) -> None:
        await self.sub_agent(KINDS[kind], name)

    async def open_turns(self) -> list[str]:
        """Return how the turns stand that are not over."""
        return [row.status for row in self._actor.of(ConversationRecord).turns.all() if row.is_open]

    async def open_calls(self) -> list[tuple[str, str]]:
        """Return the tool calls that wait for somebody."""
        turns = self._actor.of(ConversationRecord).turns
        waiting = turns.waiting()
        calls = turns.calls(waiting.number) if waiting is not None else []
        return [(call.id, call.name) for call in calls if call.is_open]


class Salon(Talker):
    """A root; what is said waits for its turn."""


class Last(Talker):
    concurrency = "latest"


class Merged(Talker):
    concurrency = "merge"


class Dropped(Talker):
    concurrency = "drop"


class Bounced(Talker):
    concurrency = "debounce"


class Broken(Talker):
    concurrency = "interrupt"


class Short(Talker):
    """One whose model is told only a summary of what is old."""

    compact_above = 250

    async def compact(self, messages: list[ModelMessage]) -> str | None:
        await asyncio.sleep(WORLD.random.random() * 0.01)
        return None if WORLD.random.random() < 0.5 else f"in short {next(WORLD.numbers)}"


KINDS: dict[str, type[Talker]] = {one.__name__: one for one in (Last, Merged, Dropped, Bounced, Broken, Short)}
Path = tuple[tuple[str, str], ...]
PATHS: tuple[Path, ...] = (
    (),
    (("Last", "l"),),
    (("Merged", "m"),),
    (("Short", "s"),),
    (("Short", "s"), ("Bounced", "b")),
    (("Last", "l"), ("Broken", "k")),
    (("Merged", "m"), ("Dropped", "d")),
    (("Short", "s"), ("Short", "t")),
)


class Place(msgspec.Struct, frozen=True):
    """Where a conversation is."""

    tree: str
    path: Path

    def sub(self) -> list[tuple[type[Talker], str]]:
        return [(KINDS[kind], name) for kind, name in self.path]

    @classmethod
    def at(cls, address: Address) -> Place:
        return cls(address.root.name, tuple((step.type, step.name) for step in address.segments[1:]))

    async def agent(self, app: App) -> Talker:
        """Return the agent; make it, and those above it, if it is not there."""
        agent: Talker = await app.get_agent(Salon, self.tree)
        for depth, (kind, name) in enumerate(self.path, 1):
            await agent.grow(kind, name)
            agent = await app.get_agent(Salon, self.tree, sub=self.sub()[:depth])
        return agent


def places(random: Random) -> list[Place]:
    """Return the conversations of one folder."""
    return random.sample([Place(tree, path) for tree in TREES for path in PATHS], AT_ONCE)


def rounds(messages: Sequence[ModelMessage]) -> int:
    """Return how often the model was asked since the user spoke."""
    count = 0
    for message in reversed(messages):
        if any(part.part_kind == "user-prompt" for part in message.parts):
            break
        count += message.kind == "response"
    return count


class Tab(Line):
    """One client's socket: notes down every frame when it arrives, and knows who waits for an answer."""

    def __init__(self, app: App, place: Place) -> None:
        super().__init__(f"tab-{next(WORLD.numbers)}")
        self._news = asyncio.Event()
        self.place = place
        self.frames: list[dict[str, Any]] = []
        self.is_over = False
        self.waiting: dict[str, str] = {}
        """Tool calls that wait for this client's person, or for itself, and the tool's name."""
        path = app.path_to(Salon, place.tree, sub=place.sub())
        scope = {"type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        WORLD.note("o", self.name, str(address_of(place)))
        self._served = asyncio.ensure_future(app(scope, self.inbox.get, self.send))

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.is_over = True
        if isinstance(text := message.get("text"), str):
            frame = json.loads(text)
            if frame["type"] not in ("cf_agent_identity", "cf_agent_mcp_servers"):
                WORLD.note("f", self.name, frame)
                self._look(frame)
                self.frames.append(frame)
        self._news.set()

    def _look(self, frame: dict[str, Any]) -> None:
        """Notice who is asked for something."""
        if frame["type"] == wire.RESPONSE:
            WORLD.note("a", [1])
            if frame["body"] and not frame["done"]:
                chunk = json.loads(frame["body"])
                id = chunk.get("toolCallId", "")
                if chunk["type"] == "tool-approval-request":
                    self.waiting[id] = "careful"
                elif chunk["type"] == "tool-input-available" and chunk["toolName"] == BROWSER:
                    self.waiting[id] = BROWSER
        elif frame["type"] == wire.MESSAGES:
            for part in frame["messages"][-1]["parts"] if frame["messages"] else ():
                if part.get("state") == "approval-requested":
                    self.waiting[part["toolCallId"]] = "careful"
                elif part.get("state") == "input-available" and part["type"] == f"tool-{BROWSER}":
                    self.waiting[part["toolCallId"]] = BROWSER

    async def until(self, test: Callable[[dict[str, Any]], bool], seconds: float, *, since: int = 0) -> Any:
        """Return the first frame like this; None if none comes in time."""
        end = time.monotonic() + seconds
        while not self.is_over:
            while since < len(self.frames):
                if test(self.frames[since]):
                    return self.frames[since]
                since += 1
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), end - time.monotonic())
            except TimeoutError:
                break
        return None

    async def until_done(self, id: str, seconds: float) -> None:
        """Listen to the end, or for so long."""
        await self.until(lambda frame: is_done(frame, id), seconds)

    def tell(self, frame: dict[str, Any]) -> None:
        self.say(json.dumps(frame))

    async def resume(self) -> str | None:
        """Ask what streams, and take it; return its id."""
        probe = f"p{next(WORLD.numbers)}"
        self.tell({"type": wire.RESUME, "probeId": probe})
        answers = (wire.RESUMING, wire.RESUME_NONE)
        found = await self.until(lambda frame: frame["type"] in answers and frame.get("probeId") == probe, 0.1)
        if found is None or found["type"] != wire.RESUMING:
            return None
        WORLD.note("k", self.name, found["id"])
        self.tell({"type": wire.RESUME_ACK, "id": found["id"]})
        return found["id"]

    def speak(self, *, regenerate: bool = False) -> str:
        """Say something; return what the answer will be called by."""
        number = next(WORLD.numbers)
        id, message = f"r{number}", f"u{number}"
        said: list[Any] = [{"id": message, "role": "user", "parts": [{"type": "text", "text": f"say {number}"}]}]
        if regenerate:
            shown = [frame["messages"] for frame in self.frames if frame["type"] == wire.MESSAGES]
            said = shown[-1][:-1] if shown else []
        WORLD.note("s", self.name, str(address_of(self.place)), id, [] if regenerate else [message])
        tools = [{"name": BROWSER, "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}]
        body: dict[str, Any] = {"messages": said, "trigger": "regenerate-message" if regenerate else "submit-message"}
        if WORLD.random.random() < 0.6:
            body["clientTools"] = tools
        self.tell({"id": id, "init": {"method": "POST", "body": json.dumps(body)}, "type": wire.REQUEST})
        return id

    def answer(self, id: str, name: str, *, go_on: bool = True) -> None:
        """Answer for a tool call."""
        number = next(WORLD.numbers)
        self.waiting.pop(id, None)
        if name == BROWSER:
            WORLD.note("r", id, "done", f"seen {number}")
            frame = {"type": wire.TOOL_RESULT, "toolCallId": id, "toolName": BROWSER, "output": f"seen {number}"}
        else:
            approved = WORLD.random.random() < 0.7
            WORLD.note("r", id, "approved" if approved else "denied", None)
            frame = {"type": wire.TOOL_APPROVAL, "toolCallId": id, "approved": approved}
        self.tell({**frame, "autoContinue": go_on})

    async def close(self) -> None:
        WORLD.note("l", self.name)
        self.leave()
        await asyncio.wait({self._served})


def address_of(place: Place) -> Address:
    address = Address.root_of("Salon", place.tree)
    for kind, name in place.path:
        address = address.child(kind, name)
    return address


def is_done(frame: dict[str, Any], id: str) -> bool:
    return frame["type"] == wire.RESPONSE and frame["id"] == id and frame["done"]


class Person:
    """One user of the conversations."""

    def __init__(self, app: App, random: Random, where: Sequence[Place]) -> None:
        self._app = app
        self._random = random
        self._where = where
        acts: dict[Callable[[Place], Awaitable[None]], int] = {
            self.visit: 24,
            self.begin: 3,
            self.watch: 10,
            self.send: 5,
            self.cancel: 1,
            self.decide: 4,
            self.clear: 1,
            self.go_on: 1,
            self.switch: 2,
            self.sleep: 3,
            self.pause: 3,
        }
        self._acts, self._weights = list(acts), list(acts.values())

    async def run(self) -> None:
        while True:
            (act,) = self._random.choices(self._acts, self._weights)
            try:
                await act(self._random.choice(self._where))
            except EXPECTED as error:
                if "sleep" not in str(error):
                    WORLD.note("e", f"{act.__name__}: {error!r}")
            except Refused as error:
                if not str(error).startswith(REFUSALS):
                    WORLD.note("e", f"{act.__name__}: {error!r}")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
                WORLD.note("e", f"{act.__name__}: {error!r}{getattr(error, 'remote_traceback', '')}")

    async def _open(self, place: Place) -> Tab:
        await place.agent(self._app)
        return Tab(self._app, place)

    async def visit(self, place: Place) -> None:
        """Say something, listen to the answer or not, answer what one is asked, and leave."""
        tab = await self._open(place)
        if self._random.random() < 0.5:
            await tab.resume()
        for _ in range(self._random.randint(1, 3)):
            id = tab.speak(regenerate=self._random.random() < 0.1)
            if self._random.random() < 0.25:
                continue
            await tab.until_done(id, self._random.choice((0.02, 0.1, 0.5)))
            if self._random.random() < 0.15:
                self._cancel(tab, id)
            await self._answer(tab)
        await tab.close()

    async def begin(self, place: Place) -> None:
        """Begin a conversation where there was none."""
        name = f"new-{next(WORLD.numbers)}"
        kind = self._random.choice([*KINDS])
        new = self._random.choice((Place(name, ()), Place(place.tree, (*place.path[:1], (kind, name)))))
        await self.visit(new)

    async def watch(self, place: Place) -> None:
        """Come in the middle, and listen."""
        tab = await self._open(place)
        if self._random.random() < 0.8:
            id = await tab.resume()
            if id is not None:
                await tab.until_done(id, self._random.choice((0.02, 0.1, 0.5)))
        await asyncio.sleep(self._random.random() * 0.05)
        await self._answer(tab)
        await tab.close()

    def _cancel(self, tab: Tab, id: str) -> None:
        WORLD.note("c", str(address_of(tab.place)), id)
        tab.tell({"type": wire.CANCEL, "id": id})

    async def _answer(self, tab: Tab) -> None:
        for id, name in list(tab.waiting.items()):
            if self._random.random() < 0.6:
                await asyncio.sleep(self._random.random() * 0.01)
                tab.answer(id, name, go_on=self._random.random() < 0.9)
        if self._random.random() < 0.5:
            await tab.resume()

    async def send(self, place: Place) -> None:
        """Say something from Python; it returns when the answer is there."""
        agent = await place.agent(self._app)
        number = next(WORLD.numbers)
        message = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": f"send {number}"}]}
        WORLD.note("s", None, str(address_of(place)), None, [message["id"]])
        turn = await agent.send([message])
        WORLD.note("d", str(address_of(place)), turn.id, turn.status, message["id"])

    async def cancel(self, place: Place) -> None:
        agent = await place.agent(self._app)
        WORLD.note("c", str(address_of(place)), None)
        await agent.turns.cancel()

    async def decide(self, place: Place) -> None:
        """Answer from Python for whoever should be asked."""
        agent = await place.agent(self._app)
        for approval in await agent.questions.list():
            approved = self._random.random() < 0.7
            WORLD.note("r", approval.id, "approved" if approved else "denied", None)
            if await (agent.questions.approve(approval.id) if approved else agent.questions.deny(approval.id)):
                WORLD.note("R", approval.id)

    async def clear(self, place: Place) -> None:
        agent = await place.agent(self._app)
        WORLD.note("n", str(address_of(place)))
        await agent.conversation.clear()
        WORLD.note("N", str(address_of(place)))

    async def go_on(self, place: Place) -> None:
        agent = await place.agent(self._app)
        if not await agent.open_turns() and await agent.conversation.messages():
            WORLD.note("g", str(address_of(place)))
            await agent.turns.continue_last()

    async def switch(self, place: Place) -> None:
        """Continue in another branch."""
        agent = await place.agent(self._app)
        if found := await agent.conversation.branches():
            await agent.conversation.switch(self._random.choice(found).message_id)

    async def sleep(self, place: Place) -> None:
        self._app.node.sleep()

    async def pause(self, place: Place) -> None:
        await asyncio.sleep(self._random.random() * 0.02)


async def work(app: App, random: Random, where: Sequence[Place]) -> None:
    """Have people talk, for ever."""
    people = [Person(app, Random(random.random()), where) for _ in range(CLIENTS)]
    await asyncio.gather(*(person.run() for person in people))
