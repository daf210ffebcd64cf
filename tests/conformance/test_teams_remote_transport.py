"""Remote runs over a transport that a user wrote: in memory, and to an HTTP server that is not of sapwood."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.conformance.chats import Talking
from tests.conformance.errands import check_sequence, frames, over, told_end
from tests.conformance.served import served
from tests.conformance.serving import serving
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, Question, RemoteSubAgent, Run, Unavailable, remote_agent_tool
from sapwood.auth import User
from sapwood.errors import InvalidArguments, RemoteLost, RemoteRefused, RemoteUnauthorized, UsageError
from sapwood.remote import (
    Chunk,
    End,
    Heartbeat,
    Memo,
    Milestone,
    OpenQuestions,
    Position,
    Progress,
    RemoteAnswer,
    RemoteEvent,
    RemoteQuestion,
    RemoteStatus,
    RunTransport,
)
from sapwood.testing import ScriptedModel, World, call, running
from sapwood.testing import text as says
from sapwood.timings import DEFAULTS

SILENCE = 120.0


def word(n: int) -> dict[str, Any]:
    return {"type": "data-word", "data": n}


@dataclass
class Job:
    """One run, as the other side knows it."""

    words: int
    said: int = 0
    stopped: str | None = None

    @property
    def status(self) -> RemoteStatus:
        if self.stopped is not None:
            return RemoteStatus("cancelled", self.said, reason=self.stopped)
        if self.said == self.words:
            return RemoteStatus("completed", self.said, output={"said": self.said}, summary="said")
        return RemoteStatus("running", self.said)


@dataclass
class Mill:
    """The other side: it outlives every crash of the caller."""

    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    log: list[str] = field(default_factory=list[str])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    fails: Exception | None = None
    """What every request fails with."""
    is_mute: bool = False
    """Whether streams yield nothing."""
    opened: int = 0
    closed: int = 0

    async def say(self, words: int = 1) -> None:
        """Have all jobs that are running say more."""
        for job in self.jobs.values():
            job.said = min(job.words, job.said + words)
        await self.wake()

    async def wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def started(self, count: int = 1) -> None:
        await until(lambda: len(self.jobs) == count)


class MemoryTransport:
    """Carries runs to the mill in this very process."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill

    async def __aenter__(self) -> Self:
        self._mill.opened += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self._mill.closed += 1

    async def start(self, session: str, input: int) -> RemoteStatus:
        self._asked("start")
        return self._mill.jobs.setdefault(session, Job(int(input))).status

    async def status(self, session: str) -> RemoteStatus:
        self._asked("status")
        return self._job(session).status

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        self._asked(f"cancel {reason}")
        job = self._mill.jobs.setdefault(session, Job(1))
        if job.said < job.words:
            job.stopped = reason
        await self._mill.wake()
        return job.status

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
        self._asked(f"stream {after.seq} {after.milestones}")
        seq = after.seq
        if after.milestones == 0:
            yield [Milestone("begun", Progress(0.0, "hello"))]
        while True:
            job = self._job(session)
            chunks: list[RemoteEvent] = [Chunk(n, word(n)) for n in range(seq + 1, job.said + 1)]
            seq = job.said
            if self._mill.is_mute:
                await asyncio.Event().wait()
            yield [Heartbeat(), *chunks, *([Progress(seq / job.words)] if chunks else [])]
            if job.status.is_over:
                yield [End(job.status)]
                return
            async with self._mill.changed:
                await self._mill.changed.wait()
            self._asked("woken")

    def _asked(self, what: str) -> None:
        self._mill.log.append(what)
        if self._mill.fails is not None:
            raise self._mill.fails

    def _job(self, session: str) -> Job:
        if session not in self._mill.jobs:
            raise RemoteLost("There is no such job.")
        return self._mill.jobs[session]


class AtMill(RemoteSubAgent):
    """Says words, in memory."""

    url = "mill"
    deps: Mill

    def transport(self) -> RunTransport:
        return MemoryTransport(self.deps)


