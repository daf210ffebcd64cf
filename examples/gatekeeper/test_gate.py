"""What is proposed waits at the gate, and becomes what a person makes of it."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

import pytest
from sapwood import App, Refused
from sapwood.testing import World, running

import gate_script
from gate import Gatekeeper, Waiting, proposal
from gate_records import Records
from gate_script import Heard, Reply, as_assistant


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(gate_script, "PAUSE", 0)
    async with running(App(agents=[Gatekeeper])) as world:
        yield world


async def test_what_is_approved_is_done_and_the_model_is_told(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (shown,) = await me.waiting()
    assert shown.what == "change Ada Lovelace (1): city London → Paris"
    assert (await customer(world, 1))["city"] == "London"

    decision = await me.accept(shown.seal)

    assert (await customer(world, 1))["city"] == "Paris"
    assert (decision.verdict, decision.by) == ("approved", "Assistant")
    turn = await me.turns.wait(turn.id)
    assert turn.status == "completed"
    assert "Approved. Done: change Ada Lovelace (1): city London → Paris." in turn.text
    assert await me.waiting() == []


async def test_what_is_edited_is_done_as_the_person_wrote_it(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (shown,) = await me.waiting()

    decision = await me.accept(shown.seal, {"city": "Rome", "plan": "team"})

    ada = await customer(world, 1)
    assert (ada["city"], ada["plan"]) == ("Rome", "team")
    assert decision.verdict == "edited"
    assert "with other values" in (await me.turns.wait(turn.id)).text


async def test_what_is_rejected_is_not_done_and_the_model_is_told_why(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    turn = await me.send("Delete Alan")
    (shown,) = await me.waiting()

    await me.reject(shown.seal, "He has paid.")

    assert await customers(world) == before
    turn = await me.turns.wait(turn.id)
    assert turn.text.startswith("Not done.")
    assert "He has paid." in turn.text


async def test_of_several_proposals_each_is_decided_by_itself(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Delete everybody in New York")
    first, second = await me.waiting()

    await me.reject(first.seal, "She stays.")
    assert [one.what for one in await me.waiting()] == [second.what]
    await me.accept(second.seal)

    turn = await me.turns.wait(turn.id)
    assert "She stays." in turn.text
    assert "Done: delete Grace Hopper (5)." in turn.text
    assert [one["id"] for one in await customers(world)] == [1, 2, 3, 4, 6]


async def test_somebody_new_is_added(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Add Linus Torvalds, linus@kernel.example, Portland")
    (shown,) = await me.waiting()
    assert shown.outcome.before is None

    await me.accept(shown.seal)

    assert await customer(world, 7) == {
        "id": 7,
        "name": "Linus Torvalds",
        "email": "linus@kernel.example",
        "city": "Portland",
        "plan": "free",
    }


async def test_a_helper_of_a_helper_waits_at_the_same_gate(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    asked = asyncio.create_task(me.send("Tidy up the customers"))
    email, twice = sorted(await waiting(me, 2), key=lambda one: one.what)
    assert {email.by, twice.by} == {"Auditor → Clerk"}
    assert email.change.values == {"email": "katherine@orbit.example"}
    assert twice.what == "delete Grace Hopper (5)"

    await me.accept(email.seal)
    await me.reject(twice.seal, "Those are two people.")

    text = (await asked).text
    assert (await customer(world, 4))["email"] == "katherine@orbit.example"
    assert (await customer(world, 5))["name"] == "Grace Hopper"
    assert "Done: change Katherine Johnson (4)" in text
    assert "Those are two people." in text


async def test_what_cannot_be_done_is_not_approved_and_goes_on_waiting(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    await me.send("Set the email of Ada to nobody")
    (shown,) = await me.waiting()
    assert shown.outcome.problem == "An email has an @."

    with pytest.raises(Refused, match="An email has an @"):
        await me.accept(shown.seal)
    with pytest.raises(Refused, match="A plan is free, pro or team"):
        await me.accept(shown.seal, {"plan": "gold"})

    assert await customers(world) == before
    await me.accept(shown.seal, {"email": "ada@new.example"})
    assert (await customer(world, 1))["email"] == "ada@new.example"


async def test_pages_see_the_customers_and_what_was_decided(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Move Ada to Paris")
    (shown,) = await me.waiting()
    await me.accept(shown.seal)

    seen = await me.shown()

    assert seen.customers[0].city == "Paris"
    assert [one.what for one in seen.decisions] == [shown.what]


@pytest.mark.parametrize("verdict", ["approved", "rejected"])
async def test_a_crash_while_something_waits_takes_nothing_away(
    world: World, verdict: str
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    asked = asyncio.create_task(me.send("Tidy up the customers"))
    before = await waiting(me, 2)

    await world.crash()
    await asyncio.gather(asked, return_exceptions=True)
    me = await world.get_agent(Gatekeeper, "me")

    assert await me.waiting() == before
    for shown in before:
        if verdict == "approved":
            await me.accept(shown.seal)
        else:
            await me.reject(shown.seal, "No.")
    await me.send("Thanks")  # answered when all before it is over
    changed = [one["id"] for one in await customers(world)] == [1, 2, 3, 4, 6]
    assert changed == (verdict == "approved")


async def test_a_crash_between_a_decision_and_who_waits_for_it_loses_neither(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (wish,) = await me.questions.list()
    (shown,) = await me.waiting()
    name = proposal(wish.path, wish, shown.change)
    records = await world.get_agent(Gatekeeper, "me", sub=[(Records, "customers")])
    await records.decide(
        name, shown.outcome.before, shown.change, verdict="approved", by="Assistant"
    )

    await world.crash()
    me = await world.get_agent(Gatekeeper, "me")

    async with asyncio.timeout(60):
        async for _ in me.subscribe("self"):
            if (turn := await me.turns.wait(turn.id)).status == "completed":
                break
    assert "Approved. Done" in turn.text
    assert (await customer(world, 1))["city"] == "Paris"
    assert await me.waiting() == []


@pytest.mark.parametrize(
    ("said", "tool", "given"),
    [
        ("move Ada to Paris", "look", {"words": "Ada"}),
        ("Change the plan of Alan Turing to pro", "look", {"words": "Alan Turing"}),
        ("Set Ada's email to a@b.example", "look", {"words": "Ada"}),
        ("Upgrade Alan to team", "look", {"words": "Alan"}),
        ("Delete everybody in New York.", "look", {"words": "New York"}),
        ("Who is on the pro plan?", "look", {"words": "pro"}),
        ("List all customers", "look", {"words": ""}),
        ("Please clean up", "audit", {"task": "Please clean up"}),
    ],
)
def test_the_script_understands_some_sentences(
    said: str, tool: str, given: dict[str, str]
) -> None:
    assert as_assistant(Heard(said, [])) == Reply(calls=((tool, given),))


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("Hello", "decide at the gate"),
        ("What can you do?", "**Tidy up the customers**"),
        ("Thanks!", "goes on waiting"),
        ("Gravity", "“Gravity” is more than I understand"),
        ("Delete Ada, and do not ask", "I cannot."),
    ],
)
def test_small_talk_is_answered(said: str, heard: str) -> None:
    assert heard in as_assistant(Heard(said, [])).text


async def test_whoever_is_looked_for_and_not_found_is_not_invented(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")

    assert "**Radia Perlman**" in (await me.send("Find Radia")).text
    assert "no customer" in (await me.send("Move Ghost to Paris")).text


async def waiting(me: Gatekeeper, many: int) -> list[Waiting]:
    """Return what waits at the gate, as soon as it is so many."""
    async with asyncio.timeout(60):
        async for _ in me.subscribe("tree"):
            if len(found := await me.waiting()) == many:
                return found
    raise AssertionError


async def customers(world: World) -> list[dict[str, Any]]:
    records = await world.get_agent(Gatekeeper, "me", sub=[(Records, "customers")])
    return [asdict(one) for one in await records.find()]


async def customer(world: World, id: int) -> dict[str, Any]:
    (found,) = [one for one in await customers(world) if one["id"] == id]
    return found
