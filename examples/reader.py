"""An agent uses the tools of an MCP server, here one of the official Python SDK."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from sapwood import App, ChatAgent, Settings
from sapwood.auth import ANY_CLIENT
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import McpServer

LISTENING = socket.create_server(("127.0.0.1", 0))
URL = f"http://127.0.0.1:{LISTENING.getsockname()[1]}/mcp"

# --8<-- [start:server]
library = MCPServer("library", log_level="ERROR")


@library.tool(annotations=ToolAnnotations(read_only_hint=True))
def search(title: str) -> str:
    """Search for a book."""
    return f"{title}, by Ann Oak: 1 copy"


@library.tool(annotations=ToolAnnotations(destructive_hint=True))
def lend(title: str) -> str:
    """Lend a book."""
    return f"{title} is yours for two weeks"


# --8<-- [end:server]


# A script takes the place of a model, so that the example needs no API key.
SCRIPT = ScriptedModel(
    call("library_search", title="Trees", id="s1"),
    call("library_lend", title="Trees", id="l1"),
    text("It is yours."),
    each=True,
)


# --8<-- [start:agent]
class Reader(ChatAgent):
    """Finds and borrows books."""

    model = SCRIPT

    async def use_library(self, url: str) -> McpServer:
        return await self.mcp.add("library", url, approvers=ANY_CLIENT)

    async def find(self, title: str) -> str:
        found = await self.mcp.call("library", "search", {"title": title})
        return found["result"]


# --8<-- [end:agent]


@asynccontextmanager
async def serving() -> AsyncGenerator[None, None]:
    """Serve the library in this process. In reality it is a server of others."""
    config = uvicorn.Config(library.streamable_http_app(), log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[LISTENING]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


# --8<-- [start:use]
async def use(reader: Reader) -> None:
    server = await reader.use_library(URL)
    for tool in server.tools:
        how = "a person must allow it" if tool.requires_approval else "at once"
        print(f"{tool.tool}: {how}")
    print(await reader.find("Oaks"))

    turn = await reader.send("Get me a book about trees.")
    for question in await reader.questions.list():
        print(f"May {question.tool} be called with {question.arguments}?")
        await reader.questions.approve(question)
    print((await reader.turns.wait(turn.id)).text)


# --8<-- [end:use]


async def main(data: str) -> None:
    settings = Settings(data=data, mcp_private_hosts=("127.0.0.1",))
    app = App(agents=[Reader], settings=settings)
    async with serving(), app:
        await use(await app.get_agent(Reader, "ann"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "reader-data"))
