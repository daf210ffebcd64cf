"""What a turn costs in SQL statements, and that it costs the same in a long conversation."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood import App, ChatAgent, Retention
from sapwood.storage.database import Database
from sapwood.testing import ScriptedModel, World, running, text

MOST = 45
"""Statements of a turn with one step, without BEGIN and COMMIT, those of the alarm index included."""
RECORDS = 9
"""Statements of the records of such a turn: spans, and what the model was sent."""
LONG = 10


class CountedChat(ChatAgent[str]):
    """Answers at once."""

    model = ScriptedModel(text("one two three"), each=True)
    record_retention = None


class RecordedChat(CountedChat):
    """Answers at once, and keeps records."""

    record_retention = Retention(count=1000)


Statement = tuple[Database, str]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[Statement]:
    found: list[Statement] = []
    execute = Database.execute

    def noted(self: Database, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        found.append((self, sql))
        return execute(self, sql, *arguments)

    monkeypatch.setattr(Database, "execute", noted)
    return found


async def a_turn(world: World, found: list[Statement], cls: type[CountedChat] = CountedChat) -> list[Statement]:
    """Return the statements of one turn, up to the moment when nothing is left to do."""
    chat = await world.get_agent(cls, "c")
    await world.settled()
    found.clear()
    turn = await chat.send("hello")
    assert turn.status == "completed"
    await world.settled()
    return list(found)


async def test_a_turn_of_one_step_executes_few_statements(statements: list[Statement]) -> None:
    async with running(App(agents=[CountedChat])) as world:
        await a_turn(world, statements)  # makes the tables

        found = await a_turn(world, statements)

        assert len(found) <= MOST, "\n".join(sql for _, sql in found)


async def test_records_of_a_turn_add_few_statements(statements: list[Statement]) -> None:
    async with running(App(agents=[CountedChat, RecordedChat])) as world:
        without, recorded = list[Statement](), list[Statement]()
        for _ in range(3):  # the first makes the tables
            without = await a_turn(world, statements)
            recorded = await a_turn(world, statements, RecordedChat)

        assert len(recorded) <= len(without) + RECORDS, "\n".join(sql for _, sql in recorded)


async def test_no_statement_of_a_turn_reads_the_whole_conversation(statements: list[Statement]) -> None:
    async with running(App(agents=[RecordedChat])) as world:
        await a_turn(world, statements, RecordedChat)
        for _ in range(LONG):
            await a_turn(world, statements, RecordedChat)

        found = await a_turn(world, statements, RecordedChat)

        assert len(found) <= MOST + RECORDS
        for database, sql in dict.fromkeys(found):
            if not sql.startswith("INSERT"):
                plan = database.execute(f"EXPLAIN QUERY PLAN {sql}", *[None] * sql.count("?"))
                scans = [row[3] for row in plan if row[3].startswith("SCAN sapwood_") and "alarms" not in row[3]]
                assert scans == [], sql
