"""Temporal: what a turn costs that it drives, beside a bare workflow with one activity and beside the fiber, and Stop.

    python benchmarks/temporal.py [--small] [metric …]

Temporal's dev server, our server, our worker and the bare worker are processes of their own.
Everything is measured by a client, from what it sends to what it is told, in turns with what
it is compared to.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import interrupt
import served
import uvloop
from frame import Result, at_most, below, emit, say, scratch, works
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from sockets import Client, connect
from temporalio import activity, workflow
from temporalio.client import Client as Temporal
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sapwood import App, ChatAgent, Settings, agent_tool
from sapwood.drivers.temporal import TemporalDriver

SMALL = "--small" in sys.argv
TURNS = 10 if SMALL else 60
SHORT = 10
"""Turns of one conversation: in a long one the model has much to read."""
CREW = 50
"""How many children speak when somebody says Stop."""
STOPS = 3 if SMALL else 30
GREETING = 3
"""Frames a client is greeted with."""
TARGET = os.environ.get("TEMPORAL_TARGET", "127.0.0.1:7233")
BARE = "bare"
HERE = Path(__file__)
MIB = 1 << 20


async def one_word(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "done"


async def one_helper(messages: Any, info: Any) -> AsyncIterator[Any]:
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        yield "done"
    else:
        yield {0: DeltaToolCall("talker", '{"message":"go on"}')}


class Talker(ChatAgent):
    """Asks its model once."""

    model = FunctionModel(stream_function=one_word)


class Boss(ChatAgent):
    """Uses one helper."""

    model = FunctionModel(stream_function=one_helper)
    tools = (agent_tool(Talker),)


driver = TemporalDriver(TARGET, token="bench")
app = App(agents=[Talker, Boss], driver=driver)
"""For our worker, which is told by it where Temporal is."""


@activity.defn
async def bare_activity(number: int) -> int:
    return number


@workflow.defn
class BareWorkflow:
    """The least that a workflow with one activity is."""

    @workflow.run
    async def run(self, number: int) -> int:
        return await workflow.execute_activity(
            bare_activity, number, start_to_close_timeout=timedelta(seconds=60), heartbeat_timeout=timedelta(seconds=10)
        )


def serve(folder: str, port: int, how: str, provider: int) -> None:
    settings = Settings(data=folder, slow_after=60, model_requests_at_once=5000)
    driven = driver if how == "temporal" else None
    agents = [Talker, Boss, crew(provider)] if provider else [Talker, Boss]
    served.serve(App(agents=agents, settings=settings, driver=driven), port)


def crew(provider: int) -> type[ChatAgent]:
    """Return a class of agents that use fifty others, each of which listens to a model over a connection of its own."""
    import httpx2
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=600)
    there = OpenAIProvider(base_url=f"http://127.0.0.1:{provider}/v1", api_key="k", http_client=client)

    class Mate(ChatAgent):
        """Says much."""

        model = OpenAIChatModel("0", provider=there)

    class Crew(ChatAgent):
        """Uses mates."""

        model = OpenAIChatModel(str(CREW), provider=there)
        tools = (agent_tool(Mate),)

    return Crew


async def work_bare() -> None:
    client = await Temporal.connect(TARGET)
    async with Worker(
        client,
        task_queue=BARE,
        workflows=[BareWorkflow],
        activities=[bare_activity],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await asyncio.Event().wait()


class Listener(Client):
    """A client of a chat that knows when its turn is over."""

    over: Future[float] | None = None

    def heard(self, payload: bytes) -> None:
        super().heard(payload)
        if b'"done":true' in payload and self.over is not None and not self.over.done():
            self.over.set_result(time.perf_counter())


class Talk:
    """Conversations with agents of one class, one after the other."""

    def __init__(self, port: int, kind: str = "Talker") -> None:
        self._port = port
        self._kind = kind
        self._client: Listener | None = None
        self._address = ""
        self._turns = 0

    @property
    def workflow(self) -> str:
        """The id of the workflow of its last turn."""
        return f"{self._address} r{self._turns}"

    async def turn(self) -> float:
        """Have a turn; return when it began, once it is over."""
        if self._turns % SHORT == 0:
            await self._begin()
        return await self._turn()

    async def _begin(self) -> None:
        """Begin a new conversation, and have the first turn of it."""
        if self._client is not None:
            self._client.transport.abort()
        name = f"t-{time.time_ns()}"
        self._address = f"{self._kind}:{name}"
        self._client = await connect(self._port, f"/agents/{self._kind.lower()}/{name}", GREETING, Listener)
        await self._turn()

    async def _turn(self) -> float:
        assert self._client is not None
        self._turns += 1
        message = {"id": f"u{self._turns}", "role": "user", "parts": [{"type": "text", "text": "go on"}]}
        body = json.dumps({"messages": [message], "trigger": "submit-message"})
        frame = {
            "id": f"r{self._turns}",
            "init": {"method": "POST", "body": body},
            "type": "cf_agent_use_chat_request",
        }
        self._client.over = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        self._client.send(json.dumps(frame).encode())
        async with asyncio.timeout(60):
            await self._client.over
        return began


@dataclass(frozen=True)
class Place:
    """All the processes there are."""

    temporal: Temporal
    own: int
    """The port of the server whose turns go on by themselves."""
    driven: int
    """The port of the one whose turns Temporal drives."""
    pids: dict[str, int]


@contextmanager
def started(*command: str, **told: str) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run a program until this block ends."""
    environment = {**os.environ, **told}
    with served.started(*command, env=environment, cwd=HERE.parent, stdout=subprocess.DEVNULL) as process:
        yield process


