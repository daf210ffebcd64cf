"""The official A2A client: messages by their id, tasks that are joined again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import GetTaskRequest, Message, Part, Role, SendMessageRequest, SubscribeToTaskRequest, TaskState
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import MessageToDict
from tests.e2e.kills.caller import PAUSE, Caller
from tests.machine import patience

BROKEN = (A2AClientError, httpx.HTTPError)


class A2aCaller(Caller):
    """Another agent system."""

    name = "a2a"

    async def open(self) -> None:
        self._http = httpx.AsyncClient(timeout=patience(60))
        self._client: Any = None

    async def close(self) -> None:
        await self._http.aclose()

    async def _connected(self) -> Any:
        if self._client is None:
            card = await A2ACardResolver(self._http, f"{self.url}/a2a/kills-desk").get_agent_card()
            self._client = ClientFactory(ClientConfig(httpx_client=self._http)).create(card)
        return self._client

    async def operate(self, operation: str) -> str | None:
        task = await self._said(f"{operation}-m0", operation, operation)
        for turn in range(1, 10):
            if task.status.state != TaskState.TASK_STATE_INPUT_REQUIRED:
                break
            asked = self._questions_of(task)
            self.asked(operation, *asked)
            task = await self._said(f"{operation}-m{turn}", operation, "yes", task, asked)
        if task.status.state != TaskState.TASK_STATE_COMPLETED:
            return f"{TaskState.Name(task.status.state)} {task.status}"
        return "".join(part.text for artifact in task.artifacts for part in artifact.parts)

    def _questions_of(self, task: Any) -> list[str]:
        parts = [MessageToDict(part) for part in task.status.message.parts]
        return [question["id"] for part in parts for question in part.get("data", {}).get("questions", [])]

    async def _said(
        self, id: str, operation: str, text: str, task: Any = None, answered: list[str] | None = None
    ) -> Any:
        """Send a message until the task has ended or asks something else; return the task."""
        more = {} if task is None else {"task_id": task.id, "context_id": task.context_id}
        message = Message(message_id=id, role=Role.ROLE_USER, parts=[Part(text=text)], **more)
        known = "" if task is None else task.id
        is_accepted = False
        while True:
            try:
                client = await self._connected()
                if is_accepted and known and self.random.random() < 0.5:
                    stream = client.subscribe(SubscribeToTaskRequest(id=known))
                else:
                    stream = client.send_message(SendMessageRequest(message=message))
                async for event in stream:
                    self.heard()
                    is_accepted = True
                    self.accepted(*(answered or ()))
                    known = known or event.task.id or event.status_update.task_id
                    if TaskState.TASK_STATE_INPUT_REQUIRED in (
                        event.task.status.state,
                        event.status_update.status.state,
                    ):
                        break  # a subscription goes on until the task is over
                found = await client.get_task(GetTaskRequest(id=known))
            except UnsupportedOperationError:  # it is over, so nobody can subscribe to it
                is_accepted = False
                continue
            except BROKEN as error:
                if str(error).startswith("HTTP Error 4"):
                    raise
                await self.cut()
                continue
            if found.status.state not in (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_SUBMITTED):
                return found
            await asyncio.sleep(PAUSE)
