"""A model behind an OpenAI-compatible URL: a gateway, or a server on your machine."""

import asyncio
import json
import socket
import sys
from contextlib import asynccontextmanager

import uvicorn
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from sapwood import App, ChatAgent, Settings


# --8<-- [start:agent]
class Clerk(ChatAgent):
    instructions = "Answer in one sentence."
    deps: OpenAIChatModel

    def get_model(self) -> OpenAIChatModel:
        return self.deps


def make_model(url: str, key: str) -> OpenAIChatModel:
    """Return a model of a gateway, or of a local server: http://localhost:11434/v1."""
    provider = OpenAIProvider(base_url=url, api_key=key)
    return OpenAIChatModel("small-model", provider=provider)


def make_app(folder: str, model: OpenAIChatModel) -> App:
    return App(agents=[Clerk], deps=model, settings=Settings(data=folder))


# --8<-- [end:agent]


async def complete(request: Request) -> StreamingResponse:
    """Stand in for an OpenAI-compatible server, so that the example needs none."""
    body = await request.json()
    words = [f"You asked {body['model']}", ": ", body["messages"][-1]["content"]]
    choices = [{"index": 0, "delta": {"content": word}} for word in words]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0}
    lines = [json.dumps({**chunk, "model": "m", "choices": [one]}) for one in choices]
    events = [f"data: {line}\n\n" for line in [*lines, "[DONE]"]]
    return StreamingResponse(iter(events), media_type="text/event-stream")


@asynccontextmanager
async def serving(site: Starlette):
    """Serve a site on a free port during the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(site, log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task
    listening.close()


async def main(folder: str) -> None:
    route = Route("/v1/chat/completions", complete, methods=["POST"])
    async with serving(Starlette(routes=[route])) as url:
        model = make_model(f"{url}/v1", "any key")
        async with make_app(folder, model) as app:
            clerk = await app.get_agent(Clerk, "front")
            turn = await clerk.send("Are you there?")
            print(f"{turn.status}: {turn.error or turn.text}")
        await model.client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