class MillDesk(Talking):
    tools = (remote_agent_tool("the/mill", description="Mills.", transport=MemoryTransport),)

    async def give(self, words: int, run_id: str = "r1", timeout: float | None = None) -> Run:
        return await self.run_agent(AtMill, words, run_id=run_id, timeout=timeout)

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id, "enough")


@asynccontextmanager
async def mill_and_desk(**options: Any) -> AsyncGenerator[tuple[Mill, Any], None]:
    mill = Mill()
    async with asyncio.timeout(patience()), served(App(agents=[MillDesk], deps=mill), **options) as near:
        yield mill, near


@pytest.mark.promise("A-209")
async def test_a_run_over_a_transport_of_a_users_own_is_like_any_other() -> None:
    async with mill_and_desk() as (mill, near):
        client = await near.join("/agents/mill-desk/d")
        desk = await near.world.get_agent(MillDesk, "d")
        giving = asyncio.create_task(desk.give(3))
        await mill.started()
        await mill.say(2)
        await client.until(lambda _: len(said(client)) == 2)
        await mill.say()

        run = await giving

        assert (run.status, run.output, run.summary) == ("completed", {"said": 3}, "said")
        assert (run.remote["url"], run.remote["session"]) == ("mill", *mill.jobs)
        await told_end(client, "r1")
        assert said(client) == [word(1), word(2), word(3)]
        one = await desk.one("r1")
        assert (one.milestones[0]["name"], one.progress["fraction"], one.remote["seq"]) == ("begun", 1.0, 3)
        assert mill.opened == mill.closed == 1


def said(client: Any) -> list[Any]:
    """Return the words that a client was told."""
    bodies = [str(frame["event"].get("body", "")) for frame in frames(client, "r1")]
    return [word(n) for n in range(1, 10) if any(f'"data-word","data":{n}' in body for body in bodies)]


@pytest.mark.promise("A-209")
async def test_a_tool_of_a_model_uses_a_transport_too() -> None:
    mill = Mill()
    model = ScriptedModel(call("mill", id="c1", message="2"), says("thanks"))

    class ModelDesk(MillDesk):
        pass

    ModelDesk.model = model
    async with running(App(agents=[ModelDesk], deps=mill)) as world:
        desk = await world.get_agent(ModelDesk, "d")
        sending = asyncio.create_task(desk.send("go"))
        await mill.started()
        await mill.say(2)

        assert (await sending).output == "thanks"

        run = await desk.one("agent-tool:c1")
        assert run is not None
        assert run.output == {"said": 2}


@pytest.mark.promise("A-209", "A-215")
@pytest.mark.parametrize("is_over", [False, True])
async def test_after_a_crash_the_transport_is_found_by_the_class_and_the_stream_resumes(is_over: bool) -> None:
    async with mill_and_desk() as (mill, near):
        client = await near.join("/agents/mill-desk/d")
        desk = await near.world.get_agent(MillDesk, "d")
        giving = asyncio.create_task(desk.give(4))
        await mill.started()
        await mill.say(2)
        await client.until(lambda _: len(said(client)) == 2)
        await near.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        before = len(mill.log)
        if is_over:
            await mill.say(2)
        desk = await near.world.get_agent(MillDesk, "d")
        if not is_over:
            await until(lambda: "stream 2 1" in mill.log)
            await mill.say(2)

        run = await over(desk, "r1")

        assert (run.status, run.output) == ("completed", {"said": 4})
        assert mill.log[before:][:2] == ["status", "stream 2 1"]
        assert mill.log.count("start") == 1
        late = await near.join("/agents/mill-desk/d")
        await told_end(late, "r1")
        assert len(said(late)) == 4
        check_sequence([one for one in frames(late, "r1") if "data-agent" not in one["event"].get("body", "")])


