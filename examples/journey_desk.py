"""An agent gives tasks to an agent of another system by A2A, as to a sub-agent."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn

from bureau import app as bureau
from sapwood import Agent, App
from sapwood.protocols import A2aAgent

LISTENING = socket.create_server(("127.0.0.1", 0))
BUREAU = f"http://127.0.0.1:{LISTENING.getsockname()[1]}"


# --8<-- [start:agent]
class Bureau(A2aAgent):
    """Books journeys."""

    url = f"{BUREAU}/a2a/travel-bureau"

    def token(self) -> str | None:
        return os.environ.get("BUREAU_TOKEN")


class JourneyDesk(Agent):
    async def send(self, where: str) -> str:
        run = await self.run_agent(Bureau, f"Send me to {where}.", run_id=where)
        return f"{run.status}: {run.output or run.error}"

    async def approve_all(self) -> int:
        questions = await self.questions.list()
        for question in questions:
            print(f"May {question.tool} be called with {question.arguments}?")
            await self.questions.approve(question)
        return len(questions)


# --8<-- [end:agent]


@asynccontextmanager
async def serving() -> AsyncGenerator[None, None]:
    """Serve the bureau in this process. In reality it is another system."""
    server = uvicorn.Server(uvicorn.Config(bureau, log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[LISTENING]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


async def main(data: str) -> None:
    bureau.configure(data=f"{data}/bureau")
    app = App(agents=[JourneyDesk])
    app.configure(data=f"{data}/desk")
    async with serving(), app:
        desk = await app.get_agent(JourneyDesk, "main")
        sending = asyncio.create_task(desk.send("Oslo"))
        while not sending.done():
            await desk.approve_all()
            await asyncio.sleep(0.05)
        print(await sending)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "journey-data"))
