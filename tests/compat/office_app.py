"""The program whose data and frames are kept from each release. Never change it: a user's program would not change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from sapwood import (
    After,
    Agent,
    App,
    ChatAgent,
    Cron,
    Every,
    Limits,
    Per,
    Retry,
    Settings,
    agent_tool,
    expose,
    on_child_state,
    tool,
)
from sapwood.testing import ScriptedModel, call, fails, text
from sapwood.types import McpServer, PathSegment

FAR = timedelta(days=30)
LATE = datetime(2100, 1, 1, tzinfo=UTC)
LARGE = bytes(range(256)) * 400
"""A file that does not fit into a row."""
KEY = "a key of the fixtures, as long as one has to be"
SETTINGS = Settings(secret_keys=(KEY,), mcp_private_hosts=("127.0.0.1",))

LONG = "word " * 120


@dataclass(frozen=True)
class Shelf:
    books: int = 0


class CompatShelf(Agent[Shelf]):
    """A child whose state its parent follows."""

    initial_state = Shelf()

    async def put(self, books: int) -> int:
        self.set_state(Shelf(self.state.books + books))
        return self.state.books

    async def nest(self, name: str) -> int:
        return await (await self.sub_agent(CompatShelf, name)).put(1)


class CompatOffice(Agent[Shelf]):
    """Uses all that an agent can store, except conversations and runs."""

    initial_state = Shelf()
    migrations = ("CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",)
    accept_files: ClassVar[dict[str, int]] = {"*/*": 1 << 20}

    async def fill(self) -> None:
        """Store some of everything."""
        self.set_state(Shelf(3))
        self._note("written")
        self.schedule(After(FAR), self._note, "scheduled")
        self.schedule(Every(FAR), self._note, "every month")
        self.schedule(Cron("0 3 * * *", "Europe/Berlin"), self._note, "every night")
        self.schedule(After(timedelta(0), retry=Retry(max_attempts=1)), self._fail, "no paper")
        self.enqueue(self.stamp)
        self.start_fiber("tour", self.tour, "north")
        self.start_fiber("asks", self.asks)
        await self.files.put(b"small", name="small.txt", media_type="text/plain")
        await self.files.put(LARGE, name="large.bin")
        shelf = await self.sub_agent(CompatShelf, "a/b")
        await shelf.put(2)
        await shelf.nest("below")
        await self.flush()

    @expose
    async def note(self, text: str) -> None:
        self._note(text)

    def _note(self, text: str) -> None:
        self.sql("INSERT INTO notes (text) VALUES (?)", text)

    @expose
    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes ORDER BY number")]

    @expose
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    def _fail(self, why: str) -> None:
        raise ValueError(why)

    async def stamp(self) -> None:
        await self.sleep_until(LATE)

    async def tour(self, where: str) -> str:
        place = await self.step("map", self._draw, where)
        await self.checkpoint({"at": place})
        await self.sleep_until(self._reopening())
        self._note(f"toured {place}")
        return place

    def _reopening(self) -> datetime:
        return datetime(2027, 3, 1, tzinfo=UTC)

    def _draw(self, where: str) -> str:
        self._note(f"drew {where}")
        return f"map of {where}"

    async def asks(self) -> str:
        color = await self.questions.ask("Which color?", options=["red", "blue"])
        self._note(f"answered {color}")
        return color

    @on_child_state(CompatShelf)
    async def counted(self, child: PathSegment, state: Shelf) -> None:
        self._note(f"{child.name} has {state.books}")

    async def connect(self, name: str, url: str) -> McpServer:
        return await self.mcp.add(name, url, token="a token", approval="never")

    async def use(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.mcp.call(server, tool, arguments)

    async def shelf(self) -> int:
        return await (await self.sub_agent(CompatShelf, "a/b")).put(1)

    async def file(self, name: str) -> bytes:
        (file,) = [one for one in self.files.list() if one.name == name]
        return await self.files.get(file)

    async def schedules_and_letters(self) -> tuple[int, int]:
        return len(self.schedules.list()), len(self.dead_letters.list())


MODELS: dict[str, ScriptedModel] = {
    "finished": ScriptedModel(call("look_up", {"word": "sap"}, id="l1"), text("It is wood."), each=True),
    "waiting": ScriptedModel(call("pay", {"amount": 5}, id="p1"), text("Paid."), each=True),
    "forked": ScriptedModel(call("pay", {"amount": 5}, id="p1"), text("Paid."), each=True),
    "approved": ScriptedModel(call("pay", {"amount": 7}, id="p2"), text("Paid."), each=True),
    "failed": ScriptedModel(fails(ValueError("The model is out of order.")), each=True),
    "interrupted": ScriptedModel(call("look_up", {"word": "bark"}, id="l2"), text("It is", stalls=True), each=True),
    "compacted": ScriptedModel(text(LONG), each=True),
}
"""By the name of the root. A test replaces the model of an interrupted turn by one that answers."""


class CompatTalker(ChatAgent):
    """A conversation."""

    limits = Limits(tokens=Per("day", 1_000_000, warn_at=0.0001))
    migrations = ("CREATE TABLE acts (text TEXT NOT NULL) STRICT",)

    def get_model(self) -> Any:
        return MODELS[self.address.name]

    @tool
    async def look_up(self, word: str) -> str:
        """Look up a word."""
        self.sql("INSERT INTO acts VALUES (?)", f"looked up {word}")
        return f"{word}: found"

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        self.sql("INSERT INTO acts VALUES (?)", f"paid {amount}")
        return f"paid {amount}"

    async def acts(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM acts ORDER BY rowid")]


class CompatLong(CompatTalker):
    """A conversation that becomes a summary for its model."""

    compact_above = 200

    async def compact(self, messages: list[Any]) -> str | None:
        return "They talked about words."


class CompatBuyer(ChatAgent):
    """The lowest of three levels."""

    model = ScriptedModel(call("buy", {"what": "ink"}, id="b1"), text("Bought."), each=True)

    @tool(requires_approval=True)
    async def buy(self, what: str) -> str:
        """Buy something."""
        return f"bought {what}"


class CompatPlanner(ChatAgent):
    """The level between."""

    model = ScriptedModel(call("compat_buyer", {"message": "buy"}, id="m1"), text("Planned."), each=True)
    tools = (agent_tool(CompatBuyer),)


class CompatLead(ChatAgent):
    """The highest of three levels."""

    limits = Limits(runs_at_once=9, runs_per_minute=90)
    model = ScriptedModel(call("compat_planner", {"message": "plan"}, id="t1"), text("Done."), each=True)
    tools = (agent_tool(CompatPlanner),)


class CompatServed(Agent):
    """Executes runs for other servers."""

    expose_runs = True

    async def on_run(self, input: str) -> AsyncIterator[str]:
        for word in (input, " and ", "back"):
            yield word


app = App(agents=[CompatOffice, CompatTalker, CompatLong, CompatLead, CompatServed], settings=SETTINGS)
