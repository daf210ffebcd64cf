"""Agents of other systems give tasks to this one by A2A: tasks, questions, ends."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2a

URL = "http://localhost"


# The model is a function, so that the example needs no API key.
async def plan(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"It is done: {last.content}"
    else:
        yield {0: DeltaToolCall("book", '{"where": "Oslo"}')}


# --8<-- [start:app]
class TravelBureau(ChatAgent):
    """Books journeys."""

    model = FunctionModel(stream_function=plan)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def book(self, where: str) -> str:
        """Book a journey."""
        return f"a ticket to {where}"


app = App(agents=[TravelBureau], protocols=[A2a([TravelBureau])])
# --8<-- [end:app]


# --8<-- [start:client]
async def call(client: httpx2.AsyncClient, method: str, params: Any) -> Any:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await client.post(
        "/a2a/travel-bureau", json=request, headers={"A2A-Version": "1.0"}
    )
    return response.json()["result"]


def say(text: str, **more: str) -> dict[str, Any]:
    message = {
        "messageId": uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **more,
    }
    return {"message": message}


async def main(data: str) -> None:
    app.configure(data=data)
    transport = httpx2.ASGITransport(app)
    async with app, httpx2.AsyncClient(transport=transport, base_url=URL) as client:
        card = (await client.get("/.well-known/agent-card.json")).json()
        print(card["name"], card["supportedInterfaces"][0]["url"])
        asked = await call(client, "SendMessage", say("Send me to Oslo."))
        task = asked["task"]
        print(task["status"]["state"], task["status"]["message"]["parts"][0]["text"])
        ended = await call(client, "SendMessage", say("yes", taskId=task["id"]))
        task = ended["task"]
        print(task["status"]["state"], task["artifacts"][0]["parts"][0]["text"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "bureau-data"))
