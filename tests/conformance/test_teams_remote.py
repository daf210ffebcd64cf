"""Runs that an agent of another server does: told, replayed, stopped and taken up again like any other."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.chats import check_history
from tests.conformance.errands import check_sequence, frames, joined_later, over, status, text, told_end, told_text
from tests.conformance.far import KEY, NEAR, Both, Far, FarDigger, FarThinker, at, both, desk
from tests.conformance.served import Client, served
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, RemoteSubAgent, Run, persistent_agent
from sapwood.admin.admin import Admin
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, World, call, running
from sapwood.testing import text as says
from sapwood.timings import DEFAULTS
from sapwood.wire.remote import EventStreamReader

SILENCE = 120.0


def said(client: Client, run: str) -> list[dict[str, Any]]:
    """Return the frames of a run that have numbers of their own."""
    return [frame for frame in frames(client, run) if "data-agent" not in frame["event"].get("body", "")]


@pytest.mark.promise("A-214")
async def test_a_run_of_another_server_is_like_any_other() -> None:
    async with both() as two:
        desk = await two.desk()
        done, failed = await desk.give("FarDigger", "dig", "r1"), await desk.give("FarDigger", "fail", "r2")

        assert (done.status, done.output, done.agent.type) == ("completed", {"did": "dig"}, "AtFarDigger")
        assert failed.status == "failed"
        assert failed.error.startswith("Internal error (reference ")  # of the other server's log
        assert await desk.give("FarDigger", "dig", "r1") == done
        assert two.bench.log == ["begun dig", "begun fail"]
        state = (await two.ask(done)).json()
        assert (state["status"], state["output"]) == ("completed", {"did": "dig"})


async def test_a_run_of_another_server_has_a_record_with_its_url_and_session() -> None:
    async with both() as two:
        desk = await two.desk()
        done = await desk.give("FarDigger", "dig", "r1")
        await desk.give("FarDigger", "fail", "r2")

        admin = Admin(two.near.world.node)
        (good,) = (await admin.explain("NearDesk:d/AtFarDigger:r1", "r1"))["spans"]
        (bad,) = (await admin.explain("NearDesk:d/AtFarDigger:r2"))["spans"]

        assert (good["kind"], good["status"], bad["status"]) == ("remote", "completed", "failed")
        assert good["facts"] == {"run": "r1", **done.remote}
        assert good["began_at"] <= good["ended_at"]


async def test_an_agent_that_talks_does_runs_for_others_too_and_what_it_uses_is_counted_on_both_sides() -> None:
    async with both() as two:
        desk = await two.desk()
        run = await desk.give("FarThinker", "think", "r1")

        assert (run.status, run.summary) == ("completed", "far away")
        assert run.usage
        assert await desk.spending.total() == run.usage
        far = await two.far.world.get_agent(FarThinker, run.remote["session"])
        assert await far.spending.total() == run.usage


async def test_runs_of_another_server_are_given_side_by_side() -> None:
    async with both() as two:
        runs = await (await two.desk()).give_all("FarDigger", list("abc"))

        assert [run.output for run in runs] == [{"did": one} for one in "abc"]
        assert len({run.remote["session"] for run in runs}) == 3


@pytest.mark.promise("A-207", "A-214")
async def test_what_happens_there_is_told_here_live_and_replayed_when_the_other_is_gone() -> None:
    model = ScriptedModel(call("far_teller", id="c1", message="go"), says("thanks"))
    async with both(model) as two:
        client = await two.near.join(NEAR)
        desk = await two.desk()
        sending = asyncio.create_task(desk.send("go"))
        await told_text(client, "agent-tool:c1", "one two ")
        await client.until(lambda _: any("half" in str(frame) for frame in frames(client, "agent-tool:c1")))
        assert (await desk.one("agent-tool:c1")).progress == {"fraction": 0.5, "message": "half"}
        two.bench.go.set()
        await told_end(client, "agent-tool:c1")
        await sending
        await two.far.world.app.__aexit__()

        told = [
            frame for frame in frames(client, "agent-tool:c1") if "data-agent" not in frame["event"].get("body", "")
        ]
        check_sequence(told)
        assert text(client, "agent-tool:c1") == "one two three"
        run = await desk.one("agent-tool:c1")
        assert [one["name"] for one in run.milestones] == ["begun", "woken"]
        assert run.remote["seq"] == 5
        assert run.agent.type == "RemoteFarTeller"
        late = await two.near.join(NEAR)
        await told_end(late, "agent-tool:c1")
        assert text(late, "agent-tool:c1") == "one two three"
        events = [event async for event in _until_over(desk)]
        assert [event.seq for event in events if event.kind == "chunk"] == [1, 2, 3, 4, 5]


async def _until_over(desk: Any) -> AsyncIterator[Any]:
    async for event in desk.subscribe("children"):
        yield event
        if event.run_id == "agent-tool:c1" and event.kind == "completed":
            return


@pytest.mark.promise("A-216")
async def test_a_talk_of_ours_is_completed_with_what_came_of_a_remote_run_after_a_crash() -> None:
    model = ScriptedModel(call("far_teller", id="c1", message="go"), says("thanks"))
    async with both(model) as two:
        client = await two.near.join(NEAR)
        sending = asyncio.create_task((await two.desk()).send("go"))
        await told_text(client, "agent-tool:c1", "one two ")
        await two.near.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        two.bench.go.set()

        desk = await two.desk()
        async with asyncio.timeout(patience()):
            while not await desk.ends():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)

        assert [status for _, status in await desk.ends()] == ["completed"]
        check_history(history := json.loads(await desk.seen_by_model()))
        assert [part["content"] for part in history[2]["parts"]] == ["one two three"]
        assert two.bench.log == ["told"]


@pytest.mark.promise("A-215", "A-216")
@pytest.mark.parametrize("who", ["near", "far", "both"])
async def test_a_crash_on_either_side_loses_nothing_and_repeats_nothing(who: str, level: str) -> None:
    async with both(level=level) as two:
        client = await two.near.join(NEAR)
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarTeller", "go", "r1"))
        await told_text(client, "r1", "one two ")
        for name in ("near", "far"):
            if who in (name, "both"):
                await getattr(two, name).world.crash()
        await asyncio.gather(giving, return_exceptions=True) if who != "far" else None
        two.bench.go.set()

        run = await over(await two.desk(), "r1")

        assert run.status == "completed"
        late = await two.near.join(NEAR)
        await told_end(late, "r1")
        check_sequence(said(late, "r1"))
        assert (await two.ask(run)).json()["seq"] == len(said(late, "r1")) - 2
        if who == "near":
            assert text(late, "r1") == "one two three"
            assert two.bench.log == ["told"]
        else:  # a method that streams begins again, and all it says is told
            assert two.bench.log == ["told", "told"]
        giving.cancel()


def ponderer(gate: asyncio.Event) -> type[Any]:
    """Make a class of far agents that talk, and wait in the middle of a word."""

    class FarPonderer(ChatAgent):
        """Ponders, on another server."""

        expose_runs = True
        model = ScriptedModel(says("it is there", gate=gate), says("it is there"))

    return FarPonderer


async def test_a_talk_that_a_crash_interrupts_there_goes_on_and_is_told_without_a_gap() -> None:
    gate = asyncio.Event()
    async with both(far=[ponderer(gate)]) as two:
        client = await two.near.join(NEAR)
        giving = asyncio.create_task((await two.desk()).give("FarPonderer", "ponder", "r1"))
        await told_text(client, "r1", "it")
        await two.far.world.crash()
        gate.set()

        run = await giving

        assert (run.status, run.output) == ("completed", "it is there")
        await told_end(client, "r1")
        check_sequence(frames(client, "r1"))
        await joined_later(two.near, NEAR, client, "r1")


async def test_a_talk_is_stopped_there_too_and_stays_so() -> None:
    async with both(far=[ponderer(asyncio.Event())]) as two:
        client = await two.near.join(NEAR)
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarPonderer", "ponder", "r1"))
        await told_text(client, "r1", "it")

        await desk.stop("r1")

        run = await giving
        assert (run.status, run.reason) == ("cancelled", "enough")
        await _remotely(two, run, "cancelled")
        await two.far.world.crash()
        assert (await two.ask(run)).json()["reason"] == "enough"


@pytest.mark.promise("A-213", "A-215")
@pytest.mark.slow
@pytest.mark.parametrize("who", ["near", "far"])
async def test_killed_at_any_commit_of_either_side_a_run_is_done_and_told_once(who: str) -> None:
    async with both() as two:
        two.bench.go.set()
        world, nth, passed = getattr(two, who).world, 0, True
        while passed:
            nth += 1
            id = f"r{nth}"
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            giving = asyncio.create_task((await two.desk()).give("FarTeller", "go", id))
            await _dead_or(world, giving)
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            if who == "near":
                await asyncio.gather(giving, return_exceptions=True)
                giving = asyncio.create_task((await two.desk()).give("FarTeller", "go", id))

            run = await giving

            assert run.ok
            late = await two.near.join(NEAR)
            await told_end(late, id)
            check_sequence(said(late, id))
            assert text(late, id).endswith("one two three")
            if who == "near":
                assert (text(late, id), two.bench.log.count("told")) == ("one two three", nth)
            await late.close()
        assert nth > 3


async def _dead_or(world: World, giving: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(patience()):
        while not giving.done() and not world.points.ended:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)


@pytest.mark.promise("B-38")
async def test_a_stop_reaches_the_other_server_and_what_it_does() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")

        assert await desk.stop("r1")

        run = await giving
        assert (run.status, run.reason) == ("cancelled", "enough")
        await two.bench.seen("cut")
        await _remotely(two, run, "cancelled")


async def test_a_run_whose_time_is_over_is_stopped_on_the_other_server_too() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1", timeout=10))
        await two.bench.seen("begun wait")

        await two.near.world.clock.advance(11)

        assert (await giving).reason == "timed-out"
        await two.bench.seen("cut")


async def test_a_run_that_is_forgotten_is_stopped_on_the_other_server() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")

        assert await desk.clear_them() == 1

        await two.bench.seen("cut")
        await asyncio.gather(giving, return_exceptions=True)


async def test_a_stop_that_the_other_server_could_not_hear_reaches_it_when_it_is_back() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")
        await two.cut_off()
        await desk.stop("r1")
        run = await giving
        await two.near.world.crash()

        two.bench.is_down = False

        await two.desk()
        await _remotely(two, run, "cancelled")


async def _is_away(desk: Any) -> None:
    """Wait until the near server knows that the far one cannot be reached."""
    async with asyncio.timeout(patience()):
        while not await desk.is_away("r1"):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


async def _remotely(two: Both, run: Run, wanted: str) -> None:
    async with asyncio.timeout(patience()):
        while (await two.ask(run)).json().get("status") != wanted:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)


async def test_a_stop_that_overtakes_the_start_keeps_it_from_ever_beginning() -> None:
    async with both() as two:
        run = await (await two.desk()).give("FarDigger", "dig", "r1")
        run.remote["session"] = "never-begun"
        stopped = await two.ask(run, "/cancel", method="POST", body=b'{"reason": "%s"}' % (b"x" * 10_000))
        started = await two.ask(run, method="POST", body=b'{"input": "late"}')

        assert (stopped.json()["status"], started.json()["status"]) == ("cancelled", "cancelled")
        assert started.json()["reason"] == "x" * 500
        assert "begun late" not in two.bench.log


@pytest.mark.promise("B-38")
@pytest.mark.parametrize(
    ("who", "key", "wanted"),
    [
        ("FarDigger", "wrong", "remote_unauthorized: http"),
        ("FarDigger", None, "responded with 401"),
        ("FarPrivate", KEY, "remote_refused: http"),
    ],
)
async def test_a_server_that_refuses_is_not_asked_again(who: str, key: str | None, wanted: str) -> None:
    async with both() as two:
        two.bench.key = key

        run = await (await two.desk()).give(who, "dig", "r1")

        assert (run.status, run.reason, run.retryable) == ("failed", None, False)
        assert wanted in (run.error or "")
        assert two.bench.log == []
        assert KEY not in str(run)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_token_is_returned_or_awaited(is_async: bool) -> None:
    async with both() as two:
        near = at(f"http://127.0.0.1:{two.far.site.port}", FarDigger)

        class PlainToken(near):
            def token(self) -> str | None:
                return self.deps.key

        class AsyncToken(near):
            async def token(self) -> str | None:
                await asyncio.sleep(0)
                return self.deps.key

        class TokenDesk(Agent):
            async def give(self) -> Run:
                return await self.run_agent(AsyncToken if is_async else PlainToken, "dig")

        async with running(App(agents=[TokenDesk], deps=two.bench)) as world:
            run = await (await world.get_agent(TokenDesk, "d")).give()

        assert (run.status, run.error) == ("completed", None)


@pytest.mark.promise("B-38")
async def test_another_version_of_the_protocol_is_refused_and_told_what_to_do() -> None:
    async with both() as two:
        done = await (await two.desk()).give("FarDigger", "dig", "r1")
        two.bench.spoken = b"0"
        old = await two.ask(done)

        run = await (await two.desk()).give("FarDigger", "dig", "r2")

        assert (old.status, old.json()["code"], old.headers["sapwood-protocol"]) == (426, "protocol_mismatch", "1")
        assert run.status == "failed"
        assert "protocol_mismatch: http" in (run.error or "")
        assert "Use the same release of sapwood on both sides." in (run.error or "")
        assert two.bench.log == ["begun dig"]


async def test_a_server_that_is_away_too_long_is_given_up_and_its_end_counts_all_the_same() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")
        await two.cut_off()
        await _is_away(desk)

        await two.near.world.clock.advance(SILENCE + 1)

        run = await giving
        assert (run.status, run.reason, run.still_running) == ("interrupted", "unreachable", True)
        assert f":{two.far.site.port}/agents/far-digger " in (run.error or "")
        two.bench.is_down = False
        two.bench.go.set()
        assert (await over(desk, "r1")).status == "completed"


async def test_a_run_that_timed_out_while_its_server_was_away_says_why() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1", timeout=10))
        await two.bench.seen("begun wait")
        await two.cut_off()
        await _is_away(desk)

        await two.near.world.clock.advance(11)

        run = await giving
        assert (run.status, run.reason) == ("failed", "timed-out")
        told = (
            f"The run exceeded its timeout: 10 seconds. {run.remote['url']} responded with 503: down. [error reference "
        )
        assert run.error.startswith(told)


async def test_a_server_that_is_not_there_at_all_is_named_when_a_run_times_out() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cls = desk(f"http://127.0.0.1:{free.getsockname()[1]}", ScriptedModel(), [FarDigger])
        async with running(App(agents=[cls], deps=Far())) as world:
            near: Any = await world.get_agent(cls, "d")
            giving = asyncio.create_task(near.give("FarDigger", "dig", "r1", timeout=10))
            await _is_away(near)

            await world.clock.advance(11)

            run = await giving
            assert run.reason == "timed-out"
            assert f"10 seconds. {run.remote['url']} cannot be reached: " in run.error


async def test_a_server_that_comes_back_in_time_was_never_away() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")
        await two.cut_off()
        await _is_away(desk)
        await two.near.world.clock.advance(SILENCE - 1)
        two.bench.is_down = False
        two.bench.go.set()

        assert (await giving).status == "completed"


async def test_a_server_that_has_lost_a_run_is_not_asked_to_do_it_again() -> None:
    async with both() as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r1"))
        await two.bench.seen("begun wait")
        await two.bench.followed()  # else it may have been told nothing, and asks that it begins
        two.bench.is_down = True
        await two.far.world.app.__aexit__()
        shutil.rmtree(two.far.world.data)
        two.far.world.data.mkdir()
        await two.far.world.start()
        two.bench.is_down = False

        run = await giving

        assert run.status == "failed"
        assert "remote_lost: http" in (run.error or "")
        assert two.bench.log.count("begun wait") == 1


async def test_a_stream_is_read_from_any_number_on() -> None:
    async with both() as two:
        two.bench.go.set()
        run = await (await two.desk()).give("FarTeller", "go", "r1")

        whole = (await two.ask(run, "/stream")).text
        rest = (await two.ask(run, "/stream?from_seq=4&milestones=2")).text
        again = (await two.ask(run, "/stream?milestones=2", headers={"last-event-id": "3"})).text
        beyond = await two.ask(run, "/stream?from_seq=7")

        assert [line for line in whole.split("\n") if line.startswith("id")] == [f"id: {n}" for n in range(1, 6)]
        assert whole.endswith(rest)
        assert rest == again
        assert rest.startswith("id: 4\nevent: chunk\n")
        assert (beyond.status, beyond.json()["code"]) == (404, "remote_lost")
        assert (await two.ask(run, "/stream?from_seq=x")).status == 400


@pytest.mark.promise("A-207", "A-213")
async def test_a_session_derives_from_its_caller_its_run_and_a_secret_of_the_tree() -> None:
    async with both() as two, both() as others:
        desk = await two.desk()
        mine = await desk.give("FarDigger", "dig", "agent-tool:c1")
        other = await desk.give("FarDigger", "dig", "agent-tool:c2")
        theirs = await (await others.desk()).give("FarDigger", "dig", "agent-tool:c1")

        secret = await desk.secret()
        digest = hmac.new(secret, b"root\n0\nagent-tool:c1", hashlib.sha256).hexdigest()
        assert mine.remote["session"] == f"NearDesk-d-remote-agent-tool-c1-{digest[:32]}"
        assert len({run.remote["session"][-32:] for run in (mine, other, theirs)}) == 3
        await two.near.world.crash()
        assert (await (await two.desk()).one("agent-tool:c1")).remote == mine.remote | {"seq": 0}


@pytest.mark.promise("A-213")
async def test_a_caller_that_has_lost_its_row_joins_the_run(tmp_path: Path) -> None:
    async with both() as two:
        desk = await two.desk()
        await desk.give("FarDigger", "dig", "r1")
        await two.near.world.app.backup(tmp_path)
        giving = asyncio.create_task(desk.give("FarDigger", "wait", "r2"))
        await two.bench.seen("begun wait")
        await two.near.world.app.restore(tmp_path)
        await asyncio.gather(giving, return_exceptions=True)
        desk = await two.desk()
        assert await desk.one("r2") is None
        two.bench.go.set()

        run = await desk.give("FarDigger", "wait", "r2")

        assert (run.status, run.output) == ("completed", {"did": "wait"})
        assert two.bench.log == ["begun dig", "begun wait"]


@pytest.mark.promise("A-213")
async def test_a_run_that_was_cleared_is_another_run_when_it_is_asked_for_again() -> None:
    async with both() as two:
        desk = await two.desk()
        first = await desk.give("FarDigger", "dig", "r1")
        await desk.clear_them()

        again = await desk.give("FarDigger", "dig", "r1")

        assert again.remote["session"] != first.remote["session"]
        assert two.bench.log == ["begun dig", "begun dig"]


@pytest.mark.promise("A-213")
async def test_an_agent_made_again_under_the_same_name_does_not_join_the_runs_of_the_old_one() -> None:
    async with both() as two:
        remote = at(f"http://127.0.0.1:{two.far.site.port}", FarDigger)

        class NearHelper(Agent):
            async def give(self) -> Run:
                return await self.run_agent(remote, "dig", run_id="r1")

        class NearBoss(Agent):
            async def give(self) -> Run:
                return await (await self.sub_agent(NearHelper, "h")).give()

            async def forget(self) -> None:
                await self.children.delete(NearHelper, "h")

        async with running(App(agents=[NearBoss], deps=two.bench)) as world:
            boss = await world.get_agent(NearBoss, "b")
            first = await boss.give()
            await boss.forget()
            second = await boss.give()

        assert first.remote["session"] != second.remote["session"]
        assert two.bench.log == ["begun dig", "begun dig"]


@pytest.mark.promise("A-215")
@pytest.mark.parametrize("is_over", [False, True])
async def test_after_a_crash_the_caller_asks_for_the_status_and_does_not_start_the_run_again(is_over: bool) -> None:
    async with both() as two:
        giving = asyncio.create_task((await two.desk()).give("FarDigger", "wait", "r1"))
        await two.bench.followed()
        two.bench.is_down = True
        await two.near.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        before = list(two.bench.requests)
        if is_over:
            two.bench.go.set()
            await two.far.world.settled()
        two.bench.is_followed = False
        two.bench.is_down = False
        await two.desk()
        if not is_over:
            await two.bench.followed()
            two.bench.go.set()

        run = await over(await two.desk(), "r1")

        assert run.status == "completed"
        assert before.count(("POST", "/run")) == 1
        after = two.bench.requests[len(before) :]
        assert after[0] == ("GET", "/run")
        assert ("POST", "/run") not in after


class FarPolyglot(Agent):
    """Says what is easily cut apart: characters of several bytes, and line ends."""

    expose_runs = True

    async def on_run(self, input: str) -> AsyncIterator[str]:
        self.report_progress(milestone="schön")
        for word in ("Größe ", "漢字 ", "🌳\r\n", "ende"):
            yield word


@pytest.mark.promise("A-126")
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_events_are_the_same_wherever_their_bytes_are_cut(line_end: bytes) -> None:
    async with both(far=[FarPolyglot]) as two:
        run = await (await two.desk()).give("FarPolyglot", "go", "r1")
        data = (await two.ask(run, "/stream")).text.encode().replace(b"\n", line_end)

    whole = EventStreamReader().read(data)
    assert [event.kind for event in whole] == ["milestone", *["chunk"] * 6, "end"]
    assert "漢字".encode() in data
    for at_byte in range(len(data) + 1):
        reader = EventStreamReader()
        assert reader.read(data[:at_byte]) + reader.read(data[at_byte:]) == whole, at_byte
    reader = EventStreamReader()
    assert [event for n in range(len(data)) for event in reader.read(data[n : n + 1])] == whole


@pytest.mark.promise("A-126")
@pytest.mark.parametrize("size", [1, 7])
async def test_a_run_is_told_whole_whatever_packets_the_network_makes_of_it(size: int) -> None:
    async with both(far=[FarPolyglot]) as two:
        two.bench.packet = size
        client = await two.near.join(NEAR)

        run = await (await two.desk()).give("FarPolyglot", "go", "r1")

        assert (run.status, run.output) == ("completed", "Größe 漢字 🌳\r\nende")
        await told_end(client, "r1")
        check_sequence(said(client, "r1"))
        assert text(client, "r1") == "Größe 漢字 🌳\r\nende"


async def test_a_model_does_not_keep_agents_of_other_servers() -> None:
    with pytest.raises(UsageError, match="a remote agent cannot be persistent"):
        persistent_agent(at("http://far.example", FarDigger), description="Digs.")


async def test_where_an_agent_is_has_to_be_said() -> None:
    class Nowhere(RemoteSubAgent):
        """Is nowhere."""

    class NearLost(Agent):
        async def give(self) -> Run:
            return await self.run_agent(Nowhere, "go")

    async with served(App(agents=[NearLost])) as one:
        with pytest.raises(UsageError, match=r"Nowhere\.url must be the URL"):
            await (await one.world.get_agent(NearLost, "l")).give()


class FarMiddle(Agent):
    """Says nothing, and waits for a run below that speaks."""

    expose_runs = True

    async def on_run(self, input: Any) -> Any:
        return (await self.run_agent(FarSpeaker, input)).output


class FarSpeaker(Agent):
    deps: Far

    async def on_run(self, input: int) -> AsyncIterator[str]:
        for n in range(input):
            self.deps.log.append(f"about to say {n}")
            await self.deps.go.wait()
            self.deps.go.clear()
            yield str(n)
        self.deps.log.append("all said")
        await self.deps.go.wait()


@pytest.mark.promise("B-14")
async def test_after_a_restart_a_remote_run_is_not_silent_while_one_below_it_speaks_there() -> None:
    often = replace(DEFAULTS, event_keepalive_interval=1.0)  # it is waited for four times
    async with both(far=[FarMiddle], far_timings=often) as two:
        # The far one first: what it says now of its silence counts by the clock of the near one.
        clocks = [two.far.world.clock, two.near.world.clock]
        giving = asyncio.create_task((await two.desk()).give("FarMiddle", 4, "r1"))
        await two.bench.seen("about to say 0")
        await two.bench.followed()
        await two.near.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        desk = await two.desk()

        for n in range(4):
            for clock in clocks:
                await clock.advance(SILENCE - 20)
            assert (await desk.one("r1")).status in ("queued", "running")
            two.bench.go.set()
            await two.bench.seen(f"about to say {n + 1}" if n < 3 else "all said")
            await _heard(desk, two.near.world.clock.now())
        for clock in clocks:
            await clock.advance(SILENCE + 10)

        run = await status(desk, "r1", "interrupted")
        assert run.reason == "no-progress"
        two.bench.go.set()
        assert (await over(desk, "r1")).output == "0123"


async def _heard(desk: Any, at: float) -> None:
    """Wait until the near server knows that something happened at this time in a run of the far one."""
    async with asyncio.timeout(patience()):
        while await desk.last_heard("r1") < at - 1:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.05)