@pytest.mark.promise("A-209")
async def test_a_cancelled_run_is_cancelled_over_the_transport_also_after_a_crash() -> None:
    async with mill_and_desk() as (mill, near):
        desk = await near.world.get_agent(MillDesk, "d")
        giving = asyncio.create_task(desk.give(3))
        await mill.started()
        mill.fails = Unavailable("not now")
        await desk.stop("r1")
        run = await giving
        assert (run.status, run.reason) == ("cancelled", "enough")
        await near.world.crash()
        mill.fails = None

        await near.world.get_agent(MillDesk, "d")

        (job,) = mill.jobs.values()
        await until(lambda: job.stopped == "enough")


@pytest.mark.promise("A-209")
@pytest.mark.parametrize("error", [Unavailable("away"), ConnectionResetError("away"), TimeoutError("away")])
async def test_a_transport_that_cannot_reach_its_agent_is_retried_and_given_up_after_the_silence(
    error: Exception,
) -> None:
    async with mill_and_desk() as (mill, near):
        desk = await near.world.get_agent(MillDesk, "d")
        giving = asyncio.create_task(desk.give(1))
        await mill.started()
        mill.fails = error
        await mill.wake()
        await until(lambda: mill.log.count("status") > 2)

        await near.world.clock.advance(SILENCE + 1)

        run = await giving
        assert (run.status, run.reason, run.still_running) == ("interrupted", "unreachable", True)
        assert "away" in (run.error or "")
        mill.fails = None
        await mill.say()
        assert (await over(desk, "r1")).status == "completed"


@pytest.mark.promise("A-209")
async def test_a_stream_that_yields_nothing_is_opened_again() -> None:
    async with mill_and_desk(timings=replace(DEFAULTS, remote_silence_timeout=0.05)) as (mill, near):
        desk = await near.world.get_agent(MillDesk, "d")
        mill.is_mute = True
        giving = asyncio.create_task(desk.give(1))
        await until(lambda: sum(one.startswith("stream") for one in mill.log) > 2)
        mill.is_mute = False
        await mill.say()

        assert (await giving).status == "completed"
        assert mill.log.count("start") == 1


@pytest.mark.promise("A-209")
@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (RemoteRefused("too many words"), "remote_refused: too many words"),
        (RemoteUnauthorized("who are you"), "remote_unauthorized: who are you"),
        (RemoteLost("gone"), "remote_lost: gone"),
        (ValueError("a bug"), "ValueError: a bug"),
    ],
)
async def test_what_a_transport_refuses_or_breaks_ends_the_run(error: Exception, wanted: str) -> None:
    async with mill_and_desk() as (mill, near):
        mill.fails = error
        run = await (await near.world.get_agent(MillDesk, "d")).give(1)

        assert run.status == "failed"
        assert wanted in str(run.error)
        assert mill.log.count("start") == 1


@pytest.mark.parametrize(
    ("end", "length"),
    [
        (RemoteStatus("failed", error="e" * 1_000_000), 2000),
        (RemoteStatus("cancelled", reason="r" * 1_000_000), 500),
        (RemoteRefused("e" * 1_000_000), 2000),
    ],
)
async def test_the_texts_of_a_remote_end_are_shortened(end: RemoteStatus | RemoteRefused, length: int) -> None:
    class Verbose(MemoryTransport):
        async def start(self, session: str, input: int) -> RemoteStatus:
            if isinstance(end, RemoteStatus):
                return end
            raise end

    class AtVerbose(RemoteSubAgent):
        url = "verbose"
        deps: Mill

        def transport(self) -> RunTransport:
            return Verbose(self.deps)

    class VerboseDesk(Agent):
        async def give(self) -> Run:
            return await self.run_agent(AtVerbose, 1)

    async with asyncio.timeout(patience()), served(App(agents=[VerboseDesk], deps=Mill())) as near:
        run = await (await near.world.get_agent(VerboseDesk, "d")).give()

        assert run.status == (end.status if isinstance(end, RemoteStatus) else "failed")
        assert len(run.error or run.reason or "") == length


