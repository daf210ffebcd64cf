"""The official `openai` client: responses by idempotency key, streams that continue after their last event."""

from __future__ import annotations

from typing import Any

import httpx
from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from tests.e2e.kills.caller import RESULTS, WORDS, Caller
from tests.machine import patience

LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"operation": {"type": "string"}}},
    "strict": False,
}
OVER = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")
UNAVAILABLE = (502, 503)


class OpenAiCaller(Caller):
    """A program with a function of its own."""

    name = "openai"
    page_tools = 1
    model = "desk"
    answer = ""
    """What it answers to questions of code."""
    functions: tuple[dict[str, Any], ...] = (LOOK,)

    async def open(self) -> None:
        self._client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key="x", max_retries=0, timeout=patience(60))

    async def close(self) -> None:
        await self._client.close()

    def expected(self, operation: str) -> str:
        return f"{operation}: {', '.join([*RESULTS, 'a tree'])}. {WORDS}"

    async def operate(self, operation: str) -> str | None:
        body: dict[str, Any] = {"input": operation}
        answered: str | None = None
        for turn in range(10):
            response = await self._response(f"{operation}-{turn}", answered, body)
            waiting = [one for one in response.output if one.type in ("function_call", "mcp_approval_request")]
            open_calls = [one for one in waiting if one.type == "mcp_approval_request" or one.status != "incomplete"]
            if response.status != "completed" or not open_calls:
                return response.output_text if response.status == "completed" else f"{response.status} {response.error}"
            (item,) = open_calls
            answered = item.call_id if item.type == "function_call" else item.id
            body = {"previous_response_id": response.id, "input": [self._answer(operation, item)]}
        return "It never ends."

    def _answer(self, operation: str, item: Any) -> dict[str, Any]:
        if item.type == "function_call":
            if item.name == "look":
                self.called(operation, item.call_id)
                return {"type": "function_call_output", "call_id": item.call_id, "output": "a tree"}
            self.asked(operation, item.call_id)
            return {"type": "function_call_output", "call_id": item.call_id, "output": self.answer}
        self.asked(operation, item.id)
        return {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}

    async def _response(self, key: str, answered: str | None, body: dict[str, Any]) -> Any:
        """Create a response, or join it, and return it once it is over."""
        body = {"model": self.model, "tools": list(self.functions), **body}
        streams = self.random.random() < 0.7
        id, number = "", -1
        while True:
            try:
                if not streams:
                    response: Any = await self._client.responses.create(**body, extra_headers={"Idempotency-Key": key})
                    self._take(answered)
                    return response
                if not id:
                    stream: Any = await self._client.responses.create(
                        **body, stream=True, extra_headers={"Idempotency-Key": key}
                    )
                else:
                    stream = await self._client.responses.retrieve(id, stream=True, starting_after=number)
                async with stream:
                    async for event in stream:
                        if event.sequence_number != number + 1 and id:
                            self.violations.append(f"{key}: event {event.sequence_number} came after {number}")
                        number = event.sequence_number
                        self._take(answered)
                        if event.type == "response.created":
                            id = event.response.id
                        elif event.type in OVER:
                            return event.response
            except APIStatusError as error:
                if error.status_code not in UNAVAILABLE:
                    raise
            except (APIConnectionError, httpx.HTTPError):
                pass
            await self.cut()
            if not id:
                number = -1

    def _take(self, answered: str | None) -> None:
        self.heard()
        if answered is not None:
            self.accepted(answered)
