"""What the tests of runs share: agents that give runs and do them, and what has to be true of every run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tests.conformance.chats import Talking, said
from tests.conformance.served import Client, Served, served, type_of
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Run, agent_tool, expose

EVENT = "agent-tool-event"
BOSS = "/agents/boss/b"
CALLER = "/agents/caller/c"
ENDS = ("finished", "error", "aborted", "interrupted")


@dataclass
class Bench:
    """Seen by the test and by its agents alike."""

    log: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def seen(self, entry: str, times: int = 1) -> None:
        """Return when an agent has written this entry, so many times."""
        async with asyncio.timeout(patience()):
            while self.log.count(entry) < times:  # noqa: ASYNC110 - agents write to it, and tell nobody
                await asyncio.sleep(0.001)


class Digger(Agent):
    """Does runs by a method: what its input says."""

    deps: Bench

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


class Giving:
    """What agents have that give runs to `worker`, and note what their hooks are told."""

    worker: type[Agent[Any]]
    migrations = (
        *cast("tuple[str, ...]", Talking.migrations),
        "CREATE TABLE hooks (hook TEXT NOT NULL, run TEXT NOT NULL, status TEXT NOT NULL) STRICT",
    )

    async def give(self: Any, input: Any = None, run_id: str | None = None, timeout: float | None = None) -> Run:
        return await self.run_agent(self.worker, input, run_id=run_id, timeout=timeout)

    async def give_all(self: Any, inputs: list[Any]) -> list[Run]:
        return await asyncio.gather(
            *(self.run_agent(self.worker, one, run_id=f"r{at}", order=at) for at, one in enumerate(inputs))
        )

    async def all_runs(self: Any, status: str | None = None) -> list[Run]:
        return self.runs.list(status)

    async def one(self: Any, id: str) -> Run | None:
        return self.runs.get(id)

    async def stop(self: Any, id: str, reason: str = "cancelled") -> bool:
        return self.runs.cancel(id, reason)

    async def clear_them(self: Any, status: str | None = None) -> int:
        return await self.runs.clear(status=status)

    async def child_names(self: Any) -> list[str]:
        return [child.name for child in self.children.list()]

    async def tables(self: Any) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]

    async def abort(self: Any, name: str, reason: str) -> None:
        self.children.abort(self.worker, name, reason)

    async def delete(self: Any, name: str) -> None:
        await self.children.delete(self.worker, name)

    @expose
    async def wake(self) -> str:
        return "awake"

    async def on_run_start(self: Any, run: Run) -> None:
        self.sql("INSERT INTO hooks VALUES ('start', ?, ?)", run.id, run.status)

    async def on_run_finish(self: Any, run: Run) -> None:
        self.sql("INSERT INTO hooks VALUES ('finish', ?, ?)", run.id, run.status)

    async def hooks(self: Any) -> list[tuple[str, str, str]]:
        """Return the calls of the hooks so far, once those that are queued were made."""
        while any(call.queue.startswith("hook run ") for call in self.queues.list()):  # noqa: ASYNC110 - its own queue
            await asyncio.sleep(0.01)
        rows = self.sql("SELECT hook, run, status FROM hooks ORDER BY rowid")
        return [(str(row["hook"]), str(row["run"]), str(row["status"])) for row in rows]


class _Boss(Giving, Agent): ...


class _Caller(Giving, Talking): ...


def boss(worker: type = Digger, *, base: type = _Boss, **settings: Any) -> Any:
    """Make a class of agents whose code gives runs."""
    return type("Boss", (base,), {"worker": worker, **settings})


def helper(model: Any, name: str = "Helper", *, base: type = ChatAgent, **settings: Any) -> Any:
    """Make a class of agents that talk to this model, to be used by others."""
    return type(name, (base,), {"model": model, "__doc__": "Helps.", **settings})


def caller(model: Any, *helpers: Any, base: type = _Caller, **settings: Any) -> Any:
    """Make a class of agents whose model uses these."""
    tools = [one if not isinstance(one, type) else agent_tool(one) for one in helpers]
    worker = next((one for one in helpers if isinstance(one, type)), Digger)
    return type("Caller", (base,), {"model": model, "tools": tools, "worker": worker, **settings})


@asynccontextmanager
async def working(cls: type, **settings: Any) -> AsyncGenerator[tuple[Served, Any, Any], None]:
    """Serve such a class; yield what serves it, the agent, and the bench of its workers."""
    bench = settings.pop("bench", None) or Bench()
    async with asyncio.timeout(patience()), served(App(agents=[cls], deps=bench), **settings) as one:
        yield one, await again(one, cls), bench


async def again(one: Served, cls: type) -> Any:
    """Return the agent of the test, as it is now."""
    return await one.world.get_agent(cls, cls.__name__[0].lower())


async def status(agent: Any, id: str, *wanted: str) -> Run:
    """Wait until a run has one of these statuses; return it."""
    async with asyncio.timeout(patience()):
        while (run := await agent.one(id)) is None or run.status not in wanted:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
    return run


async def running(agent: Any, id: str) -> Run:
    return await status(agent, id, "running")


async def over(agent: Any, id: str) -> Run:
    """Wait until a run is over, for good; return it."""
    return await status(agent, id, "completed", "failed", "cancelled")


def frames(client: Client, run: str | None = None, *, replay: bool | None = None) -> list[dict[str, Any]]:
    """Return what a client was told of runs, or of one; only what was replayed, or only what was not, if asked."""
    return [
        frame
        for frame in client.of_type(EVENT)
        if run in (None, frame["event"]["runId"]) and replay in (None, frame.get("replay", False))
    ]


def kinds(client: Client, run: str | None = None) -> list[str]:
    """Return what kinds of frames a client got, chunks in a row as one."""
    found = [frame["event"]["kind"] for frame in frames(client, run)]
    return [kind for at, kind in enumerate(found) if at == 0 or kind != "chunk" or found[at - 1] != "chunk"]


def bodies(client: Client, run: str) -> list[dict[str, Any]]:
    """Return the chunks of a run that a client was told."""
    return [json.loads(frame["event"]["body"]) for frame in frames(client, run) if frame["event"]["kind"] == "chunk"]


def text(client: Client, run: str) -> str:
    return said(bodies(client, run))


async def told(client: Client, run: str, *wanted: str) -> dict[str, Any]:
    """Wait until a client was told that a run has started or ended so; return the frame."""
    return await client.until(
        lambda frame: type_of(frame) == EVENT and frame["event"]["runId"] == run and frame["event"]["kind"] in wanted
    )


async def told_end(client: Client, run: str) -> dict[str, Any]:
    return await told(client, run, *ENDS)


async def told_text(client: Client, run: str, wanted: str) -> None:
    """Wait until a client was told this text of a run, and perhaps more."""
    await client.until(lambda _: text(client, run).startswith(wanted))


def check_sequence(told: Sequence[dict[str, Any]]) -> None:
    """Check the frames of one run: it starts with 0, every number comes once and in order, and the end is last."""
    assert [frame["sequence"] for frame in told] == list(range(len(told)))
    kinds = [frame["event"]["kind"] for frame in told]
    assert kinds[0] == "started"
    assert set(kinds[1:-1]) <= {"chunk"}
    assert kinds[-1] in (*ENDS, "chunk", "started")


def without_replay(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return frames as they would have been live."""
    return [{key: value for key, value in frame.items() if key != "replay"} for frame in told]


async def joined_later(one: Served, path: str, live: Client, *runs: str) -> Client:
    """Have a client come later, and check that it is told of these runs exactly what another saw live."""
    late = await one.join(path)
    for run in runs:
        await told_end(late, run)
        assert without_replay(frames(late, run)) == frames(live, run)
        assert all(frame["replay"] for frame in frames(late, run))
    return late
