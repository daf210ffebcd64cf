import asyncio
import re
from collections.abc import AsyncGenerator, Callable

import pytest
from sapwood import App, NotFound, Refused
from sapwood.testing import World, running

import panel_notes
from panel import Accountant, Chair, Customer, Discussion, Engineer, Panel, Rule
from panel_script import Heard, agreement, as_chair, as_specialist

QUESTION = "Shall we open a second bakery?"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(panel_notes, "PAUSE", 0.002)
    async with running(App(agents=[Panel])) as world:
        yield world


async def test_to_settle_is_to_hear_all_and_to_make_do_with_those_who_answer(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle")
    await me.ask("b", QUESTION, "settle", ["Accountant"])

    whole, part = await over(me, 2)
    assert statuses(whole) == {
        "Engineer": "completed",
        "Customer": "completed",
        "Accountant": "completed",
        "Chair": "completed",
    }
    assert statuses(part) == statuses(whole) | {"Accountant": "error"}
    assert "3 of 3 were heard." in await summed_up(world, "a")
    told = await summed_up(world, "b")
    assert "2 of 3 were heard." in told
    assert "**Not heard:** the Accountant (it was told to fail)." in told


async def test_a_quorum_stops_the_third_and_says_with_whom_it_was_reached(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "quorum")

    (discussion,) = await over(me)
    assert reasons(discussion) == {"Engineer": "quorum-with a-Accountant"}
    assert discussion.outcome == "summed up"
    assert "**Not heard:** the Engineer (stopped)." in await summed_up(world, "a")


async def test_without_a_quorum_nothing_is_summed_up(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "quorum", ["Customer", "Accountant"])

    (discussion,) = await over(me)
    assert discussion.outcome == "too few"
    assert "Chair" not in statuses(discussion)
    assert reasons(discussion)["Engineer"].startswith("no-quorum-after a-")


async def test_a_race_is_won_by_the_first_who_answers_and_not_by_one_who_fails(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "race")
    await me.ask("b", QUESTION, "race", ["Customer"])
    await me.ask("c", QUESTION, "race", ["Engineer", "Customer", "Accountant"])

    first, second, nobody = await over(me, 3)
    lost = "lost-to a-Customer"
    assert reasons(first) == {"Engineer": lost, "Accountant": lost}
    assert reasons(second) == {"Engineer": "lost-to b-Accountant"}
    assert statuses(second)["Customer"] == "error"
    assert nobody.outcome == "too few"
    assert "The first answer is: yes." in await summed_up(world, "a")


async def test_a_question_is_discussed_once_however_often_it_is_asked(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    for _ in range(3):
        await me.ask("a", QUESTION, "race")

    (discussion,) = await over(me)
    await me.ask("a", "Something else?", "settle")
    assert await me.discussions() == (discussion,)


async def test_stop_stops_everybody_and_dismiss_stops_one(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle")
    await until(me, lambda found: len(found[0].lanes) == 3)
    await me.stop("a")
    await me.ask("b", QUESTION, "settle")
    await until(me, lambda found: len(found[1].lanes) == 3)
    await me.dismiss("b-Engineer")

    stopped, went_on = await over(me, 2)
    assert stopped.outcome == "stopped"
    assert set(reasons(stopped).values()) == {"caller-cancelled"}
    assert len(stopped.lanes) == 3
    assert reasons(went_on) == {"Engineer": "dismissed"}
    assert went_on.outcome == "summed up"


async def test_clear_forgets_what_everybody_said(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "race")
    await over(me)
    await me.ask("b", QUESTION, "settle")
    await until(me, lambda found: len(found[1].lanes) == 3)

    await me.clear()

    assert await me.discussions() == ()
    for run in ("a-Customer", "b-Customer"):
        with pytest.raises(NotFound):
            await world.get_agent(Panel, "me", sub=[(Customer, run)])


@pytest.mark.parametrize("rule", ["settle", "quorum", "race"])
async def test_after_a_crash_a_discussion_ends_as_it_would_have(
    world: World, rule: Rule
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, rule)
    (calm,) = await over(me)
    await me.ask("b", QUESTION, rule)
    await until(me, lambda found: len(found[1].lanes) == 3)

    await world.crash()
    me = await world.get_agent(Panel, "me")

    _, crashed = await over(me, 2)
    assert statuses(crashed) == statuses(calm)
    assert crashed.outcome == calm.outcome
    assert await summed_up(world, "b") == await summed_up(world, "a")


async def test_a_specialist_can_be_asked_afterwards(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle", ["Accountant"])
    await over(me)
    engineer = await world.get_agent(Panel, "me", sub=[(Engineer, "a-Engineer")])
    accountant = await world.get_agent(Panel, "me", sub=[(Accountant, "a-Accountant")])

    for said, heard in (
        ("Are you sure?", "As sure as my notes make me."),
        ("What is the risk?", "The dough has to be driven"),
        ("What would change your mind?", "If the power line"),
        ("Who are you?", "I am the Engineer, and was asked: *Shall we open"),
        ("Thanks", "With pleasure."),
        ("And a rewrite in Rust?", "**No.** What is slow is the database"),
    ):
        assert heard in (await engineer.send(said)).text
    assert "**It depends.**" in (await accountant.send("A shop for less?")).text


@pytest.mark.parametrize(("id", "question"), [("A-1", "Why?"), ("a", "  ")])
async def test_what_is_no_question_is_refused(
    world: World, id: str, question: str
) -> None:
    me = await world.get_agent(Panel, "me")

    with pytest.raises(Refused):
        await me.ask(id, question, "settle")


@pytest.mark.parametrize("who", ["Engineer", "Customer", "Accountant"])
async def test_every_question_is_answered_and_always_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(panel_notes, "PAUSE", 0)
    for question in (QUESTION, "Four-day week?", "Rewrite it?", "An AI?", "Hm?", ""):
        found = await panel_notes.read(who, question)
        reply = as_specialist(who)(Heard([question], [], found))
        pattern = r"\*\*(Yes|No|It depends)\.\*\* .+\n\n- \*\*Risk:\*\* .+\n- .+"
        assert re.fullmatch(pattern, reply.text)
        assert found == await panel_notes.read(who, question)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["Yes."], "The first answer is: yes."),
        (["No.", "No."], "They agree: no."),
        (["Yes.", "It depends."], "Nobody is against it, and not everybody is sure."),
        (["Yes.", "No."], "They do not agree."),
    ],
)
def test_the_chair_says_whether_they_agree(verdicts: list[str], said: str) -> None:
    assert agreement(verdicts) == said


def test_the_chair_sends_those_who_ask_to_those_who_know() -> None:
    assert "Ask those who said it" in as_chair(Heard(["…", "Why?"], ["…"], None)).text


async def over(me: Panel, number: int = 1) -> tuple[Discussion, ...]:
    """Return the discussions when so many have come to an end, and nobody works."""
    return await until(
        me,
        lambda found: (
            len(found) == number
            and all(one.outcome is not None for one in found)
            and all(lane.ended is not None for one in found for lane in one.lanes)
        ),
    )


async def until(
    me: Panel, is_so: Callable[[tuple[Discussion, ...]], bool]
) -> tuple[Discussion, ...]:
    """Return the discussions as soon as they are like this."""
    async with asyncio.timeout(60):
        while True:
            if is_so(found := await me.discussions()):
                return found
            await asyncio.sleep(0.005)


def statuses(discussion: Discussion) -> dict[str, str]:
    return {lane.who: lane.status for lane in discussion.lanes}


def reasons(discussion: Discussion) -> dict[str, str]:
    """Return who was stopped, and why."""
    return {lane.who: lane.reason for lane in discussion.lanes if lane.reason}


async def summed_up(world: World, id: str) -> str:
    chair = await world.get_agent(Panel, "me", sub=[(Chair, f"{id}-Chair")])
    message = (await chair.conversation.messages())[-1]
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
