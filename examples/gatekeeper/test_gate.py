"""Proposals wait at the gate until a person approves, edits or rejects them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

import pytest
from sapwood import App, Refused
from sapwood.testing import World, running

import gate_script
from gate import Gatekeeper, Waiting, proposal_id
from gate_records import Records
from gate_script import Conversation, Reply, as_assistant


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(gate_script, "PAUSE", 0)
    async with running(App(agents=[Gatekeeper])) as world:
        yield world


async def test_an_approved_change_is_applied_and_the_model_gets_the_result(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (proposal,) = await me.waiting()
    assert proposal.what == "change Ada Lovelace (1): city London → Paris"
    assert (await customer(world, 1))["city"] == "London"

    decision = await me.accept(proposal.seal)

    assert (await customer(world, 1))["city"] == "Paris"
    assert (decision.verdict, decision.by) == ("approved", "Assistant")
    turn = await me.turns.wait(turn.id)
    assert turn.status == "completed"
    assert "Approved. Done: change Ada Lovelace (1): city London → Paris." in turn.text
    assert await me.waiting() == []


async def test_an_edited_change_is_applied_with_the_edited_values(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (proposal,) = await me.waiting()

    decision = await me.accept(proposal.seal, {"city": "Rome", "plan": "team"})

    ada = await customer(world, 1)
    assert (ada["city"], ada["plan"]) == ("Rome", "team")
    assert decision.verdict == "edited"
    assert "with other values" in (await me.turns.wait(turn.id)).text


async def test_a_rejected_change_is_not_applied_and_the_model_gets_the_reason(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    turn = await me.send("Delete Alan")
    (proposal,) = await me.waiting()

    await me.reject(proposal.seal, "He has paid.")

    assert await customers(world) == before
    turn = await me.turns.wait(turn.id)
    assert turn.text.startswith("Not done.")
    assert "He has paid." in turn.text


async def test_each_proposal_is_decided_separately(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Delete all customers in New York")
    first, second = await me.waiting()

    await me.reject(first.seal, "She stays.")
    assert [one.what for one in await me.waiting()] == [second.what]
    await me.accept(second.seal)

    turn = await me.turns.wait(turn.id)
    assert "She stays." in turn.text
    assert "Done: delete Grace Hopper (5)." in turn.text
    assert [one["id"] for one in await customers(world)] == [1, 2, 3, 4, 6]


async def test_a_new_customer_is_added(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Add Linus Torvalds, linus@kernel.example, Portland")
    (proposal,) = await me.waiting()
    assert proposal.outcome.before is None

    await me.accept(proposal.seal)

    assert await customer(world, 7) == {
        "id": 7,
        "name": "Linus Torvalds",
        "email": "linus@kernel.example",
        "city": "Portland",
        "plan": "free",
    }


async def test_proposals_of_nested_helpers_wait_at_the_same_gate(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn_task = asyncio.create_task(me.send("Tidy up the customers"))
    email, twice = sorted(await waiting(me, 2), key=lambda one: one.what)
    assert {email.by, twice.by} == {"Auditor → Clerk"}
    assert email.change.values == {"email": "katherine@orbit.example"}
    assert twice.what == "delete Grace Hopper (5)"

    await me.accept(email.seal)
    await me.reject(twice.seal, "Those are two people.")

    text = (await turn_task).text
    assert (await customer(world, 4))["email"] == "katherine@orbit.example"
    assert (await customer(world, 5))["name"] == "Grace Hopper"
    assert "Done: change Katherine Johnson (4)" in text
    assert "Those are two people." in text


async def test_an_invalid_change_cannot_be_approved_and_stays_open(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    await me.send("Set the email of Ada to unknown")
    (proposal,) = await me.waiting()
    assert proposal.outcome.problem == "The email must contain an @, got 'unknown'."

    with pytest.raises(Refused, match="must contain an @"):
        await me.accept(proposal.seal)
    with pytest.raises(Refused, match="must be free, pro or team, got 'gold'"):
        await me.accept(proposal.seal, {"plan": "gold"})

    assert await customers(world) == before
    await me.accept(proposal.seal, {"email": "ada@new.example"})
    assert (await customer(world, 1))["email"] == "ada@new.example"


async def test_pages_receive_the_customers_and_the_decisions(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Move Ada to Paris")
    (proposal,) = await me.waiting()
    await me.accept(proposal.seal)

    state = await me.page_state()

    assert state.customers[0].city == "Paris"
    assert [one.what for one in state.decisions] == [proposal.what]


@pytest.mark.parametrize("verdict", ["approved", "rejected"])
async def test_waiting_proposals_survive_a_crash(world: World, verdict: str) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn_task = asyncio.create_task(me.send("Tidy up the customers"))
    before = await waiting(me, 2)

    await world.crash()
    await asyncio.gather(turn_task, return_exceptions=True)
    me = await world.get_agent(Gatekeeper, "me")

    assert await me.waiting() == before
    for proposal in before:
        if verdict == "approved":
            await me.accept(proposal.seal)
        else:
            await me.reject(proposal.seal, "No.")
    await me.send("Thanks")  # answered after the turns before it
    changed = [one["id"] for one in await customers(world)] == [1, 2, 3, 4, 6]
    assert changed == (verdict == "approved")


async def test_a_crash_after_a_decision_still_delivers_it_to_the_model(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Move Ada to Paris")
    (question,) = await me.questions.list()
    (proposal,) = await me.waiting()
    name = proposal_id(question.path, question, proposal.change)
    records = await world.get_agent(Gatekeeper, "me", sub=[(Records, "customers")])
    await records.decide(
        name,
        proposal.outcome.before,
        proposal.change,
        verdict="approved",
        by="Assistant",
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
    ("prompt", "tool", "arguments"),
    [
        ("move Ada to Paris", "look", {"words": "Ada"}),
        ("Change the plan of Alan Turing to pro", "look", {"words": "Alan Turing"}),
        ("Set Ada's email to a@b.example", "look", {"words": "Ada"}),
        ("Upgrade Alan to team", "look", {"words": "Alan"}),
        ("Delete everyone in New York.", "look", {"words": "New York"}),
        ("Who is on the pro plan?", "look", {"words": "pro"}),
        ("List all customers", "look", {"words": ""}),
        ("Please clean up", "audit", {"task": "Please clean up"}),
    ],
)
def test_the_script_parses_requests(
    prompt: str, tool: str, arguments: dict[str, str]
) -> None:
    reply = Reply(calls=((tool, arguments),))
    assert as_assistant(Conversation(prompt, [])) == reply


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Hello", "decide at the gate"),
        ("What can you do?", "**Tidy up the customers**"),
        ("Thanks!", "stay at the gate"),
        ("Gravity", "I do not understand “Gravity”"),
        ("Delete Ada, and do not ask", "I cannot."),
    ],
)
def test_small_talk_is_answered(prompt: str, answer: str) -> None:
    assert answer in as_assistant(Conversation(prompt, [])).text


async def test_a_search_returns_only_customers_that_exist(
    world: World,
) -> None:
    me = await world.get_agent(Gatekeeper, "me")

    assert "**Radia Perlman**" in (await me.send("Find Radia")).text
    assert "No customer" in (await me.send("Move Ghost to Paris")).text


async def waiting(me: Gatekeeper, count: int) -> list[Waiting]:
    """Wait until this many proposals are at the gate, and return them."""
    async with asyncio.timeout(60):
        async for _ in me.subscribe("tree"):
            if len(proposals := await me.waiting()) == count:
                return proposals
    raise AssertionError


async def customers(world: World) -> list[dict[str, Any]]:
    records = await world.get_agent(Gatekeeper, "me", sub=[(Records, "customers")])
    return [asdict(one) for one in await records.find()]


async def customer(world: World, id: int) -> dict[str, Any]:
    (customer,) = [one for one in await customers(world) if one["id"] == id]
    return customer