@pytest.mark.parametrize("lost", [ConnectionError("reset"), Unavailable("no answer"), RemoteRefused("unreadable")])
async def test_a_run_whose_start_was_not_answered_is_cancelled_if_the_next_request_is_refused(lost: Exception) -> None:
    """The other side has taken the run, as when a reply is lost and the token expires."""

    class LosingTransport(MemoryTransport):
        async def start(self, session: str, input: int) -> RemoteStatus:
            if session in self._mill.jobs:
                raise RemoteRefused("the token has expired")
            await super().start(session, input)
            raise lost

    class Losing(RemoteSubAgent):
        url = "mill"
        deps: Mill

        def transport(self) -> RunTransport:
            return LosingTransport(self.deps)

    class LosingDesk(Agent):
        async def give(self) -> Run:
            return await self.run_agent(Losing, 1, run_id="r1")

    mill = Mill()
    async with asyncio.timeout(patience()), served(App(agents=[LosingDesk], deps=mill)) as near:
        run = await (await near.world.get_agent(LosingDesk, "d")).give()

        assert run.status == "failed"
        async with asyncio.timeout(5):
            await until(lambda: "cancel failed" in mill.log)
        assert [job.stopped for job in mill.jobs.values()] == ["failed"]


@pytest.mark.parametrize(
    "usage",
    [
        {"m": {"requests": -1000, "input_tokens": -1_000_000, "output_tokens": 0, "cost": -50.0}},
        {"m": {"requests": 1, "input_tokens": 10**30, "output_tokens": 0, "cost": 1.0}},
        {"m": {"requests": 1, "input_tokens": 1, "output_tokens": 0, "cost": 1e300}},
        {"m": {"requests": 1, "input_tokens": 1, "output_tokens": 0, "cost": float("inf")}},
        {"m": {"requests": 1, "input_tokens": 1, "output_tokens": 0, "cost": float("nan")}},
        {f"m{n}": {"requests": 1, "input_tokens": 1, "output_tokens": 0, "cost": 0.0} for n in range(2000)},
        {"m" * 100_000: {"requests": 1, "input_tokens": 1, "output_tokens": 0, "cost": 0.0}},
    ],
    ids=["negative", "many tokens", "large cost", "infinite cost", "no number", "many models", "long name"],
)
async def test_a_remote_side_cannot_lower_or_break_the_account_of_the_caller(usage: dict[str, Any]) -> None:
    class ClaimingTransport(MemoryTransport):
        async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
            yield [End(RemoteStatus("completed", 0, output="done", usage=usage))]

    class Claiming(RemoteSubAgent):
        url = "mill"
        deps: Mill

        def transport(self) -> RunTransport:
            return ClaimingTransport(self.deps)

    class ClaimingDesk(Agent):
        async def give(self) -> Run:
            return await self.run_agent(Claiming, 1, run_id="r1")

        async def count(self) -> list[int]:
            return [one.requests for one in await self.spending.list()]

    async with asyncio.timeout(patience()), served(App(agents=[ClaimingDesk], deps=Mill())) as near:
        desk = await near.world.get_agent(ClaimingDesk, "d")
        run = await desk.give()

        assert (run.status, run.output) == ("completed", "done")
        assert await desk.count() == []


async def test_a_remote_side_cannot_fill_the_caller_with_milestones(caplog: pytest.LogCaptureFixture) -> None:
    """All milestones of a run are in one row: each one would cost as much as all before it."""

    class FloodingTransport(MemoryTransport):
        async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
            for n in range(5):
                yield [Milestone(f"m{n} {at}", Progress(0.5, "x" * 1000)) for at in range(200)]
            yield [End(RemoteStatus("completed", 0, output="done"))]

    class Flooding(RemoteSubAgent):
        url = "mill"
        deps: Mill

        def transport(self) -> RunTransport:
            return FloodingTransport(self.deps)

    class FloodingDesk(Agent):
        async def give(self) -> int:
            run = await self.run_agent(Flooding, 1, run_id="r1")
            assert run.output == "done"
            found = self.runs.get("r1")
            return 0 if found is None else len(found.milestones)

    async with asyncio.timeout(patience()), served(App(agents=[FloodingDesk], deps=Mill())) as near:
        count = await (await near.world.get_agent(FloodingDesk, "d")).give()

    assert 200 < count < 300
    warnings = [line for line in caplog.messages if line.startswith("milestones of a remote run left out")]
    assert warnings == ["milestones of a remote run left out: address=FloodingDesk:d/Flooding:r1 limit=262144"]


