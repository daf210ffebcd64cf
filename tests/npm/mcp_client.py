"""The agent that the conformance suite of MCP tests as a client, on a real server.

    sapwood serve mcp_client.py:app --data DATA

For each scenario, the suite starts `mcp_user.py`, which plays the user of one such agent: it has a server added, signs
in, answers what is asked and has the tools called.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from sapwood import Agent, App
from sapwood.errors import NotFound, SapwoodError


class ConformanceClient(Agent):
    """Uses the server of one scenario."""

    create_from_url = True

    async def on_request(self, request: Request) -> JSONResponse:
        asked = await request.json()
        try:
            return JSONResponse({"told": await getattr(self, f"do_{asked['do']}")(**asked["with"])})
        except SapwoodError as error:
            return JSONResponse({"error": str(error)})

    async def do_add(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        await self.mcp.add("suite", url, approval="never", timeout=20, **options)
        return await self.do_look()

    async def do_refresh(self) -> dict[str, Any]:
        await self.mcp.refresh("suite")
        return await self.do_look()

    async def do_look(self) -> dict[str, Any]:
        server = self.mcp.get("suite")
        return {
            "status": server.status,
            "error": server.error,
            "sign_in_url": server.sign_in_url,
            "tools": {tool.name: tool.input_schema for tool in server.tools},
        }

    async def do_call(self, key: str, tool: str, arguments: dict[str, Any]) -> None:
        self.start_fiber(key, self.call, tool, arguments)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return await self.mcp.call("suite", tool, arguments)

    async def do_result(self, key: str) -> dict[str, Any]:
        """Return what is asked, and how a call has ended if it has."""
        fiber = self.fibers.get(key)
        if fiber is None:
            raise NotFound(f"There is no call {key!r}.")
        questions = [{"id": one.full_id, "schema": one.schema} for one in await self.questions.list()]
        return {"status": fiber.status, "error": fiber.error, "questions": questions}

    async def do_answer(self, id: str, content: dict[str, Any]) -> bool:
        return await self.questions.answer(id, content)


app = App(agents=[ConformanceClient])
