import asyncio
import re
from collections.abc import AsyncGenerator, Callable

import pytest
from sapwood import App, NotFound, Refused
from sapwood.testing import World, running

import panel_notes
from panel import Accountant, Chair, Customer, Discussion, Engineer, Panel, Rule
from panel_script import Conversation, agreement, as_chair, as_specialist

QUESTION = "Shall we open a second bakery?"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(panel_notes, "PAUSE", 0.002)
    async with running(App(agents=[Panel])) as world:
        yield world


async def test_settle_waits_for_all_and_sums_up_the_answers(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle")
    await me.ask("b", QUESTION, "settle", ["Accountant"])

    complete, partial = await finished(me, 2)
    assert statuses(complete) == {
        "Engineer": "completed",
        "Customer": "completed",
        "Accountant": "completed",
        "Chair": "completed",
    }
    assert statuses(partial) == statuses(complete) | {"Accountant": "error"}
    assert "3 of 3 have answered." in await summary(world, "a")
    text = await summary(world, "b")
    assert "2 of 3 have answered." in text
    assert "**Missing:** the Accountant (it failed on purpose)." in text


async def test_a_quorum_cancels_the_third_run_with_the_reason(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "quorum")

    (discussion,) = await finished(me)
    assert reasons(discussion) == {"Engineer": "quorum-with a-Accountant"}
    assert discussion.outcome == "summed up"
    assert "**Missing:** the Engineer (stopped)." in await summary(world, "a")


async def test_without_a_quorum_nothing_is_summed_up(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "quorum", ["Customer", "Accountant"])

    (discussion,) = await finished(me)
    assert discussion.outcome == "too few"
    assert "Chair" not in statuses(discussion)
    assert reasons(discussion)["Engineer"].startswith("no-quorum-after a-")


async def test_the_first_answer_wins_a_race_and_a_failure_does_not(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "race")
    await me.ask("b", QUESTION, "race", ["Customer"])
    await me.ask("c", QUESTION, "race", ["Engineer", "Customer", "Accountant"])

    first, second, third = await finished(me, 3)
    lost = "lost-to a-Customer"
    assert reasons(first) == {"Engineer": lost, "Accountant": lost}
    assert reasons(second) == {"Engineer": "lost-to b-Accountant"}
    assert statuses(second)["Customer"] == "error"
    assert third.outcome == "too few"
    assert "The first answer is: yes." in await summary(world, "a")


async def test_ask_is_idempotent(
    world: World,
) -> None:
    me = await world.get_agent(Panel, "me")
    for _ in range(3):
        await me.ask("a", QUESTION, "race")

    (discussion,) = await finished(me)
    await me.ask("a", "Something else?", "settle")
    assert await me.discussions() == (discussion,)


async def test_stop_cancels_all_runs_and_dismiss_cancels_one(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle")
    await until(me, lambda ones: len(ones[0].lanes) == 3)
    await me.stop("a")
    await me.ask("b", QUESTION, "settle")
    await until(me, lambda ones: len(ones[1].lanes) == 3)
    await me.dismiss("b-Engineer")

    stopped, other = await finished(me, 2)
    assert stopped.outcome == "stopped"
    assert set(reasons(stopped).values()) == {"caller-cancelled"}
    assert len(stopped.lanes) == 3
    assert reasons(other) == {"Engineer": "dismissed"}
    assert other.outcome == "summed up"


async def test_clear_deletes_the_runs(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "race")
    await finished(me)
    await me.ask("b", QUESTION, "settle")
    await until(me, lambda ones: len(ones[1].lanes) == 3)

    await me.clear()

    assert await me.discussions() == ()
    for run in ("a-Customer", "b-Customer"):
        with pytest.raises(NotFound):
            await world.get_agent(Panel, "me", sub=[(Customer, run)])


@pytest.mark.parametrize("rule", ["settle", "quorum", "race"])
async def test_a_discussion_has_the_same_outcome_after_a_crash(
    world: World, rule: Rule
) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, rule)
    (calm,) = await finished(me)
    await me.ask("b", QUESTION, rule)
    await until(me, lambda ones: len(ones[1].lanes) == 3)

    await world.crash()
    me = await world.get_agent(Panel, "me")

    _, crashed = await finished(me, 2)
    assert statuses(crashed) == statuses(calm)
    assert crashed.outcome == calm.outcome
    assert await summary(world, "b") == await summary(world, "a")


async def test_a_specialist_answers_follow_up_questions(world: World) -> None:
    me = await world.get_agent(Panel, "me")
    await me.ask("a", QUESTION, "settle", ["Accountant"])
    await finished(me)
    engineer = await world.get_agent(Panel, "me", sub=[(Engineer, "a-Engineer")])
    accountant = await world.get_agent(Panel, "me", sub=[(Accountant, "a-Accountant")])

    for prompt, answer in (
        ("Are you sure?", "As sure as my notes make me."),
        ("What is the risk?", "The dough has to be driven"),
        ("What would change your mind?", "If the power line"),
        ("Who are you?", "I am the Engineer. The question was: *Shall we open"),
        ("Thanks", "You are welcome."),
        ("And a rewrite in Rust?", "**No.** What is slow is the database"),
    ):
        assert answer in (await engineer.send(prompt)).text
    assert "**It depends.**" in (await accountant.send("A shop for less?")).text


@pytest.mark.parametrize(("id", "question"), [("A-1", "Why?"), ("a", "  ")])
async def test_an_invalid_question_is_rejected(
    world: World, id: str, question: str
) -> None:
    me = await world.get_agent(Panel, "me")

    with pytest.raises(Refused):
        await me.ask(id, question, "settle")


@pytest.mark.parametrize("who", ["Engineer", "Customer", "Accountant"])
async def test_the_same_question_gets_the_same_answer(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(panel_notes, "PAUSE", 0)
    for question in (QUESTION, "Four-day week?", "Rewrite it?", "An AI?", "Hm?", ""):
        notes = await panel_notes.read(who, question)
        reply = as_specialist(who)(Conversation([question], [], notes))
        pattern = r"\*\*(Yes|No|It depends)\.\*\* .+\n\n- \*\*Risk:\*\* .+\n- .+"
        assert re.fullmatch(pattern, reply.text)
        assert notes == await panel_notes.read(who, question)


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (["Yes."], "The first answer is: yes."),
        (["No.", "No."], "They agree: no."),
        (["Yes.", "It depends."], "No one is against it, but not everyone is sure."),
        (["Yes.", "No."], "They disagree."),
    ],
)
def test_the_chair_reports_whether_the_specialists_agree(
    verdicts: list[str], sentence: str
) -> None:
    assert agreement(verdicts) == sentence


