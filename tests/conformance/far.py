"""What the tests of remote runs share: two servers in one process, of which one has agents of the other do runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import PlainTextResponse
from tests.conformance.chats import Talking
from tests.conformance.drivers import running
from tests.conformance.runtimes import serve
from tests.conformance.served import Served, served
from tests.conformance.serving import serving
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, RemoteSubAgent, Run, agent, remote_agent_tool
from sapwood.address import kebab
from sapwood.auth import ApiKeys
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.executor import RunExecutor as ServedRuns
from sapwood.testing import ScriptedModel
from sapwood.testing import text as says
from sapwood.timings import DEFAULTS, Timings

KEY = "remote-key"
PROTOCOL = {"sapwood-protocol": "1", "authorization": f"Bearer {KEY}"}
NEAR = "/agents/near-desk/d"


@dataclass
class Far:
    """Seen by the test and by the agents of both servers."""

    log: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)
    key: str | None = KEY
    is_down: bool = False
    """Whether the far server answers nobody."""
    spoken: bytes | None = None
    """The version of the protocol that requests come with, if not their own."""
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """The methods and paths of the requests for runs that the far server has answered; paths without the session."""
    packet: int | None = None
    """How many bytes of a response are sent at once. `None` means all that there are."""
    is_followed: bool = False
    """Whether the near server knows that a run has begun, and asked what happens in it."""

    async def seen(self, entry: str) -> None:
        await until(lambda: entry in self.log)

    async def followed(self) -> None:
        await until(lambda: self.is_followed)


class FarDigger(Agent):
    """Does what its input says, on another server."""

    expose_runs = True
    deps: Far

    async def on_run(self, input: Any) -> Any:
        self.deps.log.append(f"begun {input}")
        if input == "fail":
            raise ValueError("it went wrong")
        if input == "wait":
            try:
                await self.deps.go.wait()
            except asyncio.CancelledError:
                self.deps.log.append("cut")
                raise
        return {"did": input}


class FarTeller(Agent):
    """Tells something in words, and waits in the middle."""

    expose_runs = True
    deps: Far

    async def on_run(self, input: str) -> AsyncIterator[str]:
        self.deps.log.append("told")
        self.report_progress(milestone="begun")
        yield "one "
        yield "two "
        self.report_progress(0.5, "half")
        await self.deps.go.wait()
        self.report_progress(milestone="woken")
        yield "three"


class FarCounter(Agent):
    """Counts; begun again, it goes on where it was."""

    expose_runs = True
    migrations = ("CREATE TABLE said (n INTEGER PRIMARY KEY) STRICT",)

    async def on_run(self, input: int) -> AsyncIterator[dict[str, Any]]:
        for n in range(self.sql("SELECT count(*) FROM said").scalar(int), input):
            self.sql("INSERT INTO said VALUES (?)", n)
            yield {"type": "data-count", "data": n}
            await asyncio.sleep(0.001)


class FarThinker(ChatAgent):
    """Thinks, on another server."""

    expose_runs = True
    model = ScriptedModel(says("far away"), each=True)


class FarPrivate(Agent):
    """Is not for other servers."""

    async def on_run(self, input: Any) -> Any:
        return input


FARS = (FarDigger, FarTeller, FarCounter, FarThinker, FarPrivate)


@dataclass
class Both:
    """Two servers, of which one has agents of the other do runs."""

    near: Served
    far: Served
    cls: type[Any]
    bench: Far

    async def desk(self) -> Any:
        return await self.near.world.get_agent(self.cls, "d")

    async def cut_off(self) -> None:
        """Have the far server be away."""
        self.bench.is_down = True
        await self.far.world.crash()

    async def ask(self, run: Run, path: str = "", **more: Any) -> Any:
        """Ask the far server for a run as the near one does."""
        cls = run.remote["url"].rpartition("/")[2]
        headers = PROTOCOL | more.pop("headers", {})
        return await self.far.site.http(f"/agents/{cls}/{run.remote['session']}/run{path}", headers=headers, **more)


def at(url: str, cls: type[Any]) -> type[Any]:
    """Make the class by which the near server knows one of the far server."""

    class At(RemoteSubAgent):
        deps: Far

        async def token(self) -> str | None:
            return self.deps.key

    At.url = f"{url}/agents/{kebab(cls.__name__)}"
    return agent(type=f"At{cls.__name__}")(At)


def desk(url: str, model: Any, fars: Sequence[type[Any]]) -> type[Any]:
    """Make the agents of the near server."""
    known = {cls.__name__: at(url, cls) for cls in fars}
    theirs = remote_agent_tool(f"{url}/agents/far-teller", description="Tells.", token=lambda deps: deps.key)

    class NearDesk(Talking):
        tools = (theirs,)

        async def give(self, who: str, input: Any, run_id: str | None = None, timeout: float | None = None) -> Run:
            return await self.run_agent(known[who], input, run_id=run_id, timeout=timeout)

        async def give_all(self, who: str, inputs: list[Any]) -> list[Run]:
            return await self.runs.map(known[who], inputs)

        async def one(self, id: str) -> Run | None:
            return self.runs.get(id)

        async def stop(self, id: str) -> bool:
            return self.runs.cancel(id, "enough")

        async def is_away(self, id: str) -> bool:
            followed = self._actor.of(Outcomes).followed.get(id)
            child = None if followed is None else followed.child
            return child is not None and bool(child.of(ServedRuns).away)

        async def secret(self) -> bytes:
            ((secret,),) = self._actor.database.execute("SELECT secret FROM sapwood_remote_secret")
            return secret

        async def last_heard(self, id: str) -> float:
            """Return when something was last heard of a run, in this process; 0 if nothing was."""
            followed = self._actor.of(Outcomes).followed.get(id)
            child = None if followed is None else followed.child
            return 0.0 if child is None else child.of(ServedRuns).last_heard.get(id, 0.0)

        async def clear_them(self) -> int:
            return await self.runs.clear()

    NearDesk.model = model
    return NearDesk


def in_packets(send: Any, size: int) -> Any:
    """Return what sends response bodies in packets of this many bytes."""

    async def send_part(message: Any) -> None:
        body = message.get("body", b"")
        if message["type"] == "http.response.body" and len(body) > size:
            for at in range(0, len(body), size):
                await send({**message, "body": body[at : at + size], "more_body": True})
            message = {**message, "body": b""}
        await send(message)

    return send_part


@asynccontextmanager
async def far_away(app: App, bench: Far, **settings: Any) -> AsyncGenerator[Served, None]:
    """Serve the far server, as the bench says."""
    async with running(app, slow_slices="allow", **settings) as world:

        async def current(scope: Any, receive: Any, send: Any) -> None:
            if bench.is_down:
                await PlainTextResponse("down", 503)(scope, receive, send)
                return
            if scope["type"] == "http":
                bench.requests.append((scope["method"], scope["path"][scope["path"].rfind("/run") :]))
            bench.is_followed = bench.is_followed or scope.get("path", "").endswith("/stream")
            if bench.packet is not None:
                send = in_packets(send, bench.packet)
            if bench.spoken is not None:
                headers = [one for one in scope["headers"] if one[0] != b"sapwood-protocol"]
                scope = {**scope, "headers": [*headers, (b"sapwood-protocol", bench.spoken)]}
            await serve(world, scope, receive, send)

        async with serving(current, world) as site:
            yield Served(world, site)


@asynccontextmanager
async def both(
    model: Any = None,
    *,
    level: str = "process",
    far: Sequence[type[Any]] = (),
    far_timings: Timings = DEFAULTS,
    **settings: Any,
) -> AsyncGenerator[Both, None]:
    """Run two servers; the far one lets in who has the key."""
    bench, keys = Far(), ApiKeys({"near": ApiKeys.hash_of(KEY)})
    app = App(agents=[*FARS, *far], deps=bench, authenticate=keys)
    async with asyncio.timeout(patience()), far_away(app, bench, durability=level, timings=far_timings) as there:
        cls = desk(f"http://127.0.0.1:{there.site.port}", model or ScriptedModel(), [*FARS, *far])
        async with served(App(agents=[cls], deps=bench), durability=level, **settings) as near:
            yield Both(near, there, cls, bench)
