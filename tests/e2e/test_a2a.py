"""The official A2A client and a real server that is killed: a task goes on, is done once, and its end is pushed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from tests.conformance.worlds import happens
from tests.machine import patience
from tests.servers import Server

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


class A2aServer(Server):
    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "warning", *self.workers]
        return [sys.executable, "-m", "sapwood", "serve", f"{HERE / 'a2a_app.py'}:app", *options]

    workers: tuple[str, ...] = ()


class TwoWorkers(A2aServer):
    workers = ("--workers", "2")


class Receiver:
    """Hears push notifications. The first is refused."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.heard.append((self.headers["X-A2A-Notification-Token"], body["task"]["status"]["state"]))
                self.send_response(500 if len(outer.heard) == 1 else 200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"


class Site:
    """The server, and what its agents did."""

    def __init__(self, server: A2aServer, log: Path) -> None:
        self.server, self._log = server, log

    def done(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def allow(self, *looks: int) -> None:
        for look in looks:
            Path(f"{self._log}.{look}").touch()

    async def seen(self, count: int) -> None:
        async with asyncio.timeout(patience(30)):
            await happens(lambda: len(self.done()) >= count)

    async def killed(self) -> None:
        """End the server at once, and start it again. Two workers are left alone: who is asked changes there."""
        if self.server.workers:
            return
        await asyncio.to_thread(self.server.end, signal.SIGKILL)
        await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def client(self, path: str) -> AsyncIterator[Any]:
        async with httpx.AsyncClient(timeout=patience(60)) as http:
            card = await A2ACardResolver(http, f"http://{self.server.host}/a2a/{path}").get_agent_card()
            yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


@pytest.fixture(
    params=[
        pytest.param(A2aServer, id="one process"),
        pytest.param(TwoWorkers, id="two workers", marks=pytest.mark.nightly),
    ]
)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    log = tmp_path / "done.log"
    server = request.param(tmp_path, tmp_path / "data", A2A_LOG=str(log))
    yield Site(server, log)
    server.end(signal.SIGKILL)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def saying(text: str, *, hook: str = "", at_once: bool = False, **more: Any) -> SendMessageRequest:
    message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    request = SendMessageRequest(message=message)
    request.configuration.return_immediately = at_once
    if hook:
        config = TaskPushNotificationConfig(id="c", url=hook, token="t0k")
        request.configuration.task_push_notification_config.CopyFrom(config)
    return request


async def test_a_task_is_followed_across_kills_and_its_end_is_pushed(site: Site, receiver: Receiver) -> None:
    request = saying("rivers", hook=receiver.url)
    seen: list[Any] = []
    site.allow(0, 1, 2)
    async with site.client("look-agent") as client:
        with contextlib.suppress(Exception):  # whatever the client raises for a stream that breaks
            async for event in client.send_message(request):
                seen.append(event)
                await site.seen(3)
                await site.killed()
                if site.server.workers:
                    break
    task = seen[0].task.id

    async with site.client("look-agent") as client:
        assert (await client.get_task(GetTaskRequest(id=task))).status.state == TaskState.TASK_STATE_WORKING
        site.allow(3, 4, 5)
        await site.seen(6)
    await site.killed()
    site.allow(6, 7, 8, 9)
    async with site.client("look-agent") as client:
        last: Any = None
        async for event in client.send_message(request):  # the same message joins the task
            last = event
        ended = await client.get_task(GetTaskRequest(id=task))
        assert last is not None
        assert ended.status.state == TaskState.TASK_STATE_COMPLETED
        assert ended.artifacts[0].parts[0].text == "rivers has 10 sides"
        assert [one.id for one in (await client.list_tasks(ListTasksRequest())).tasks] == [task]
    assert site.done() == [f"look {number}" for number in range(10)]
    async with asyncio.timeout(patience(60)):
        await happens(lambda: len(receiver.heard) >= 2)
    assert receiver.heard == [("t0k", "TASK_STATE_COMPLETED")] * 2


@pytest.mark.nightly
async def test_a_question_three_levels_down_is_answered_after_a_kill_and_paid_once(site: Site) -> None:
    async with site.client("order-agent") as client:
        last: Any = None
        async for event in client.send_message(saying("bread")):
            last = event
        assert last.status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        task, context = last.status_update.task_id, last.status_update.context_id
        assert "OrderAgent/BuyAgent/PayAgent: May pay be called" in last.status_update.status.message.parts[0].text
    await site.killed()
    answer = saying("yes", task_id=task, context_id=context)
    async with site.client("order-agent") as client:
        for _ in range(2):  # the second is the same message again
            async for event in client.send_message(answer):
                last = event
        ended = await client.get_task(GetTaskRequest(id=task))
        assert ended.status.state == TaskState.TASK_STATE_COMPLETED
        assert ended.artifacts[0].parts[0].text == "all is bought"
    assert site.done() == ["paid 3"]


async def test_a_task_is_cancelled_and_a_subscriber_hears_of_it(site: Site) -> None:
    async with site.client("look-agent") as client:
        task = ""
        async for event in client.send_message(saying("hills", at_once=True)):
            task = event.task.id
            break

        async def follow() -> Any:
            async with site.client("look-agent") as other:
                last: Any = None
                async for event in other.subscribe(SubscribeToTaskRequest(id=task)):
                    last = event
                return last

        following = asyncio.create_task(follow())
        cancelled = await client.cancel_task(CancelTaskRequest(id=task))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        (last,) = await asyncio.gather(following, return_exceptions=True)
        if not isinstance(last, BaseException):  # it may come too late, and is told that the task is over
            assert last.WhichOneof("payload") in ("task", "status_update")
        assert (await client.get_task(GetTaskRequest(id=task))).status.state == TaskState.TASK_STATE_CANCELED
