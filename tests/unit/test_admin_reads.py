"""What the admin API reads of one agent: exact, by pages, and without content for a token that has none."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask, pages, stream

from sapwood import Agent, App, ChatAgent, Retry, Turn, agent_tool, tool
from sapwood.admin.access import FULL, Access
from sapwood.admin.content import REDACTED, Content
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.records import SPANS_AT_ONCE
from sapwood.chat.store import message_reads
from sapwood.errors import InvalidArguments, Refused
from sapwood.runs.execution.executor import RunExecutor
from sapwood.testing import ScriptedModel, World, call, running, text
from sapwood.types import Address

SECRET = "hunter2-planted"


class AdminClerk(ChatAgent):
    """Looks something up."""

    model = ScriptedModel(text("It is in the drawer."), each=True)


class AdminDesk(ChatAgent[dict[str, Any] | None]):
    """Pays after an approval, and lets a clerk look something up."""

    initial_state = None
    migrations = ("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",)
    tools = (agent_tool(AdminClerk),)
    model = ScriptedModel(
        call("admin_clerk", id="c1", message=f"where is {SECRET}"),
        call("pay", id="k1", password=SECRET),
        text(f"Done, {SECRET}."),
        each=True,
    )

    @tool(requires_approval=True)
    async def pay(self, password: str) -> str:
        """Pay a bill."""
        return f"paid with {password}"

    async def fill(self) -> None:
        self.set_state({"note": SECRET, "api_key": "k", "deep": [{"password": "p"}]})
        self.sql("INSERT INTO notes (text) VALUES (?)", SECRET)
        self.start_fiber("name", self.ask_name)
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.file, SECRET)

    async def copy_spans(self, count: int) -> None:
        self._actor.database.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < ?)"
            " INSERT INTO sapwood_spans SELECT number + 1000 + n, parent, work, kind, name, step, attempt, incarnation,"
            " began_at, first_at, ended_at, status, facts FROM copies, (SELECT * FROM sapwood_spans LIMIT 1)",
            count,
        )

    async def store(self, name: str, text: str) -> None:
        await self.files.put(text.encode(), name=name, media_type="text/plain")

    async def fill_notes(self, number: int) -> None:
        self.sql(
            "INSERT INTO notes (id, text) SELECT value, 'n' FROM json_each(?)", str([*range(2, 2 * number + 1, 2)])
        )

    async def fill_later(self) -> None:
        retry = Retry(max_attempts=2, initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1))
        self.queues.default.with_retry(retry).add(self.log_in, "ann", SECRET)

    async def log_in(self, user: str, password: str) -> None:
        raise ValueError(user)

    async def ask_name(self) -> str:
        return await self.questions.ask(f"What is {SECRET}?", options=[SECRET, "x"])

    async def file(self, what: str) -> None:
        raise ValueError(what)


class AdminRefuser(Agent):
    """Has nothing."""


async def filled(world: World) -> tuple[AdminDesk, Turn[dict[str, Any] | None]]:
    """Return a desk, and its turn that waits for an approval, with a run of a clerk behind it."""
    desk = await world.get_agent(AdminDesk, "main")
    turn = await desk.send(f"Pay it with {SECRET}.")
    await desk.fill()
    await world.settled()
    return desk, turn


def app() -> App:
    return App(agents=[AdminDesk, AdminRefuser])


async def events(world: World, what: str, access: Access = FULL, **params: Any) -> list[tuple[str, Any]]:
    return [event async for event in stream(world, what, access, **params)]


async def test_a_session_says_what_its_token_may_do() -> None:
    async with running(app()) as world:
        told = await ask(world, "session", LOOK)

        assert (told["name"], told["scopes"], told["below"]) == ("ann", ["look"], None)
        assert told["roots"] == ["AdminDesk", "AdminRefuser"]


async def test_the_messages_of_a_chat_are_read_newest_first_by_pages() -> None:
    async with running(app()) as world:
        await filled(world)
        await world.restart()

        one_each = await pages(world, "transcript", address="AdminDesk:main", limit=1)
        (whole,) = await pages(world, "transcript", address="AdminDesk:main")

        assert [row["role"] for row in whole] == ["assistant", "user"]
        assert [page[0] for page in one_each] == whole
        assert SECRET in str(whole[1]["message"])


async def test_each_message_of_a_transcript_names_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app()) as world:
        desk, first = await filled(world)
        (question,) = [one for one in await desk.questions.list() if one.kind == "approval"]
        await desk.questions.approve(question)
        await desk.turns.wait(first.id)
        second = await desk.send("And again.")

        for recent in (1000, 1, 0):
            monkeypatch.setattr(message_reads, "RECENT", recent)
            (rows,) = await pages(world, "transcript", address="AdminDesk:main")

            told = [(row["role"], row["turn"]) for row in reversed(rows)]
            assert told == [
                ("user", first.id),
                ("assistant", first.id),
                ("user", second.id),
                ("assistant", second.id),
            ]


async def test_the_questions_of_all_trees_are_listed_by_pages() -> None:
    async with running(app()) as world:
        for name in ("b", "a", "c"):
            desk = await world.get_agent(AdminDesk, name)
            await desk.send("Pay.")
            await desk.fill()
        await world.settled()
        await world.restart()

        (whole,) = await pages(world, "questions")
        one_each = await pages(world, "questions", limit=1)

        assert [page[0] for page in one_each] == whole
        assert [row["address"] for row in whole] == [f"AdminDesk:{name}" for name in "aabbcc"]
        assert {row["kind"] for row in whole} == {"approval", "choice"}


async def test_an_approval_is_answered_once_and_only_as_it_was_shown() -> None:
    async with running(app()) as world:
        desk, turn = await filled(world)
        rows = (await ask(world, "questions", address="AdminDesk:main"))["rows"]
        (approval,) = [row for row in rows if row["kind"] == "approval"]
        about: dict[str, Any] = {"address": "AdminDesk:main", "id": approval["id"], "answer": "approve"}

        assert await ask(world, "answer", **about, digest="0" * 64) == {"accepted": False}
        with pytest.raises(InvalidArguments, match="tool call"):
            await ask(world, "answer", **{**about, "answer": "value"}, value="x")
        assert await ask(world, "answer", **about, digest=approval["digest"]) == {"accepted": True}
        assert await ask(world, "answer", **about) == {"accepted": False}
        await desk.turns.wait(turn.id)

        (last, *_), *_ = await pages(world, "transcript", address="AdminDesk:main", limit=1)
        assert "Done" in str(last["message"])


async def test_a_question_of_code_is_answered_with_a_value() -> None:
    async with running(app()) as world:
        await filled(world)
        rows = (await ask(world, "questions", address="AdminDesk:main"))["rows"]
        choice = next(row for row in rows if row["kind"] == "choice")

        answer: dict[str, Any] = {
            "address": "AdminDesk:main",
            "id": choice["id"],
            "answer": "value",
            "digest": choice["digest"],
        }
        with pytest.raises(InvalidArguments):
            await ask(world, "answer", **answer, value="neither")
        assert await ask(world, "answer", **answer, value="x") == {"accepted": True}


async def test_the_work_of_an_agent_is_listed_newest_first_and_its_spans_in_order() -> None:
    async with running(app()) as world:
        await filled(world)
        await world.restart()

        works = [row for page in await pages(world, "works", address="AdminDesk:main", limit=1) for row in page]
        turn = next(row for row in works if row["kind"] == "turn")
        told = await events(world, "spans", address="AdminDesk:main", work=turn["work"])
        below = await events(world, "spans", address="AdminDesk:main", below=True)

        assert [row["number"] for row in works] == sorted((row["number"] for row in works), reverse=True)
        (_, data), (_, end) = told
        assert [span["number"] for span in data["spans"]] == sorted(span["number"] for span in data["spans"])
        assert {"turn", "step", "run", "wait"} <= {span["kind"] for span in data["spans"]}
        assert {span["work"] for span in data["spans"]} == {turn["work"]}
        assert (end["agents"], end["more"], end["spans"]) == (1, False, len(data["spans"]))
        owners = [one["address"] for name, one in below if name == "spans"]
        assert (owners[0], owners[1].partition(":main/")[2].partition(":")[0]) == ("AdminDesk:main", "AdminClerk")
        assert below[-1][1]["agents"] == 2


async def test_the_work_of_an_agent_says_what_it_was_given() -> None:
    async with running(app()) as world:
        desk, turn = await filled(world)
        await desk.fill_later()
        await world.settled()
        (one,) = (await ask(world, "works", address="AdminDesk:main", work=f"run {turn.id}"))["rows"]
        clerk = (await ask(world, "agents", address="AdminDesk:main"))["rows"][0]["address"]
        (of_clerk,) = (await ask(world, "works", address=clerk))["rows"]
        works = (await ask(world, "works", address="AdminDesk:main"))["rows"]
        (hidden,) = (await ask(world, "works", LOOK, address="AdminDesk:main", work=f"run {turn.id}"))["rows"]

        assert one["input"] == f"Pay it with {SECRET}."
        assert of_clerk["input"] == f"where is {SECRET}"
        assert [row["input"] for row in works if row["name"] == "log_in"] == [f'user: "ann", password: "{REDACTED}"']
        assert hidden["input"] == {"hidden": "string", "length": len(one["input"])}


async def test_spans_are_selected_by_time_and_by_failure() -> None:
    async with running(app()) as world:
        await filled(world)
        about: dict[str, Any] = {"address": "AdminDesk:main"}

        assert (await events(world, "spans", **about, only_failed=True))[-1][1]["spans"] == 1
        assert (await events(world, "spans", **about, to=1.0))[-1][1]["spans"] == 0
        whole = (await events(world, "spans", **about))[0][1]["spans"]
        after = (await events(world, "spans", **about, after=whole[1]["number"]))[0][1]["spans"]
        assert after == whole[2:]


async def test_other_agents_have_their_turn_between_two_parts_of_a_long_timeline() -> None:
    async with running(app()) as world:
        desk, _ = await filled(world)
        await desk.copy_spans(1000)
        order: list[str] = []

        async def others() -> None:
            while "end" not in order:
                order.append("others")
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        async for name, data in stream(world, "spans", address="AdminDesk:main"):
            order.append(name)
            assert name == "end" or len(data["spans"]) <= SPANS_AT_ONCE
        await waiting

        assert order.count("spans") > 1000 // SPANS_AT_ONCE
        assert ("spans", "spans") not in pairwise(order)


class AdminDigger(Agent):
    """Executes runs by its own code, and has fibers beside them."""

    async def on_run(self, input: int) -> int:
        await self.step(f"dig {SECRET}", abs, input)
        self.start_fiber(f"rest {input}", self.rest)
        if input == 2:
            raise ValueError(SECRET)
        return (await self.run_agent(AdminPebble, "x")).order

    async def rest(self) -> None:
        pass

    async def dig(self) -> None:
        """Execute runs as another server would give them."""
        for number in range(4):
            await self._actor.of(RunExecutor).start(f"r{number}", str(number).encode())
            await self._actor.of(RunExecutor).result(f"r{number}")

    async def turn_the_clock(self) -> None:
        """Have records whose times are in another order than their numbers."""
        self._actor.database.execute("UPDATE sapwood_spans SET began_at = 1e9 - number")


class AdminPebble(Agent):
    async def on_run(self, input: str) -> str:
        return input


async def test_runs_of_plain_agents_are_listed_and_told_by_pages_between_other_work() -> None:
    digger = "AdminDigger:d"
    async with running(App(agents=[AdminDigger])) as world:
        await (await world.get_agent(AdminDigger, "d")).dig()
        await world.settled()
        await world.restart()

        (whole,) = await pages(world, "works", address=digger)
        one_each = await pages(world, "works", address=digger, limit=1)
        told = await events(world, "spans", address=digger)
        failed = await events(world, "spans", address=digger, only_failed=True)
        run = next(row for row in whole if row["status"] == "failed")
        one = await events(world, "spans", address=digger, work=run["work"])
        hidden = await events(world, "spans", LOOK, address=digger, work=run["work"])

        assert [page[0] for page in one_each] == whole
        assert sorted((row["kind"], row["name"]) for row in whole) == [
            *(("fiber", "on_run") for _ in range(4)),
            *(("fiber", f"rest {number}") for number in range(4)),
        ]
        assert [row["began_at"] for row in whole] == sorted((row["began_at"] for row in whole), reverse=True)
        spans = [span for name, data in told if name == "spans" for span in data["spans"]]
        assert len({span["number"] for span in spans}) == len(spans) == told[-1][1]["spans"]
        assert {span["work"] for name, data in failed if name == "spans" for span in data["spans"]} >= {run["work"]}
        assert [span["kind"] for span in one[0][1]["spans"]] == ["fiber", "function"]
        assert SECRET in str(one)
        assert hidden[0][1]["spans"][0]["facts"]["message"]["hidden"] == "string"
        parted = [span for span in spans if span["kind"] == "run"]
        assert len(parted) == 3
        assert {span["parent"] for span in parted} < {row["number"] for row in whole}
        looked = await events(world, "spans", LOOK, address=digger)
        shown = [span for name, data in looked if name == "spans" for span in data["spans"] if span["kind"] == "run"]
        assert [span["facts"]["child"] for span in shown] == [span["facts"]["child"] for span in parted]
        for after in (spans[1]["number"], spans[-1]["number"]):
            rest = await events(world, "spans", address=digger, after=after)
            found = [span["number"] for name, data in rest if name == "spans" for span in data["spans"]]
            assert sorted(found) == sorted(span["number"] for span in spans if span["number"] > after)
        with pytest.raises(InvalidArguments):
            await ask(world, "works", address=digger, after="x.1")

        await (await world.get_agent(AdminDigger, "d")).turn_the_clock()
        each = [row["number"] for page in await pages(world, "works", address=digger, limit=1) for row in page]
        assert sorted(each) == sorted(row["number"] for row in whole)


async def test_what_a_model_was_sent_is_read_by_turn_and_step() -> None:
    async with running(app()) as world:
        await filled(world)
        works = (await ask(world, "works", address="AdminDesk:main"))["rows"]
        turn = next(row for row in works if row["kind"] == "turn")["work"]

        told = await ask(world, "asked", address="AdminDesk:main", turn=turn, step=1)

        assert "requests" in told


async def test_the_tables_of_an_agent_are_described() -> None:
    async with running(app()) as world:
        await filled(world)
        await world.get_agent(AdminRefuser, "main")

        told = await ask(world, "schema", LOOK, address="AdminDesk:main")
        (notes,) = [table for table in told["tables"] if table["is_own"]]

        assert told["bytes"] > 0
        assert told["is_chat"]
        assert (notes["name"], notes["rows"]) == ("notes", 1)
        assert notes["columns"] == [
            {"name": "id", "type": "INTEGER", "not_null": False, "primary_key": 1},
            {"name": "text", "type": "TEXT", "not_null": True, "primary_key": 0},
        ]
        assert await ask(world, "schema", address="AdminRefuser:main") == {"bytes": 0, "tables": [], "is_chat": False}


async def test_what_a_run_streamed_is_read_by_pages() -> None:
    async with running(app()) as world:
        await filled(world)
        await world.restart()
        clerk = (await ask(world, "agents", address="AdminDesk:main"))["rows"][0]["address"]
        (run,) = (await ask(world, "works", address=clerk))["rows"]
        about: dict[str, Any] = {"address": clerk, "work": run["work"]}

        found = [row for page in await pages(world, "chunks", **about, limit=1) for row in page]
        told = await ask(world, "chunks", LOOK, **about)
        later = await ask(world, "chunks", **about, **{"from": run["ended_at"] + 1})

        chunks = [chunk for row in found for chunk in row["chunks"]]
        assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta") == "It is in the drawer."
        assert [row["number"] for row in found] == sorted({row["number"] for row in found})
        assert told["total"] == len(found)
        assert told["rows"][0]["chunks"] == {"hidden": "array", "length": len(found[0]["chunks"])}
        assert (later["rows"], later["total"]) == ([], 0)
        other = await ask(world, "chunks", address=clerk, work="run never")
        assert (other["rows"], other["next"]) == ([], None)


async def test_streamed_chunks_are_hidden_if_the_app_redacts_for_a_secret_may_be_in_two_of_them() -> None:
    async with running(App(agents=[AdminDesk], redact=lambda kind, text: text.replace(SECRET, "***"))) as world:
        await filled(world)
        clerk = (await ask(world, "agents", address="AdminDesk:main"))["rows"][0]["address"]
        (run,) = (await ask(world, "works", address=clerk))["rows"]
        rows = (await ask(world, "chunks", address=clerk, work=run["work"]))["rows"]
        assert [set(row["chunks"]) for row in rows] == [{"hidden", "length"}] * len(rows)
        assert rows


async def test_the_input_of_a_tool_is_not_streamed_before_it_can_be_masked() -> None:
    async with running(app()) as world:
        content = Content(world.node, is_shown=True)
        told = content.chunks([{"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"password": "hun'}])
        assert told == [{"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": ""}]


async def test_the_files_of_an_agent_are_listed_newest_first() -> None:
    async with running(app()) as world:
        desk, _ = await filled(world)
        await desk.store("a.txt", "first")
        await desk.store(SECRET, "second" * 100_000)
        await world.restart()

        newest, oldest = await pages(world, "files", address="AdminDesk:main", limit=1)
        told = await ask(world, "files", LOOK, address="AdminDesk:main")

        assert [one["name"] for one in (*newest, *oldest)] == [SECRET, "a.txt"]
        assert (newest[0]["size"], newest[0]["place"], oldest[0]["place"]) == (600_000, "folder", "database")
        assert oldest[0]["used_by"] == ["code"]
        assert (told["total"], told["bytes"], told["uploads"]) == (2, 600_005, 0)
        assert told["rows"][0]["name"] == {"hidden": "string", "length": len(SECRET)}
        assert (await ask(world, "connections", LOOK, address="AdminDesk:main"))["rows"] == []


async def test_the_rows_of_a_large_table_are_estimated() -> None:
    async with running(app()) as world:
        desk, _ = await filled(world)
        await desk.fill_notes(2000)

        told = await ask(world, "schema", LOOK, address="AdminDesk:main")

        rows = {table["name"]: table["rows"] for table in told["tables"] if table["is_own"]}
        assert rows == {"notes": 4000}


async def test_no_answer_has_a_secret_without_the_scope_content() -> None:
    async with running(app(), history=3600.0) as world:
        await filled(world)
        told: dict[str, Any] = {}
        child = (await ask(world, "agents", address="AdminDesk:main"))["rows"][0]["address"]
        clerk = {"address": child} | (await ask(world, "works", address=child))["rows"][0]
        for name, endpoint in ENDPOINTS.items():
            if endpoint.scope not in ("look", None) or name in ("watch", "methods"):
                continue
            fields = endpoint.params.__struct_fields__
            params = {"address": "AdminDesk:main"} if "address" in fields else {}
            params |= {"text": "A"} if "text" in fields else {}
            params |= {"other": child} if "other" in fields else {}
            if name == "chunks":
                params |= {"address": clerk["address"], "work": clerk["work"]}
            if endpoint.stream is not None:
                told[name] = await events(world, name, LOOK, **params, **({"below": True} if name == "spans" else {}))
            else:
                told[name] = await ask(world, name, LOOK, **params)

        assert {name for name, answer in told.items() if SECRET in str(answer)} == set()
        assert {"transcript", "questions", "state", "works", "spans", "runs", "schema", "agents"} <= set(told)
        assert told["state"] == {"state": {"hidden": "object", "length": 3}}


async def test_fields_that_are_named_like_secrets_are_never_shown() -> None:
    async with running(app()) as world:
        await filled(world)

        assert (await ask(world, "state", address="AdminDesk:main"))["state"] == {
            "note": SECRET,
            "api_key": REDACTED,
            "deep": [{"password": REDACTED}],
        }
        rows = (await ask(world, "questions", address="AdminDesk:main"))["rows"]
        assert [row["arguments"] for row in rows if row["kind"] == "approval"] == [{"password": REDACTED}]


async def test_what_the_app_redacts_is_redacted_for_every_token() -> None:
    def redact(kind: str, text: str) -> str:
        return text.replace(SECRET, "***")

    async with running(App(agents=[AdminDesk], redact=redact)) as world:
        await filled(world)
        told = [
            await ask(world, "state", address="AdminDesk:main"),
            await ask(world, "transcript", address="AdminDesk:main"),
            await ask(world, "questions", address="AdminDesk:main"),
            await ask(world, "works", address="AdminDesk:main"),
        ]

        assert "***" in str(told[0])
        assert SECRET not in str(told)


@pytest.mark.slow
async def test_a_diff_shows_tables_to_the_scope_sql_and_no_secret_of_a_state() -> None:
    async with running(App(agents=[AdminDesk])) as world:
        await world.get_agent(AdminDesk, "other")
        await ask(world, "sql", address="AdminDesk:other", sql="DELETE FROM notes", write=True)
        await (await world.get_agent(AdminDesk, "main")).fill()
        both: dict[str, Any] = {"address": "AdminDesk:main", "other": "AdminDesk:other"}

        def part(told: Any, kind: str) -> Any:
            (agent,) = told["agents_changed"]
            return next(one for one in agent["parts"] if one["kind"] == kind)

        told = await ask(world, "diff", **both)
        assert (told["a"], told["b"]) == ("AdminDesk:main", "AdminDesk:other")
        rows, state = part(told, "table"), part(told, "state")
        assert [(one["key"], one["a"], one["b"]) for one in rows["changes"]] == [("1", {"id": 1, "text": SECRET}, None)]
        values = {one["key"]: one["a"] for one in state["changes"]}
        assert values == {"/note": SECRET, "/api_key": REDACTED, "/deep/0/password": REDACTED}

        told = await ask(world, "diff", Access("ann", frozenset(["look", "content"])), **both)
        assert [one["a"] for one in part(told, "table")["changes"]] == [{"hidden": "object", "length": 2}]
        assert {one["key"] for one in part(told, "state")["changes"]} == values.keys()

        told = await ask(world, "diff", LOOK, **both)
        assert (part(told, "table")["only_a"], part(told, "state")["only_a"]) == (1, 3)
        assert SECRET not in str(told)
        assert "api_key" not in str(told)


async def test_a_token_of_one_agent_compares_no_other() -> None:
    async with running(App(agents=[AdminDesk])) as world:
        await world.get_agent(AdminDesk, "main")
        may = Access("ann", frozenset(["look"]), Address.parse("AdminDesk:main"))
        for one, other in (("AdminDesk:main", "AdminDesk:other"), ("AdminDesk:other", "AdminDesk:main")):
            with pytest.raises(Refused, match="The token is limited to AdminDesk:main"):
                await ask(world, "diff", may, address=one, other=other)
