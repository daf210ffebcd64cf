"""The table of turns: who is next, what became of each, and which tool calls they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.helpers import a_database

from sapwood.chat.store.size_limits import KEPT, LARGEST, fitted, over
from sapwood.chat.store.turns import TurnsTable
from sapwood.kernel.trees.usage import Spent
from sapwood.testing import FakeClock


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[TurnsTable]:
    database = a_database(tmp_path / "chat.db")
    yield TurnsTable(database, FakeClock())
    database.rollback()
    database.close()


def add(turns: TurnsTable, id: str) -> int:
    return turns.add(id, f"m-{id}", [{"id": f"u-{id}"}], asked=[f"u-{id}"], body="{}", client_tools="[]").number


def test_an_agent_that_never_talked_has_no_turns_and_no_tables(turns: TurnsTable) -> None:
    assert not turns.exist
    assert (turns.running(), turns.waiting(), turns.queued(), turns.last()) == (None, None, [], None)
    assert turns.get("x") is None
    assert turns.calls(1) == []
    assert turns.call("x") is None
    turns.forget_ended()


def test_turns_are_queued_in_the_order_they_came(turns: TurnsTable) -> None:
    first, second = add(turns, "b"), add(turns, "a")

    assert [row.id for row in turns.queued()] == ["b", "a"]

    turns.set(first, status="running")
    assert turns.running() == turns.of(first)
    assert [row.number for row in turns.queued()] == [second]


def test_the_stream_of_a_turn_has_another_name_each_time_it_goes_on(turns: TurnsTable) -> None:
    number = add(turns, "r")
    names: list[str] = []

    for continues in range(3):
        turns.set(number, continues=continues)
        row = turns.of(number)
        assert row is not None
        names.append(row.stream)

    assert names == ["r", "r-1", "r-2"]


def test_a_turn_that_was_skipped_is_not_the_last(turns: TurnsTable) -> None:
    first, second = add(turns, "a"), add(turns, "b")
    turns.end(first, "failed", "broken")
    turns.end(second, "skipped")

    last = turns.last()

    assert last is not None
    assert (last.id, last.error, last.is_open) == ("a", "broken", False)


def test_what_models_used_is_added_up_and_a_cost_nobody_knows_stays_unknown(turns: TurnsTable) -> None:
    number = add(turns, "a")
    priced, unpriced = Spent(1, 10, 1, 250_000_000), Spent(1, 10, 1, unpriced=1)
    for model, spent in (("m", priced), ("m", priced), ("n", priced), ("n", unpriced), ("n", priced)):
        turns.count(number, model, spent)

    row = turns.of(number)

    assert row is not None
    used = {model: spent.told() for model, spent in row.spent().items()}
    assert used["m"] == {"requests": 2, "input_tokens": 20, "output_tokens": 2, "cost": 0.5}
    assert used["n"] == {"requests": 3, "input_tokens": 30, "output_tokens": 3, "cost": None}


def test_a_call_that_somebody_was_asked_about_is_open_until_they_answer(turns: TurnsTable) -> None:
    number = add(turns, "a")
    turns.ask_about("c", number, "pay", "{}", "approval")
    asked = turns.call("c")
    assert asked is not None
    assert asked.is_open

    turns.answer_call("c", "denied", "no", go_on=True)

    answered = turns.call("c")
    assert answered is not None
    assert not answered.is_open
    assert (answered.answer, answered.auto_continue) == ('["denied","no"]', 1)


def test_a_call_keeps_its_answer_when_it_is_asked_about_again(turns: TurnsTable) -> None:
    number = add(turns, "a")
    turns.ask_about("c", number, "beep", "{}", "client soon")
    turns.answer_call("c", "done", 1, go_on=True)

    turns.ask_about("c", number, "beep", "{}", "client")

    call = turns.call("c")
    assert call is not None
    assert (call.answerer, call.answer) == ("client", '["done",1]')


def test_calls_are_forgotten_but_for_those_that_are_still_asked_about(turns: TurnsTable) -> None:
    number = add(turns, "a")
    turns.begin_call("a", number, "x", "{}")
    turns.end_call("a", "done", "1", None)
    turns.ask_about("b", number, "beep", "{}", "client")

    turns.forget_calls(number, but=["b"])

    assert [call.id for call in turns.calls(number)] == ["b"]
    turns.end(number, "completed")
    assert turns.calls(number) == []


def test_only_turns_that_are_over_are_forgotten(turns: TurnsTable) -> None:
    numbers = {status: add(turns, status) for status in ("queued", "running", "waiting", "completed", "failed")}
    for status, number in numbers.items():
        turns.set(number, status=status)

    turns.forget_ended()

    assert [status for status, number in numbers.items() if turns.of(number)] == ["queued", "running", "waiting"]


def test_a_message_that_fits_stays_as_it_is() -> None:
    message = {"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "x" * 1_000}]}

    assert fitted(message) is message


def test_what_tools_returned_is_shortened_before_what_was_said() -> None:
    parts = [
        {"type": "text", "text": "t" * 900_000},
        {"type": "tool-a", "toolCallId": "a", "state": "output-available", "output": {"rows": ["o" * 1_500_000]}},
        {"type": "tool-b", "toolCallId": "b", "state": "output-available", "output": "small"},
    ]

    text, big, small = fitted({"id": "m", "role": "assistant", "parts": parts})["parts"]

    assert len(text["text"]) == 900_000
    assert len(big["output"]) < KEPT + 100
    assert "1500013 bytes" in big["output"]
    assert small["output"] == "small"
    assert len(parts[1]["output"]["rows"][0]) == 1_500_000  # type: ignore[index]


def test_what_was_said_is_shortened_if_nothing_else_helps() -> None:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "t" * (LARGEST + 1)}]}

    (part,) = fitted(message)["parts"]

    assert len(part["text"]) < KEPT + 100


@pytest.mark.parametrize(
    ("roles", "most", "gone"),
    [("uaua", 4, 0), ("uauaua", 4, 2), ("uauaua", 3, 4), ("uauaua", 1, 4), ("uauuua", 3, 3), ("aa", 1, 0), ("", 0, 0)],
)
def test_the_oldest_messages_go_and_what_stays_begins_with_a_users(roles: str, most: int, gone: int) -> None:
    messages = [(f"m{at}", "user" if role == "u" else "assistant") for at, role in enumerate(roles)]

    assert over(messages, most) == [f"m{at}" for at in range(gone)]


def a_change(turns: TurnsTable, what: str, which: int, value: int) -> None:
    """Make one of the changes that a conversation makes."""
    number, call = which + 1, f"c{value}"
    if what == "add":
        if turns.get(f"t{value}") is None:
            add(turns, f"t{value}")
    elif what == "begin" and turns.of(number) is not None:
        turns.begin_call(call, number, "tool", "{}")
    elif what == "ask" and turns.of(number) is not None:
        turns.ask_about(call, number, "tool", "{}", "approval")
    elif what == "answer":
        turns.answer_call(call, "done", value, go_on=True)
    elif what == "return":
        turns.end_call(call, "done", str(value), None)
    elif what == "forget calls":
        turns.forget_calls(number, but=[call])
    elif what == "count":
        turns.count(number, "model", Spent(requests=value))
    elif what == "end":
        turns.end(number, ("completed", "failed", "cancelled")[value % 3], reason=str(value))
    elif what == "forget ended":
        turns.forget_ended()
    elif what in ("queued", "running", "waiting"):
        turns.set(number, status=what, steps=value)


CHANGES = (
    *("add", "add", "begin", "ask", "answer", "return", "count", "end", "queued", "running", "waiting"),
    *("forget calls", "forget ended", "undone", "kept"),
)


@settings(max_examples=20, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3), st.integers(0, 4)), max_size=25))
def test_what_is_kept_in_memory_is_what_is_stored(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, int]]
) -> None:
    database = a_database(tmp_path_factory.mktemp("turns") / "chat.db")
    turns = TurnsTable(database, FakeClock())
    add(turns, "t0")
    for what, which, value in changes:
        if what in ("undone", "kept"):
            with suppress(RuntimeError), database.block():
                for one in ("add", "begin", "running", "end"):
                    a_change(turns, one, which, value)
                if what == "undone":
                    raise RuntimeError
        else:
            a_change(turns, what, which, value)

        assert seen(turns) == seen(TurnsTable(database, FakeClock()))
    database.rollback()
    database.close()


def seen(turns: TurnsTable) -> Any:
    numbers = range(1, 8)
    open_turns = [row.number for row in turns.open()]
    return (
        turns.all(),
        turns.open(),
        (turns.running(), turns.waiting(), turns.queued()),
        [turns.of(number) for number in numbers],
        [turns.get(f"t{n}") for n in range(5)],
        [turns.calls(number) for number in open_turns],
    )


def test_a_read_that_fails_leaves_nothing_in_memory_that_was_undone(tmp_path: Path) -> None:
    database = a_database(tmp_path / "chat.db")
    turns = TurnsTable(database, FakeClock())
    kept = add(turns, "kept")
    select, turns._select = turns._select, _fails
    with suppress(RuntimeError), database.block():
        add(turns, "undone")
        raise RuntimeError
    with pytest.raises(OSError, match="cannot be read"):
        turns.open()
    turns._select = select

    assert [row.number for row in turns.open()] == [kept]
    database.rollback()
    database.close()


def _fails(where: str, *arguments: Any) -> Any:
    raise OSError("It cannot be read.")
