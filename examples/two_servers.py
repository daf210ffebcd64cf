"""A library on one server, and a reading room on another server that uses it."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import uvicorn

from sapwood import (
    After,
    Agent,
    App,
    ChatAgent,
    RemoteSubAgent,
    Run,
    Settings,
    agent_tool,
)
from sapwood.auth import ApiKeys
from sapwood.testing import ScriptedModel, call, text

LISTENING = socket.create_server(("127.0.0.1", 0))
LIBRARY = f"http://127.0.0.1:{LISTENING.getsockname()[1]}"


# --8<-- [start:librarian]
class Librarian(Agent):
    expose_runs = True

    async def on_run(self, input: str) -> AsyncIterator[str]:
        self.schedule(After(timedelta(days=30)), self.forget)
        for volume in ("one", "two"):
            await asyncio.sleep(0.01)
            yield f"{input}, volume {volume}. "

    async def forget(self) -> None:
        await self.destroy()


# --8<-- [end:librarian]


@dataclass(frozen=True)
class Secrets:
    library_key: str


# --8<-- [start:remote]
class RemoteLibrarian(RemoteSubAgent):
    """Finds books in the library."""

    url = f"{LIBRARY}/agents/librarian"
    deps: Secrets

    async def token(self) -> str:
        return self.deps.library_key


# --8<-- [end:remote]


# --8<-- [start:reader]
class Reader(ChatAgent):
    tools = (agent_tool(RemoteLibrarian, name="find_books"),)
    # --8<-- [end:reader]
    model = ScriptedModel(
        call("find_books", id="c1", message="Trees"), text("Two of them."), each=True
    )

    # --8<-- [start:code]
    async def find(self, *subjects: str) -> list[Run]:
        return await self.runs.map(RemoteLibrarian, subjects)

    # --8<-- [end:code]


def library(key: str, data: str) -> App:
    # --8<-- [start:library]
    keys = ApiKeys({"reading room": ApiKeys.hash_of(key)})
    return App(agents=[Librarian], authenticate=keys, settings=Settings(data=data))
    # --8<-- [end:library]


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[None, None]:
    """Serve the library in this process. In reality it is another server."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[LISTENING]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


def reading_room(key: str, data: str) -> App:
    return App(agents=[Reader], deps=Secrets(key), settings=Settings(data=data))


async def main(data: str) -> None:
    key = "made by secrets.token_urlsafe(32)"
    async with serving(library(key, f"{data}/library")):
        async with reading_room(key, f"{data}/room") as room:
            ann = await room.get_agent(Reader, "ann")
            for run in await ann.find("Rivers", "Bridges"):
                print(f"{run.status}: {run.output}")
            print((await ann.send("What do you have on trees?")).output)
        async with reading_room("a guess", f"{data}/elsewhere") as room:
            (run,) = await (await room.get_agent(Reader, "bob")).find("Rivers")
            print(f"{run.status}: {run.error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
