import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from sapwood import App, Refused
from sapwood.testing import World, running

import lab_customers
import lab_script
from lab import CodeRun, Lab
from lab_customers import CustomerDatabase
from lab_escapes import ESCAPES, Escape

QUESTION = "Which city pays most?"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(lab_customers, "SLOW", 0)
    monkeypatch.setattr(lab_script, "PAUSE", 0)
    async with running(App(agents=[Lab])) as world:
        yield world


async def test_the_code_of_the_model_calls_the_database_and_its_result_is_shown(
    world: World,
) -> None:
    lab = await world.get_agent(Lab, "me")

    turn = await lab.send(QUESTION)

    assert turn.text == "The result is **Rome**."
    (run,) = (await lab.page_state()).runs
    assert (run.status, run.value, run.starts) == ("done", "'Rome'", 1)
    assert run.printed == "London 40\nMilan 130\nRome 205\n"
    assert [(call.city, call.answer, call.attempts) for call in run.calls] == [
        ("London", "2 found", 1),
        ("Milan", "1 found", 1),
        ("Rome", "3 found", 1),
    ]


async def test_the_model_gets_the_error_and_fixes_its_code(world: World) -> None:
    lab = await world.get_agent(Lab, "me")

    turn = await lab.send("What is the median in Rome?")

    assert "45" in turn.text
    first, second = (await lab.page_state()).runs
    assert (first.kind, first.message) == (
        "unknown",
        "ModuleNotFoundError: No module named 'statistics'",
    )
    assert (second.status, second.value) == ("done", "45")


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("Delete all customers in Rome", "no attribute 'erase'"),
        ("Read the password file", "Permission denied: '/etc/passwd'"),
    ],
)
async def test_forbidden_code_is_refused_and_the_model_reports_it(
    world: World, prompt: str, why: str
) -> None:
    lab = await world.get_agent(Lab, "me")

    turn = await lab.send(prompt)

    assert why in turn.text
    assert len(await customers(world)) == 6


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda one: one.id)
async def test_every_escape_is_refused_with_a_reason(
    world: World, escape: Escape
) -> None:
    lab = await world.get_agent(Lab, "me")

    await lab.attempt("a", escape.code)

    run = await until(lab, lambda run: run.status == "refused")
    assert run.kind == escape.refusal
    assert run.message
    assert len(await customers(world)) == 6


def test_there_are_ten_escapes() -> None:
    assert len({escape.id for escape in ESCAPES}) == 10


async def test_waiting_code_shows_its_line_and_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_customers, "SLOW", 60)
    lab = await world.get_agent(Lab, "me")
    await lab.attempt("a", lab_script.PAYS)

    run = await until(lab, lambda run: run.status == "paused")

    assert run.line == 3
    assert [(call.city, call.answer) for call in run.calls] == [("London", None)]


async def test_after_a_crash_the_code_resumes_at_its_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_customers, "SLOW", 0.3)
    lab = await world.get_agent(Lab, "me")
    await lab.attempt("a", lab_script.PAYS)
    for city in ("London", "Milan", "Rome"):
        await until(lab, waits_for(city))
        await world.crash()
        lab = await world.get_agent(Lab, "me")

    run = await until(lab, lambda run: run.status == "done")

    assert (run.value, run.starts) == ("'Rome'", 4)
    assert run.printed == "London 40\nMilan 130\nRome 205\n"
    assert [(call.city, call.attempts) for call in run.calls] == [
        ("London", 2),
        ("Milan", 2),
        ("Rome", 2),
    ]


async def test_cancelling_the_turn_stops_its_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab_customers, "SLOW", 60)
    lab = await world.get_agent(Lab, "me")
    turn = asyncio.create_task(lab.send(QUESTION))
    await until(lab, lambda run: run.status == "paused")

    await lab.turns.cancel()

    await until(lab, lambda run: run.status == "stopped")
    await turn


async def test_attempt_is_idempotent(
    world: World,
) -> None:
    lab = await world.get_agent(Lab, "me")
    for _ in range(3):
        await lab.attempt("a", "customers('Rome')")

    run = await until(lab, lambda run: run.status == "done")

    assert (run.starts, len(run.calls)) == (1, 1)
    assert len((await lab.page_state()).runs) == 1


@pytest.mark.parametrize("code", ["  ", "x" * 10_001])
async def test_empty_and_long_code_is_rejected(world: World, code: str) -> None:
    lab = await world.get_agent(Lab, "me")

    with pytest.raises(Refused):
        await lab.attempt("a", code)


async def test_other_prompts_are_answered_with_help(world: World) -> None:
    lab = await world.get_agent(Lab, "me")

    assert "no network" in (await lab.send("Hello")).text


def waits_for(city: str) -> Callable[[CodeRun], bool]:
    return lambda run: run.status == "paused" and run.calls[-1].city == city


async def customers(world: World) -> list[lab_customers.Customer]:
    database = await world.get_agent(Lab, "me", sub=[(CustomerDatabase, "customers")])
    return await database.all_customers()


async def until(lab: Lab, condition: Callable[[CodeRun], bool]) -> CodeRun:
    """Wait until the latest run meets the condition, and return it."""
    async with asyncio.timeout(60):
        while True:
            runs = (await lab.page_state()).runs
            if runs and condition(runs[-1]):
                return runs[-1]
            await asyncio.sleep(0.005)
