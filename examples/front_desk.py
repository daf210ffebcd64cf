"""A chat agent behind the OpenAI API: any client of that API can talk to it."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager

import uvicorn
from openai import OpenAI

# --8<-- [start:imports]
from sapwood import App, ChatAgent, Settings, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, text

# --8<-- [end:imports]


# --8<-- [start:agent]
class FrontDesk(ChatAgent):
    instructions = "You book rooms."
    model = ScriptedModel(
        call("book", nights=2), text("Room 12 is yours for 2 nights."), each=True
    )

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def book(self, nights: int) -> str:
        """Book a room."""
        return f"room 12 for {nights} nights"


def make_app(folder: str) -> App:
    protocols = [OpenAi(models={"front-desk": FrontDesk})]
    return App(agents=[FrontDesk], protocols=protocols, settings=Settings(data=folder))


# --8<-- [end:agent]


# --8<-- [start:client]
def talk(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="any key")
    response = client.responses.create(model="front-desk", input="A room, please.")
    request = response.output[-1]
    if request.type == "mcp_approval_request":
        print("to approve:", request.name, request.arguments)
        response = client.responses.create(
            model="front-desk",
            previous_response_id=response.id,
            input=[
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": request.id,
                    "approve": True,
                }
            ],
        )
    print(response.output_text)


# --8<-- [end:client]


# --8<-- [start:background]
def follow(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="any key")
    response = client.responses.create(
        model="front-desk", input="A room.", background=True
    )
    for event in client.responses.retrieve(response.id, stream=True, starting_after=1):
        print(event.sequence_number, event.type)


# --8<-- [end:background]


@asynccontextmanager
async def serving(app: App):
    """Serve an app on a free port during the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task
    listening.close()


async def main(folder: str) -> None:
    async with serving(make_app(folder)) as url:
        await asyncio.to_thread(talk, url)
        await asyncio.to_thread(follow, url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