def test_the_chair_refers_follow_up_questions_to_the_specialists() -> None:
    conversation = Conversation(["…", "Why?"], ["…"], None)

    assert "Ask the specialists" in as_chair(conversation).text


async def finished(me: Panel, number: int = 1) -> tuple[Discussion, ...]:
    """Wait until this many discussions and all their runs have ended."""
    return await until(
        me,
        lambda ones: (
            len(ones) == number
            and all(one.outcome is not None for one in ones)
            and all(lane.ended is not None for one in ones for lane in one.lanes)
        ),
    )


async def until(
    me: Panel, condition: Callable[[tuple[Discussion, ...]], bool]
) -> tuple[Discussion, ...]:
    """Wait until the discussions meet the condition, and return them."""
    async with asyncio.timeout(60):
        while True:
            if condition(discussions := await me.discussions()):
                return discussions
            await asyncio.sleep(0.005)


def statuses(discussion: Discussion) -> dict[str, str]:
    return {lane.who: lane.status for lane in discussion.lanes}


def reasons(discussion: Discussion) -> dict[str, str]:
    """Return the reason for each cancelled run."""
    return {lane.who: lane.reason for lane in discussion.lanes if lane.reason}


async def summary(world: World, id: str) -> str:
    chair = await world.get_agent(Panel, "me", sub=[(Chair, f"{id}-Chair")])
    message = (await chair.conversation.messages())[-1]
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