@pytest.mark.promise("A-209")
async def test_a_name_is_needed_and_a_status_is_one_of_four() -> None:
    class Nameless(RemoteSubAgent):
        def transport(self) -> RunTransport:
            raise AssertionError

    class NamelessDesk(Agent):
        async def give(self) -> Run:
            return await self.run_agent(Nameless, 1)

    async with running(App(agents=[NamelessDesk])) as world:
        with pytest.raises(UsageError, match=r"Nameless\.url must name the remote agent"):
            await (await world.get_agent(NamelessDesk, "d")).give()
    with pytest.raises(UsageError, match="status must be one of cancelled, completed, failed, running, got 'error'"):
        RemoteStatus("error")  # pyright: ignore[reportArgumentType]


# An HTTP server that is not of sapwood.


def job_server(mill: Mill) -> Starlette:
    async def job(request: Request) -> JSONResponse:
        id = request.path_params["id"]
        mill.log.append(request.method)
        if mill.fails is not None:
            return JSONResponse({}, 503)
        if request.method == "PUT":
            mill.jobs.setdefault(id, Job(await request.json()))
        elif request.method == "DELETE":
            mill.jobs.setdefault(id, Job(1)).stopped = request.query_params["reason"]
            await mill.wake()
        elif "after" in request.query_params and mill.jobs[id].said <= int(request.query_params["after"]):
            async with mill.changed:
                if not mill.jobs[id].status.is_over:
                    await mill.changed.wait()
        one = mill.jobs[id]
        return JSONResponse({"words": one.words, "said": one.said, "stopped": one.stopped})

    return Starlette(routes=[Route("/jobs/{id}", job, methods=["GET", "PUT", "DELETE"])])