@asynccontextmanager
async def place(provider: int = 0) -> AsyncGenerator[Place, None]:
    here, ports = str(HERE), [served.free_port() for _ in range(3)]
    target, url = f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[2]}"
    told = {"TEMPORAL_TARGET": target}
    dev = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless", "--log-level", "error"]
    command = [sys.executable, "-m", "sapwood", "temporal", "worker", "temporal:app", "--url", url]
    with (
        started(*dev, "--ip", "127.0.0.1", "--port", str(ports[0])) as temporal,
        started(
            sys.executable, here, "--serve", str(scratch("own")), str(ports[1]), "own", str(provider), **told
        ) as own,
        started(
            sys.executable, here, "--serve", str(scratch("driven")), str(ports[2]), "temporal", str(provider), **told
        ) as server,
        started(*command, "--log-level", "warning", **told) as worker,
        started(sys.executable, here, "--bare", **told) as bare,
    ):
        for port in ports:
            served.until_listening(port)
        pids = {"temporal": temporal.pid, "own": own.pid, "server": server.pid, "worker": worker.pid, "bare": bare.pid}
        yield Place(await _connected(target), ports[1], ports[2], pids)


async def _connected(target: str) -> Temporal:
    for _ in range(300):
        try:
            return await Temporal.connect(target)
        except RuntimeError:  # it listens, and is not ready
            await asyncio.sleep(0.1)
    raise RuntimeError("Temporal did not start")


async def in_turns(n: int, *ways: Callable[[], Awaitable[list[float]]]) -> list[list[float]]:
    """Measure each way, in turns, so often after some rounds to warm up; return the median of each of its figures."""
    for _ in range(5):
        for way in ways:
            await way()
    found: list[list[list[float]]] = [[] for _ in ways]
    for _ in range(n):
        for at, way in enumerate(ways):
            found[at].append(await way())
    return [[statistics.median(figures) for figures in zip(*one, strict=True)] for one in found]


def ms(since: float, until: float | None = None) -> float:
    return ((time.perf_counter() if until is None else until) - since) * 1e3


