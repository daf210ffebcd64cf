"""Datasets of pydantic_evals run against agents: each case has a tree of its own, and reports become JUnit XML."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic_ai.models.function import FunctionModel
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected, EvaluationReason, Evaluator, EvaluatorContext

from sapwood import After, Agent, App, ChatAgent, agent_tool, tool
from sapwood.cli.eval_command import eval_
from sapwood.errors import UsageError
from sapwood.evals import turn_task
from sapwood.evals.junit import junit, problems_of
from sapwood.evals.turn_task import model_of_class
from sapwood.kernel.node.data_folder import entries
from sapwood.testing import ScriptedModel, World, call, fails, running, text
from sapwood.types import BeforeTurn


class Scout(ChatAgent):
    """Scouts."""

    model = ScriptedModel(text("6650 km"), each=True)


class Desk(ChatAgent):
    """Answers."""

    tools = (agent_tool(Scout),)
    model = ScriptedModel(call("scout", message="Nile", id="c1"), text("It is 6650 km long."), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


@dataclass
class Sees(Evaluator[Any, Any]):
    """Notes what an evaluator sees of a turn."""

    seen: list[Any]

    def evaluate(self, ctx: EvaluatorContext[Any, Any]) -> float:
        self.seen.append((ctx.output, ctx.attributes, ctx.metrics))
        return 0.5


@dataclass
class Raises(Evaluator[Any, Any]):
    """Fails."""

    def evaluate(self, ctx: EvaluatorContext[Any, Any]) -> float:
        raise ValueError("no judge")


@dataclass
class Doubts(Evaluator[Any, Any]):
    """Is never content."""

    def evaluate(self, ctx: EvaluatorContext[Any, Any]) -> EvaluationReason:
        return EvaluationReason(value=False, reason="not <good> enough\x00")


def cases(inputs: Sequence[Any], *evaluators: Evaluator[Any, Any], expected: Any = None) -> Dataset[Any, Any, Any]:
    found: list[Case[Any, Any, Any]] = [
        Case(name=f"case {at}", inputs=one, expected_output=expected) for at, one in enumerate(inputs)
    ]
    return Dataset(name="rivers", cases=found, evaluators=evaluators)


def trees(world: World) -> list[str]:
    return [str(one) for one in entries(world.node.folder)]


async def test_each_case_has_a_tree_of_its_own_that_is_destroyed() -> None:
    names: list[str] = []

    class Noting(Desk):
        async def before_turn(self, turn: Any) -> None:
            names.append(self.name)

    async with running(App(agents=[Noting])) as world:
        report = await cases(["Hello?"] * 5).evaluate(turn_task(world.app, Noting), progress=False)
        assert [one.output for one in report.cases] == ["It is 6650 km long."] * 5
        assert len(set(names)) == 5
        assert trees(world) == []


async def test_evaluators_see_how_the_answer_came_about() -> None:
    seen: list[Any] = []
    async with running(App(agents=[Desk])) as world:
        await cases(["How long?"], Sees(seen)).evaluate(turn_task(world.app, Desk), progress=False)
    ((output, attributes, metrics),) = seen
    assert output == "It is 6650 km long."
    assert attributes["calls"] == [{"tool": "scout", "arguments": {"message": "Nile"}}]
    assert attributes["agents"] == ["Scout"]
    assert metrics["requests"] == 3
    assert min(metrics["input_tokens"], metrics["output_tokens"]) > 0


async def test_several_messages_are_one_conversation() -> None:
    async def counts(messages: Any, info: Any) -> AsyncIterator[str]:
        yield str(sum(part.part_kind == "user-prompt" for one in messages for part in one.parts))

    async with running(App(agents=[Desk]), models={Desk: FunctionModel(stream_function=counts)}) as world:
        report = await cases([["a", "b", "c"]], EqualsExpected(), expected="3").evaluate(
            turn_task(world.app, Desk), progress=False
        )
    assert problems_of(report) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (fails(RuntimeError("out of order")), "The turn is failed: "),
        (call("pay", id="c1"), "The turn waits for an answer to a question or an approval."),
    ],
)
async def test_a_turn_without_an_answer_is_a_failure_of_its_case(line: Any, problem: str) -> None:
    async with running(App(agents=[Desk]), models={Desk: ScriptedModel(line)}) as world:
        report = await cases(["Hello?"]).evaluate(turn_task(world.app, Desk), progress=False)
        assert trees(world) == []
    (found,) = problems_of(report)
    assert (found.case, found.kind) == ("case 0", "error")
    assert problem in found.text


async def test_another_model_answers_only_in_the_block() -> None:
    async with running(App(agents=[Desk])) as world:
        task = turn_task(world.app, Desk)
        with model_of_class(Desk, ScriptedModel(text("No idea."), each=True)):
            assert await task("Hello?") == "No idea."
        assert await task("Hello?") == "It is 6650 km long."


async def test_a_class_that_is_derived_from_that_of_the_task_keeps_its_model() -> None:
    class DerivedDesk(Desk):
        pass

    async with running(App(agents=[Desk, DerivedDesk])) as world:
        with model_of_class(Desk, ScriptedModel(text("No idea."), each=True)):
            assert (await (await world.get_agent(Desk, "a")).send("Hello?")).text == "No idea."
            derived = await world.get_agent(DerivedDesk, "a")
            assert (await derived.send("Hello?")).text == "It is 6650 km long."


def test_a_dataset_without_cases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty_evals.py").write_text(
        "from pydantic_evals import Dataset\n\n"
        "from sapwood import App, ChatAgent\n"
        "from sapwood.evals import turn_task\n\n\n"
        "class EvaluatedNever(ChatAgent):\n    pass\n\n\n"
        "dataset = Dataset(name='nothing', cases=[])\n"
        "task = turn_task(App(agents=[EvaluatedNever]), EvaluatedNever)\n"
    )
    with pytest.raises(UsageError, match=r"it would pass\. Add a Case"):
        eval_(tmp_path / "empty_evals.py")


async def test_a_report_becomes_junit_xml_in_which_assertions_are_gates() -> None:
    async with running(App(agents=[Desk])) as world:
        dataset = cases(["Hello?", []], Sees([]), Raises(), Doubts(), EqualsExpected(), expected="It is 6650 km long.")
        report = await dataset.evaluate(turn_task(world.app, Desk), progress=False, name="rivers (a & b)")
    (suite,) = ET.fromstring(junit([report]))
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors")} == {
        "name": "rivers (a & b)",
        "tests": "2",
        "failures": "1",
        "errors": "2",
    }
    first, second = suite
    assert {one.get("name"): one.get("value") for one in first.iter("property")}["score.Sees"] == "0.5"
    assert [one.get("message") for one in first.iter("failure")] == ["Doubts: not <good> enough\ufffd"]
    assert [one.get("message") for one in first.iter("error")] == ["Raises: ValueError: no judge"]
    assert [one.get("message") for one in second.iter("error")] == [
        "UsageError: The inputs of a case must be a message, or several."
    ]


def test_a_task_needs_a_chat_agent() -> None:
    with pytest.raises(UsageError, match=r"turn_task\(\) needs a chat agent class, got "):
        turn_task(App(agents=[Desk]), Agent)  # type: ignore[arg-type]


class Pupil(ChatAgent):
    """Remembers what it was told, and what it has to do."""

    tools = (agent_tool(Scout),)

    async def learn(self, word: str) -> None:
        self.set_state({"word": word})
        self.schedule(After(timedelta(hours=1), key="later"), self.later)
        await self.run_agent(Scout, word)

    async def later(self) -> None:
        self.set_state({"word": "later"})

    async def word(self) -> Any:
        return self.state

    def get_instructions(self) -> str:
        return f"The word is {self.state['word']}."


async def test_each_case_has_a_fork_of_the_tree_that_is_named() -> None:
    async def tells(messages: Any, info: Any) -> AsyncIterator[str]:
        count = sum(part.part_kind == "user-prompt" for one in messages for part in one.parts)
        yield f"{info.instructions} You asked {count} times."

    model = FunctionModel(stream_function=tells)
    async with running(App(agents=[Pupil]), models={Pupil: model}) as world:
        pupil = await world.get_agent(Pupil, "main")
        await pupil.learn("river")
        await pupil.send("Hello?")
        dataset = cases(["And now?"] * 3, EqualsExpected(), expected="The word is river. You asked 2 times.")
        seen: list[Any] = []
        dataset.evaluators.append(Sees(seen))

        report = await dataset.evaluate(turn_task(world.app, Pupil, "main"), progress=False)

        assert problems_of(report) == []
        assert [metrics["requests"] for _, _, metrics in seen] == [1, 1, 1]  # not what the original had used
        assert [attributes["agents"] for _, attributes, _ in seen] == [[], [], []]
        assert trees(world) == ["Pupil:main"]
        assert len(await pupil.conversation.messages()) == 2
        await world.clock.advance(3600)
        assert await pupil.word() == {"word": "later"}


async def test_each_case_may_have_the_tree_as_it_was_at_a_moment() -> None:
    async def counts(messages: Any, info: Any) -> AsyncIterator[str]:
        yield str(sum(part.part_kind == "user-prompt" for one in messages for part in one.parts))

    model = FunctionModel(stream_function=counts)
    async with running(App(agents=[Pupil]), models={Pupil: model}, history=3600.0) as world:
        pupil = await world.get_agent(Pupil, "main")
        await pupil.learn("river")
        await pupil.send("one")
        second = await pupil.send("two")
        dataset = cases(["And now?"], EqualsExpected(), expected="2")

        task = turn_task(world.app, Pupil, "main", at=BeforeTurn(second.id))
        report = await dataset.evaluate(task, progress=False)

        assert problems_of(report) == []
        with pytest.raises(UsageError, match="needs the name"):
            turn_task(world.app, Pupil, at="a mark")


async def test_a_tree_that_does_not_exist_is_a_failure_of_each_case() -> None:
    async with running(App(agents=[Desk])) as world:
        report = await cases(["Hello?"]).evaluate(turn_task(world.app, Desk, "nothing"), progress=False)
        assert trees(world) == []
    (found,) = problems_of(report)
    assert "Desk:nothing has no data" in found.text
