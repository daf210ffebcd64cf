"""One agent for pages, OpenAI clients, MCP clients and other agents, all at once."""

# --8<-- [start:imports]
import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

from sapwood import App, ChatAgent, Settings, expose, tool
from sapwood.protocols import A2a, AgUi, Mcp, OpenAi
from sapwood.testing import ScriptedModel, call, text

# --8<-- [end:imports]


# --8<-- [start:app]
class Concierge(ChatAgent):
    """Knows the house, and writes down what guests want."""

    migrations = ("CREATE TABLE wishes (wish TEXT NOT NULL) STRICT",)
    model = ScriptedModel(*[call("note", wish="tea"), text("Noted.")] * 9, each=True)

    @tool(idempotent=True)
    async def note(self, wish: str) -> str:
        """Write down a wish."""
        self.sql("INSERT INTO wishes VALUES (?)", wish)
        return f"noted: {wish}"

    @expose
    async def count(self) -> int:
        """Return how many wishes there are."""
        return self.sql("SELECT count(*) FROM wishes").scalar(int)


def make_app(folder: str) -> App:
    protocols = [
        AgUi(),
        OpenAi(models={"concierge": Concierge}),
        Mcp(tools=[Concierge], methods=[Concierge]),
        A2a([Concierge]),
    ]
    settings = Settings(data=folder)
    return App(agents=[Concierge], protocols=protocols, settings=settings)


# --8<-- [end:app]


# --8<-- [start:clients]
async def from_a_page(url: str) -> str:
    said = {"id": uuid4().hex, "role": "user", "content": "Tea, please."}
    run = {"threadId": "hall", "runId": uuid4().hex, "messages": [said]}
    async with httpx2.AsyncClient() as client:
        response = await client.post(f"{url}/agents/concierge/hall/ag-ui", json=run)
    return json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))[
        "result"
    ]


async def from_openai(url: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any key") as client:
        response = await client.responses.create(
            model="concierge", conversation="hall", input="Tea, please."
        )
    return response.output_text


async def from_mcp(url: str) -> str:
    async with Client(streamable_http_client(f"{url}/mcp")) as client:
        answer: Any = await client.call_tool("concierge", {"message": "Tea, please."})
    return answer.content[0].text


async def from_another_agent(url: str) -> str:
    message = {"messageId": uuid4().hex, "role": "ROLE_USER"}
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {**message, "parts": [{"text": "Tea, please."}]}},
    }
    async with httpx2.AsyncClient(headers={"A2A-Version": "1.0"}) as client:
        response = await client.post(f"{url}/a2a/concierge", json=request)
    return response.json()["result"]["task"]["artifacts"][0]["parts"][0]["text"]


# --8<-- [end:clients]


async def wishes(url: str) -> int:
    async with Client(streamable_http_client(f"{url}/mcp")) as client:
        answer: Any = await client.call_tool("concierge_count", {"agent": "hall"})
    return answer.structured_content["result"]


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[str, None]:
    """Serve the app in this process. In reality, `sapwood serve` does."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task
    listening.close()


async def main(folder: str) -> None:
    async with serving(make_app(folder)) as url:
        doors = (from_a_page, from_openai, from_mcp, from_another_agent)
        answers = await asyncio.gather(*(door(url) for door in doors))
        for door, answer in zip(doors, answers, strict=True):
            print(f"{door.__name__}: {answer}")
        print("wishes in the hall:", await wishes(url))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "doors-data"))
