"""AG-UI: a page talks to a shop, approves a payment, and hears it again."""

import asyncio
import json
import socket
import sys
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import Request as Post
from urllib.request import urlopen

import uvicorn

from sapwood import App, ChatAgent, Settings, tool
from sapwood.protocols import AgUi
from sapwood.testing import ScriptedModel, call, text


# --8<-- [start:agent]
class Cashier(ChatAgent):
    model = ScriptedModel(call("pay", euros=3), text("The bread is paid."))

    def get_instructions(self) -> str:
        turn = self.turns.current()
        context = turn.body.get("context", []) if turn is not None else []
        seen = [f"{one['description']}: {one['value']}" for one in context]
        return "\n".join(["You buy what the user wants.", *seen])

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        return f"{euros} euros paid"


app = App(agents=[Cashier], protocols=[AgUi()])
# --8<-- [end:agent]


def run(url: str, **said: Any) -> list[dict[str, Any]]:
    """Run the agent as a page does, and return the events."""
    body = json.dumps({"threadId": "ann", "context": [], **said}).encode()
    with urlopen(
        Post(url, data=body, headers={"accept": "text/event-stream"})
    ) as response:
        lines = response.read().decode().splitlines()
    return [
        json.loads(line.removeprefix("data: "))
        for line in lines
        if line.startswith("data: ")
    ]


@asynccontextmanager
async def serving(app: App):
    """Serve the app on a free port during the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task
    listening.close()


async def main(folder: str) -> None:
    app = App(agents=[Cashier], protocols=[AgUi()], settings=Settings(data=folder))
    async with app, serving(app) as site:
        url = f"{site}/agents/cashier/ann/ag-ui"
        said = [{"id": "m1", "role": "user", "content": "Buy bread."}]
        told = await asyncio.to_thread(run, url, runId="r1", messages=said)
        if told[-1]["outcome"]["type"] == "interrupt":
            (interrupt,) = told[-1]["outcome"]["interrupts"]
            print("asked:", interrupt["message"])
            answer = {
                "interruptId": interrupt["id"],
                "status": "resolved",
                "payload": {"approved": True},
            }
            told = await asyncio.to_thread(
                run, url, runId="r2", messages=said, resume=[answer]
            )
        print("result:", told[-1]["result"])
        again = await asyncio.to_thread(run, url, runId="r2", messages=said)
        print("the same run again:", again[-1]["result"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ag-ui-data"))
