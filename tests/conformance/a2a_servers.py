"""A server of A2A 1.0 that a test writes the behaviour of, and counts what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.conformance.serving import serving

CARD = "/.well-known/agent-card.json"
OVER = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")


@dataclass
class OtherTask:
    """A task, as the other system keeps it."""

    id: str
    context: str
    history: list[dict[str, Any]]
    state: str = "WORKING"
    says: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The parts of the message of its status."""
    timestamp: str | None = None
    """The time of its status, if it tells one."""
    tells_history: bool = True
    artifacts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def told(self) -> dict[str, Any]:
        status: dict[str, Any] = {"state": f"TASK_STATE_{self.state}"}
        if self.says:
            message_id = f"{self.id}-{self.state}-{len(self.history)}"
            status["message"] = {"messageId": message_id, "role": "ROLE_AGENT", "parts": self.says}
        if self.timestamp is not None:
            status["timestamp"] = self.timestamp
        task: dict[str, Any] = {"id": self.id, "contextId": self.context, "status": status}
        history = {"history": self.history} if self.tells_history else {}
        return {**task, "artifacts": self.artifacts, **history}


@dataclass
class OtherSystem:
    """The server, which joins no repeated message: each message that begins a task begins another one."""

    tasks: list[OtherTask] = field(default_factory=list[OtherTask])
    calls: list[str] = field(default_factory=list[str])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    streams: bool = False
    lists: bool = True
    hides: int = 0
    """How many requests to list tasks are answered as if there were none yet."""
    card: dict[str, Any] = field(default_factory=dict[str, Any])
    status: int = 200
    loses: set[str] = field(default_factory=set[str])
    """Methods whose next answer is lost."""
    lost: int = 502
    """The status instead of it, or the code of an error of JSON-RPC."""
    garbles: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """What is sent instead of the next answer to a method."""
    tells_history: bool = True
    lists_all: bool = False
    """Whether tasks of all contexts are listed."""
    on_message: Callable[[OtherTask, dict[str, Any]], None] = lambda task, message: None
    replies: dict[str, Any] | None = None
    """What is answered instead of a task."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    port: int = 0
    delays: list[asyncio.Event] = field(default_factory=list[asyncio.Event])
    """What the answers to the next looks at a task wait for, after they were made."""
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What streams tell, in order; a stream that begins later tells the rest."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/agent"

    async def change(self, state: str, *says: dict[str, Any], artifacts: Any = None) -> None:
        """Give the last task another state."""
        async with self.changed:
            task = self.tasks[-1]
            task.state, task.says = state, list(says)
            task.artifacts = task.artifacts if artifacts is None else artifacts
            self.changed.notify_all()

    async def handle_card(self, request: Request) -> Response:
        self.calls.append("card")
        interface = {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        card = {"name": "Other", "capabilities": {"streaming": self.streams}, "supportedInterfaces": [interface]}
        return JSONResponse({**card, **self.card})

    async def handle(self, request: Request) -> Response:
        call = json.loads(await request.body())
        method, params = call["method"], call["params"]
        self.calls.append(method)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return Response("no", self.status, headers={"location": "http://127.0.0.1:1/"})
        result = self.result(method, params)
        if method == "GetTask" and self.delays:
            await self.delays.pop(0).wait()
        if method in self.garbles:
            return Response(self.garbles.pop(method), 200, media_type="application/json")
        if method in self.loses:
            self.loses.discard(method)
            if self.lost > 0:
                return Response("lost", self.lost)
            result = self.lost
        if isinstance(result, int):
            return JSONResponse({"jsonrpc": "2.0", "id": 1, "error": {"code": result, "message": "no"}})
        if method in ("SendStreamingMessage", "SubscribeToTask"):
            return StreamingResponse(self.stream(self.of(params) or self.tasks[-1]), media_type="text/event-stream")
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": result})

    def of(self, params: dict[str, Any]) -> OtherTask | None:
        return next((one for one in self.tasks if one.id == params.get("id")), None)

    def result(self, method: str, params: dict[str, Any]) -> Any:
        if method in ("SendMessage", "SendStreamingMessage"):
            message = params["message"]
            if self.replies is not None:
                return {"message": self.replies}
            task = next((one for one in self.tasks if one.id == message.get("taskId")), None)
            if task is None:
                task = OtherTask(f"t{len(self.tasks) + 1}", message["contextId"], [], tells_history=self.tells_history)
                self.tasks.append(task)
            task.history.append(message)
            self.on_message(task, message)
            return {"task": task.told()}
        if method == "ListTasks":
            found = [one.told() for one in reversed(self.tasks) if self.lists_all or one.context == params["contextId"]]
            self.hides -= 1
            return {"tasks": [] if self.hides >= 0 else found, "nextPageToken": ""} if self.lists else -32601
        task = self.of(params)
        if task is None:
            return -32001
        if method == "CancelTask":
            if task.state in OVER:
                return -32002
            task.state = "CANCELED"
        if method == "SubscribeToTask" and (task.state in OVER or not self.streams):
            return -32004
        return task.told()

    async def stream(self, task: OtherTask) -> AsyncGenerator[bytes, None]:
        def line(result: Any) -> bytes:
            return f"data: {json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': result})}\r\n\r\n".encode()

        yield line({"task": task.told()})
        told = 0
        while True:
            async with self.changed:
                while told == len(self.events) and task.state == "WORKING":
                    await self.changed.wait()
            for event in self.events[told:]:
                yield line(event)
            told = len(self.events)
            if task.state != "WORKING":
                status = task.told()["status"]
                yield line({"statusUpdate": {"taskId": task.id, "contextId": task.context, "status": status}})
                return

    async def tell(self, text: str, *, append: bool = True, artifact: str = "a") -> None:
        """Have the streams tell more of an artifact."""
        async with self.changed:
            body = {"artifactId": artifact, "parts": [{"text": text}]}
            update = {"taskId": "t1", "contextId": "c", "artifact": body, "append": append}
            self.events.append({"artifactUpdate": update})
            self.changed.notify_all()


@asynccontextmanager
async def other_system(**options: Any) -> AsyncGenerator[OtherSystem, None]:
    """Serve another system."""
    other = OtherSystem(**options)
    routes = [Route(f"/agent{CARD}", other.handle_card), Route("/agent", other.handle, methods=["POST"])]
    async with serving(Starlette(routes=routes)) as site:
        other.port = site.port
        yield other