class PollTransport:
    """Carries runs to the job server, by long polls."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        import httpx2

        self._client, self._broken = httpx2.AsyncClient(base_url=self._url), httpx2.TransportError
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def start(self, session: str, input: int) -> RemoteStatus:
        return await self._ask(self._client.put, f"/jobs/{session}", json=input)

    async def status(self, session: str) -> RemoteStatus:
        return await self._ask(self._client.get, f"/jobs/{session}")

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        return await self._ask(self._client.delete, f"/jobs/{session}", params={"reason": reason})

    async def stream(self, session: str, after: Position) -> AsyncIterator[list[RemoteEvent]]:
        seq = after.seq
        while True:
            now = await self._ask(self._client.get, f"/jobs/{session}", params={"after": seq})
            yield [Heartbeat(), *(Chunk(n, word(n)) for n in range(seq + 1, now.seq + 1))]
            seq = now.seq
            if now.is_over:
                yield [End(now)]
                return

    async def _ask(self, send: Callable[..., Awaitable[Any]], path: str, **more: Any) -> RemoteStatus:
        try:
            response = await send(path, timeout=60, **more)
        except self._broken as error:
            raise Unavailable(str(error)) from error
        if response.is_server_error:
            raise Unavailable("The job server is away.")
        return Job(**response.json()).status


class AtJobServer(RemoteSubAgent):
    url = "jobs"
    deps: Jobs

    def transport(self) -> RunTransport:
        return PollTransport(self.deps.url)


@dataclass
class Jobs:
    url: str = ""


class DeepDesk(Agent):
    """Has a run be done so many levels below itself, and there by the job server."""

    async def on_run(self, input: int) -> Any:
        return (await self.give(input)).output

    async def give(self, depth: int) -> Run:
        if depth:
            return await self.run_agent(DeepDesk, depth - 1, run_id="r1")
        return await self.run_agent(AtJobServer, 3, run_id="r1")

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def stop(self) -> bool:
        return self.runs.cancel("r1", "enough")

    async def end(self) -> None:
        await self.destroy()


@asynccontextmanager
async def deep_desk() -> AsyncGenerator[tuple[Mill, World], None]:
    mill, jobs = Mill(), Jobs()
    async with asyncio.timeout(patience()), serving(job_server(mill)) as site:
        jobs.url = f"http://127.0.0.1:{site.port}"
        async with running(App(agents=[DeepDesk], deps=jobs)) as world:
            yield mill, world


@pytest.mark.promise("A-209")
async def test_a_server_that_is_not_of_sapwood_does_a_run_three_levels_deep_through_a_crash_and_an_outage() -> None:
    async with deep_desk() as (mill, world):
        giving = asyncio.create_task((await world.get_agent(DeepDesk, "d")).give(3))
        await until(lambda: "GET" in mill.log)  # the caller knows that the run has begun
        await mill.say()
        await world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        mill.fails = OSError("the server answers 503")
        desk = await world.get_agent(DeepDesk, "d")
        asked = len(mill.log)
        await until(lambda: len(mill.log) > asked + 2)
        mill.fails = None
        await mill.say(2)

        run = await over(desk, "r1")

        assert (run.status, run.output) == ("completed", {"said": 3})
        assert mill.log.count("PUT") == 1


@pytest.mark.promise("A-209")
@pytest.mark.parametrize("how", ["stop", "end"])
async def test_a_cancelled_or_destroyed_root_cancels_the_run_three_levels_below(how: str) -> None:
    async with deep_desk() as (mill, world):
        desk = await world.get_agent(DeepDesk, "d")
        giving = asyncio.create_task(desk.give(3))
        await mill.started()

        await getattr(desk, how)()

        (job,) = mill.jobs.values()
        await until(lambda: job.stopped is not None)
        assert job.stopped == ("enough" if how == "stop" else "destroyed")
        await asyncio.gather(giving, return_exceptions=True)


class Ticket:
    """The other side chooses the ids of its runs, so the caller has to store them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ids: list[str] = []
        self.go = asyncio.Event()
        self.answers: list[RemoteAnswer] = []
        self.asks: list[RemoteQuestion] = []


class TicketTransport:
    def __init__(self, other: Ticket) -> None:
        self._other = other

    def recall(self, memo: Memo) -> None:
        self._memo = memo

    async def start(self, session: str, input: Any) -> RemoteStatus:
        if self._memo.text is None:
            self._other.ids.append(f"ticket-{len(self._other.ids) + 1}")
            await self._memo.store(self._other.ids[-1])
        return await self.status(session)

    async def status(self, session: str) -> RemoteStatus:
        self._other.log.append(f"status {self._memo.text}")
        return RemoteStatus("running", len(self._memo.chunks()))

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        self._other.log.append(f"cancel {self._memo.text}")
        return RemoteStatus("cancelled", reason=reason)

    async def answer(self, session: str, answer: RemoteAnswer) -> bool:
        self._other.answers.append(answer)
        self._other.go.set()
        return True

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
        chunks = self._memo.chunks()
        assert after.seq == len(chunks)
        self._other.log.append(f"stream {self._memo.text} {chunks}")
        if not chunks:
            yield [Chunk(1, word(1))]
        yield [OpenQuestions(self._other.asks)]
        await self._other.go.wait()
        output = self._other.answers[-1].value if self._other.answers else None
        yield [End(RemoteStatus("completed", 1, output=output))]


class AtTicket(RemoteSubAgent):
    url = "ticket"
    deps: Ticket
    approvers = "clerk"

    def transport(self) -> RunTransport:
        return TicketTransport(self.deps)