async def turn() -> None:
    """A turn with one step that Temporal drives, a bare workflow with one activity, and a turn of its own."""
    async with place() as one:
        driven, own = Talk(one.driven), Talk(one.own)

        async def ours() -> list[float]:
            began = await driven.turn()
            over = ms(began)
            await one.temporal.get_workflow_handle(driven.workflow).result()
            return [over, ms(began)]

        async def bare() -> list[float]:
            began = time.perf_counter()
            id = f"bare-{time.time_ns()}"
            await one.temporal.execute_workflow(BareWorkflow.run, 1, id=id, task_queue=BARE)
            return [ms(began)]

        async def alone() -> list[float]:
            return [ms(await own.turn())]

        (over, closed), (reference,), (fiber,) = await in_turns(TURNS, ours, bare, alone)
        beside = "beside a bare workflow with one activity"
        at_most(
            f"Temporal: turn of one step until its workflow is closed, {beside}",
            closed,
            reference,
            times=1.5,
            unit="ms",
            n=TURNS,
        )
        name = f"Temporal: turn of one step until it is over, {beside}"
        emit(Result(name, over, reference, over / reference, "ms", TURNS, "recorded", True))
        name = "Temporal: turn of one step until it is over, beside one that goes on by itself"
        emit(Result(name, over, fiber, over / fiber, "ms", TURNS, "recorded", True))
        await _weigh(one, driven)


async def _weigh(one: Place, talk: Talk) -> None:
    """Tell what Temporal keeps of a turn, and what the processes hold."""
    history = await one.temporal.get_workflow_handle(talk.workflow).fetch_history()
    size = sum(event.ByteSize() for event in history.events)
    works(
        "Temporal: events in the history of a turn of one step",
        len(history.events),
        unit="events",
        n=1,
        bar="recorded",
        note=f"{size} bytes",
    )
    memory = {name: served.memory_of(pid) / MIB for name, pid in one.pids.items()}
    note = ", ".join(f"{name} {size:.0f} MiB" for name, size in memory.items())
    works("Temporal: memory of a worker", memory["worker"], unit="MiB", n=1, bar="recorded", note=note)


async def helper() -> None:
    """A turn with one sub-agent, driven by Temporal and by itself."""
    async with place() as one:
        driven, own = Talk(one.driven, "Boss"), Talk(one.own, "Boss")

        async def ours() -> list[float]:
            return [ms(await driven.turn())]

        async def alone() -> list[float]:
            return [ms(await own.turn())]

        (over,), (fiber,) = await in_turns(TURNS, ours, alone)
        name = "Temporal: turn with one sub-agent until it is over, beside one that goes on by itself"
        emit(Result(name, over, fiber, over / fiber, "ms", TURNS, "recorded", True))


async def stop() -> None:
    """Stop a turn with fifty child workflows, each of whose agents listens to a model."""
    with served.process(interrupt.__file__, "--provide", served.PORT) as provider:
        async with place(provider) as one:
            site = interrupt.Site(one.driven, provider)
            beside = interrupt.Site(one.own, provider)
            ours: list[float] = []
            fiber: list[float] = []
            for _ in range(STOPS):
                ours.append(await site.stop("crew", CREW))
                await _none_open(one.temporal)
                fiber.append(await beside.stop("crew", CREW))
            middle, other = statistics.median(ours), statistics.median(fiber)
            note = (
                f"of {STOPS}: median {middle:.0f} ms, most {max(ours):.0f} ms; without Temporal, median {other:.0f} ms"
            )
            name = f"Temporal: Stop with {CREW} child workflows whose models speak, to the last connection closed, p99"
            below(name, interrupt.p99(ours), 500, unit="ms", n=CREW, note=note)


async def _none_open(temporal: Temporal) -> None:
    """Return when all workflows have ended, so that they do not cost the next ones time."""
    async with asyncio.timeout(120):
        while (await temporal.count_workflows("ExecutionStatus = 'Running'")).count:  # noqa: ASYNC110 - it does not tell
            await asyncio.sleep(0.1)


METRICS = {metric.__name__: metric for metric in (turn, helper, stop)}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
        os._exit(0)  # threads of Temporal's client may end the interpreter with an error otherwise
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(work_bare())
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
