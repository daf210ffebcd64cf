"""The server that has tasks done by A2A, which `test_a2a_client.py` kills."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sapwood import Agent, App
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2aAgent


class FarAgent(A2aAgent):
    """Works in another system."""

    url = os.environ["A2A_URL"]
    approvers = ANY_CLIENT


class FarDeputy(Agent):
    """Hands on what it is given, so that the task is two levels below the desk."""

    async def on_run(self, input: str) -> Any:
        run = await self.run_agent(FarAgent, input, run_id="task")
        if not run.ok:
            raise ValueError(run.error or run.reason)
        return run.output


class FarDesk(Agent):
    """Starts tasks, tells how they stand, and answers what they ask."""

    async def on_request(self, request: Request) -> Response:
        match request.scope["path"]:
            case "/start":
                await self.start_run(FarDeputy, (await request.json())["input"], run_id="r1")
            case "/stop":
                self.runs.cancel("r1")
            case "/answer":
                (question,) = await self.questions.list()
                value = (await request.json())["value"]
                if question.kind == "approval":
                    await self.questions.approve(question)
                else:
                    await self.questions.answer(question, value)
            case _:
                pass
        run = self.runs.get("r1")
        told: dict[str, Any] = {} if run is None else {"status": run.status, "output": run.output, "error": run.error}
        asked = [one.prompt or one.tool for one in await self.questions.list()]
        return JSONResponse({**told, "asked": asked})


app = App(agents=[FarDesk])
