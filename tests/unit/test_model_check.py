"""Models and keys are checked when an app starts, and what is wrong with them is told to the operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from tests.cases import slow

from sapwood import Agent, App, ChatAgent, Settings, agent_tool, persistent_agent
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, running, text


def chat(name: str = "Desk", **attributes: Any) -> Any:
    return type(name, (ChatAgent,), {"__doc__": "Answers.", **attributes})


async def start(*classes: Any, folder: Path) -> None:
    async with App(agents=classes, settings=Settings(data=folder)):
        pass


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("openai:gpt-4o", "Set the `OPENAI_API_KEY` environment variable"),
        *slow([("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY")]),
        ("opnai:gpt-4o", "Unknown model: opnai:gpt-4o"),
        ("gpt", "Unknown model: gpt"),
    ],
)
async def test_a_model_that_cannot_be_used_is_refused_at_start(model: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        await start(chat(model=model), folder=tmp_path / "data")

    assert str(refused.value).startswith(f"Desk.model cannot be used, got {model!r}: ")
    assert remedy in str(refused.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (42, r"got 42\."),
        (["openai:gpt-5"], r"got \['openai:gpt-5'\]\."),
        (ScriptedModel, r"got the class ScriptedModel\. Write ScriptedModel\(…\)\."),
    ],
)
async def test_a_value_that_is_not_a_model_is_refused_at_start(model: Any, got: str, tmp_path: Path) -> None:
    expected = r'Desk\.model must be the name of a model, such as "openai:gpt-5", or a Model of Pydantic AI, '
    with pytest.raises(UsageError, match=expected + got):
        await start(chat(model=model), folder=tmp_path / "data")


async def test_an_agent_without_model_or_respond_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Desk has no model. Set `model`, .* or write get_model\(\) or respond\(\)"):
        await start(chat(), folder=tmp_path)


@pytest.mark.parametrize("make", [agent_tool, lambda cls: persistent_agent(cls, name="x", description="X.")])
async def test_the_classes_that_a_root_uses_as_tools_are_checked_too(make: Any, tmp_path: Path) -> None:
    helper = chat("Helper", model="openai:gpt-4o")
    middle = chat("Middle", model=ScriptedModel(), tools=(make(helper),))
    with pytest.raises(UsageError, match=r"Helper\.model cannot be used, got 'openai:gpt-4o'"):
        await start(chat(model=ScriptedModel(), tools=(make(middle),)), folder=tmp_path)


class Plain(Agent):
    pass


async def respond(self: Any, turn: Any) -> Any:
    yield "hi"


@pytest.mark.parametrize(
    "attributes",
    [
        {"model": ScriptedModel()},
        {"model": "test"},
        {"respond": respond},
        {"get_model": lambda self: "openai:gpt-4o"},
        {"loop": PydanticAgent(ScriptedModel())},
        {"model": property(lambda self: "openai:gpt-4o")},
        {"model": "bedrock:some.model"},
    ],
)
async def test_what_cannot_be_known_or_needs_nothing_starts(attributes: dict[str, Any], tmp_path: Path) -> None:
    await start(chat(**attributes), Plain, folder=tmp_path)


async def test_tests_need_no_keys() -> None:
    async with running(App(agents=[chat(model="openai:gpt-4o")])):
        pass


async def test_a_model_that_fails_later_is_told_to_the_operator_and_not_to_the_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen: list[Any] = ["openai:gpt-4o", "opnai:gpt", None, ScriptedModel(text("hello"))]
    cls = chat(get_model=lambda self: chosen.pop(0))
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "a")
        for why in ("OPENAI_API_KEY", "Unknown model: opnai:gpt", "Desk has no model"):
            turn = await agent.send("hi")

            assert (
                turn.error == "The model of this assistant is not configured. The operator finds the reason in the log."
            )
            (line,) = [record for record in caplog.records if why in record.getMessage()]
            assert (line.exc_info, line.getMessage().count("\n")) == (None, 0)
        assert (await agent.send("hi")).text == "hello"


FIRST_TURN = """
import asyncio, sys
from sapwood import App, ChatAgent, Settings
from sapwood.testing import ScriptedModel, text

class Desk(ChatAgent):
    model = ScriptedModel(text("ok"))

class Named(ChatAgent):
    model = "openai:gpt-4o"

async def main():
    async with App(agents=[Desk, Named], settings=Settings(data=sys.argv[1])) as app:
        before = set(sys.modules)
        agent = await app.get_agent(Desk, "a")
        image = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}
        turn = await agent.send([{"role": "user", "parts": [{"type": "text", "text": "hi"}, image]}])
        late = {name for name in set(sys.modules) - before if name.split(".")[0] in ("pydantic_ai", "openai")}
        print(turn.status, "openai" in before, sorted(late))

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_first_turn_imports_nothing_of_the_libraries_that_it_uses(tmp_path: Path) -> None:
    """An import in a turn holds up all agents, and the warning about it would name the user's method."""
    script = tmp_path / "first.py"
    script.write_text(FIRST_TURN)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "data"],
        env={"OPENAI_API_KEY": "k", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "completed True []\n"