class TicketDesk(Agent):
    async def give(self) -> Run:
        return await self.run_agent(AtTicket, 1, run_id="r1")

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def forget(self) -> None:
        await self.runs.clear()

    async def asked(self) -> list[Question]:
        return await self.questions.list()

    async def approve(self) -> bool:
        (question,) = await self.questions.list()
        return await self.questions.approve(question)

    async def reply(self, value: Any) -> bool:
        (question,) = await self.questions.list()
        return await self.questions.answer(question, value)


async def open_question(desk: Any) -> Question:
    """Return the question of a run when it is open."""
    while not (asked := await desk.asked()):  # noqa: ASYNC110 - each look is a call of the agent
        await asyncio.sleep(0)
    return asked[0]


@asynccontextmanager
async def ticket_and_desk(**options: Any) -> AsyncGenerator[tuple[Ticket, Any], None]:
    other = Ticket()
    async with asyncio.timeout(patience()), served(App(agents=[TicketDesk], deps=other, **options)) as near:
        yield other, near


@pytest.mark.promise("A-209")
async def test_what_a_transport_stores_is_there_after_a_crash_and_to_cancel_a_deleted_run() -> None:
    async with ticket_and_desk() as (other, near):
        desk = await near.world.get_agent(TicketDesk, "d")
        giving = asyncio.create_task(desk.give())
        await until(lambda: "stream ticket-1 []" in other.log)
        await near.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        desk = await near.world.get_agent(TicketDesk, "d")
        await until(lambda: f"stream ticket-1 {[word(1)]}" in other.log)

        await desk.forget()

        await until(lambda: "cancel ticket-1" in other.log)
        assert other.ids == ["ticket-1"]


@pytest.mark.promise("A-209")
@pytest.mark.parametrize(
    ("asked", "wrong", "right"),
    [
        (RemoteQuestion("q", prompt="Which?", options=("red", "blue")), "green", "blue"),
        (RemoteQuestion("q", prompt="Why?"), 3, "because"),
        (RemoteQuestion("q", prompt="How much?", schema={"type": "integer"}), "much", 3),
    ],
    ids=["choice", "text", "form"],
)
async def test_a_remote_run_can_ask_for_a_value(asked: RemoteQuestion, wrong: Any, right: Any) -> None:
    async with ticket_and_desk() as (other, near):
        other.asks = [asked]
        desk = await near.world.get_agent(TicketDesk, "d")
        giving = asyncio.create_task(desk.give())
        await until(lambda: "stream ticket-1 []" in other.log)
        await open_question(desk)
        with pytest.raises(InvalidArguments):
            await desk.reply(wrong)
        with pytest.raises(InvalidArguments, match="asks for a value"):
            await desk.approve()
        assert not other.answers

        assert await desk.reply(right)

        assert (await giving).output == right
        assert (other.answers[0].value, other.answers[0].approved) == (right, True)
        assert await desk.asked() == []


@pytest.mark.promise("A-209")
async def test_the_approvers_of_the_class_answer_what_a_remote_run_asks() -> None:
    def user(request: Any) -> User:
        name = request.headers["authorization"].removeprefix("Bearer ")
        return User(name, {"roles": [name]})

    async with ticket_and_desk(authenticate=user) as (other, near):
        other.asks = [RemoteQuestion("q", prompt="Why?")]
        desk = await near.world.get_agent(TicketDesk, "d")
        giving = asyncio.create_task(desk.give())
        asked = await open_question(desk)
        path = [{"type": one.type, "name": one.name} for one in asked.path]
        body = json.dumps({"id": "q", "path": path, "output": "because", "digest": asked.digest}).encode()

        async def post(key: str) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            url = "/agents/ticket-desk/d/questions"
            return await near.site.http(url, method="POST", body=body, headers=headers)

        assert (await post("guest")).status == 403
        assert not other.answers
        assert (await post("clerk")).status == 200
        assert (await giving).output == "because"
