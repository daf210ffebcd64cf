"""The chat agents that the unmodified useAgentChat talks to, on a real server.

    sapwood serve chat_server.py:site --data DATA

What is said to them says what they answer: `say 40 20` is forty words, one every 20 ms. After a
word that is named, as in `say 40 20 @w9`, the model says nothing until `POST …/go-on/w9` lets it:
then a test decides what happens in the middle of an answer, and not how busy the machine is. After
`~w9` it falls silent for good; asked again, it says all.
What is in the folder `NPM_TEST_PAGES` is served as `/pages`, for the browser.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from pydantic_ai.messages import BinaryContent, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from sapwood import App, ChatAgent, Refused, Turn, expose, tool
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.testing.script_lines import Line
from sapwood.types import ConversationBranch

LIFE = f"[life {os.getpid()}]"
"""What every answer begins with: after a crash, no word of the old process may be left."""


GATES: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)
"""What answers wait for, by the agent's name and the word they wait after; in another process they wait again."""


SILENT: set[str] = set()
"""The names of agents whose models have fallen silent, and say all when they are asked again."""


async def pause(name: str, word: str) -> None:
    """Wait until somebody lets it go on, once."""
    await GATES[name, word].wait()
    del GATES[name, word]


def held(model: Any, name: str, after: Collection[str]) -> Any:
    """Have a model wait after words that are marked `@`, and fall silent after those that are marked `~`."""
    say = model.stream_function

    async def slowly(messages: Any, info: Any) -> AsyncIterator[Any]:
        async for said in say(messages, info):
            yield said
            word = said.strip() if isinstance(said, str) else ""
            if name in SILENT:
                continue
            if f"@{word}" in after:
                await pause(name, word)
            if f"~{word}" in after:
                SILENT.add(name)
                await asyncio.Event().wait()

    model.stream_function = slowly
    return model


def words(count: int, delay_ms: int, word: str = "w") -> Line:
    return text(" ".join([LIFE, *(f"{word}{number}" for number in range(count))]), delay=delay_ms / 1000)


def look(count: int, delay_ms: int) -> Line:
    """Say something, then call the server's tool."""
    return Line(text=words(count, 0, "a").text, calls=(("look", {"what": "it"}, None),), delay=delay_ms / 1000)


def seeing() -> Any:
    """Return a model that says which files it was sent."""

    async def say(messages: Any, info: Any) -> AsyncIterator[str]:
        contents = [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
        files = [one for content in contents if not isinstance(content, str) for one in content]
        digests = [hashlib.sha256(one.data).hexdigest() for one in files if isinstance(one, BinaryContent)]
        yield " ".join(["saw", *digests])

    return FunctionModel(stream_function=say)


SCRIPTS: dict[str, Callable[..., list[Line]]] = {
    "say": lambda count, delay: [words(count, delay)],
    "look": lambda count, delay: [look(3, delay), words(count, delay, "b")],
    "fail": lambda: [fails(Refused("The model is out of order."))],
    "fall": lambda count, delay: [look(count, delay), fails(Refused("The model is out of order."))],
    "time": lambda count, delay: [call("getTime", zone="UTC"), words(count, delay)],
    "times": lambda count, delay: [
        calls(call("getTime", zone="UTC"), call("getTime", zone="CET")),
        words(count, delay),
    ],
    "again": lambda count, delay: [
        call("getTime", zone="UTC"),
        words(3, delay, "a"),
        call("getTime", zone="CET"),
        words(count, delay, "b"),
    ],
    "chain": lambda count, delay: [
        Line(text="First.", calls=(("getTime", {"zone": "UTC"}, None),)),
        Line(text="Second.", calls=(("getTime", {"zone": "CET"}, None),)),
        words(count, delay),
    ],
    "delete": lambda count, delay: [
        Line(text="May I?", calls=(("delete", {"what": "all"}, None),)),
        words(count, delay),
    ],
    "deletes": lambda count, delay: [
        calls(call("delete", what="one"), call("delete", what="two")),
        words(count, delay),
    ],
}


class Watched(ChatAgent):
    """Says whether it has anything to do, and lets its model go on."""

    async def on_request(self, request: Request) -> Response:
        GATES[self.name, request.url.path.rpartition("/")[2]].set()
        return PlainTextResponse("")

    @expose
    async def is_idle(self) -> bool:
        return not (self.fibers.list() or self.schedules.list() or self.queues.list())


class Chat(Watched):
    """Answers as it is told to."""

    def get_model(self) -> Any:
        """Return a model that goes on where the conversation is, also in a process that has just begun."""
        history = self.conversation.history()
        asked = [at for at, message in enumerate(history) if isinstance(message, ModelRequest) and prompt_of(message)]
        done = sum(isinstance(message, ModelResponse) for message in history[asked[-1] :])
        what, *rest = prompt_of(history[asked[-1]]).split()
        if what == "see":
            return seeing()
        lines = SCRIPTS[what](*[int(one) for one in rest if one.isdigit()])
        after = {one for one in rest if not one.isdigit()}
        return held(ScriptedModel(*lines[done:] or lines[-1:]), self.name, after)

    @tool
    async def look(self, what: str) -> str:
        """Look at something."""
        return f"{what} is fine"

    @tool(requires_approval=True)
    async def delete(self, what: str) -> str:
        """Delete something."""
        return f"{what} is gone"

    @expose
    async def branches(self) -> list[ConversationBranch]:
        """Return the branches of the conversation."""
        return await self.conversation.branches()

    @expose
    async def switch(self, message: str) -> bool:
        """Continue in another branch."""
        return await self.conversation.switch(message)

    @expose
    async def remind(self, what: str) -> None:
        """Say something to itself, soon."""
        self.enqueue(self.send, what)


def prompt_of(message: Any) -> str:
    contents = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    texts = [one if isinstance(one, str) else next(text for text in one if isinstance(text, str)) for one in contents]
    return texts[-1].rpartition("\n")[2] if texts else ""


class Latest(Chat):
    concurrency = "latest"


class Merge(Chat):
    concurrency = "merge"


class Drop(Chat):
    concurrency = "drop"


class Debounce(Chat):
    concurrency = "debounce"
    debounce = 2.0


class Interrupt(Chat):
    concurrency = "interrupt"


class Hurried(Chat):
    """Does not wait long for its model."""

    stall_timeout = 2.0


class Own(Watched):
    """Answers by itself, waits in the middle, and falls over at the end."""

    async def respond(self, turn: Turn) -> AsyncIterator[str]:
        for number in range(8):
            yield f" w{number}"
            if number == 3:
                await pause(self.name, "w3")
        raise Refused("It fell over.")


def in_pages(app: App) -> list[Mount]:
    """Return where an app is, beside the pages for the browser."""
    pages = StaticFiles(directory=os.environ.get("NPM_TEST_PAGES", "."), check_dir=False)
    return [Mount("/pages", pages), Mount("/", app)]


app = App(agents=[Chat, Latest, Merge, Drop, Debounce, Interrupt, Hurried, Own])
site = Starlette(routes=in_pages(app), lifespan=app.lifespan)
