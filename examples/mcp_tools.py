"""Agents as tools of an MCP server, and a client that uses them."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

# --8<-- [start:imports]
from sapwood import Agent, App, ChatAgent, Settings, agent_tool, expose, tool
from sapwood.auth import ANY_CLIENT, ApiKeys
from sapwood.protocols import Mcp
from sapwood.testing import ScriptedModel, call, text

# --8<-- [end:imports]

LISTENING = socket.create_server(("127.0.0.1", 0))
URL = f"http://127.0.0.1:{LISTENING.getsockname()[1]}/mcp"


# --8<-- [start:surveyor]
@dataclass
class Place:
    name: str
    sides: int = 2


@dataclass
class Survey:
    place: str
    meters: int


class Surveyor(Agent):
    """Measures a place. Takes a while."""

    async def on_run(self, place: Place) -> Survey:
        meters = 0
        for side in range(place.sides):
            meters += await self.step(f"side {side}", self.measure)
            self.report_progress((side + 1) / place.sides, f"measured side {side + 1}")
        return Survey(place.name, meters)

    async def measure(self) -> int:
        await asyncio.sleep(0.05)
        return 12


# --8<-- [end:surveyor]


# --8<-- [start:clerk]
class Clerk(ChatAgent):
    """Orders what an office needs."""

    # --8<-- [end:clerk]
    model = ScriptedModel(
        call("order", id="o1", what="a desk"), text("The desk will come."), each=True
    )

    # --8<-- [start:order]
    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def order(self, what: str) -> str:
        """Order something."""
        return f"{what} ordered"

    # --8<-- [end:order]


# --8<-- [start:shelf]
class Shelf(Agent):
    @expose
    async def count(self, item: str) -> int:
        """Return how many of an item there are."""
        return len(item)


# --8<-- [end:shelf]


def server(key: str, data: str) -> App:
    # --8<-- [start:app]
    mcp = Mcp(tools=[Surveyor, agent_tool(Clerk, name="order")], methods=[Shelf])
    users = ApiKeys({"ann": ApiKeys.hash_of(key)})
    settings = Settings(data=data)
    return App(agents=[Shelf], protocols=[mcp], authenticate=users, settings=settings)
    # --8<-- [end:app]


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[None, None]:
    """Serve the app in this process. In reality, `sapwood serve` does."""
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    uvicorn_server = uvicorn.Server(config)
    task = asyncio.create_task(uvicorn_server.serve(sockets=[LISTENING]))
    while not uvicorn_server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    uvicorn_server.should_exit = True
    await task


# --8<-- [start:client]
async def use(key: str) -> None:
    async def answer(context: Any, params: Any) -> ElicitResult:
        print(f"asked: {params.message}")
        return ElicitResult(action="accept", content={"approved": True})

    async def show(progress: float, total: float | None, message: str | None) -> None:
        print(f"{progress:.0%}: {message}")

    headers = {"authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(URL, http_client=http), elicitation_callback=answer
        ) as client,
    ):
        place = {"name": "the yard", "sides": 4}
        survey = await client.call_tool("surveyor", place, progress_callback=show)
        print(f"survey: {survey.structured_content}")
        ordered: Any = await client.call_tool("order", {"message": "We need a desk."})
        print(f"order: {ordered.content[0].text}")
        found = await client.call_tool("shelf_count", {"agent": "a", "item": "ink"})
        print(f"ink: {found.structured_content}")


# --8<-- [end:client]


async def main(data: str) -> None:
    key = "made by secrets.token_urlsafe(32)"
    async with serving(server(key, data)):
        await use(key)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
