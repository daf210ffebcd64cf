"""A turn becomes a pytest file that passes as it is, and that fails if a word of the model is changed."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelOverloadedError
from pydantic_ai.models.function import DeltaThinkingPart, FunctionModel
from tests.cases import slow
from tests.conformance import copied_agents as agents
from tests.conformance.chats import done, say, tool_result
from tests.conformance.copied_agents import (
    CopyChief,
    CopyCook,
    CopyCounter,
    CopyDesk,
    CopyHasty,
    CopyKeeper,
    CopyPupil,
    CopyScout,
    CopyShort,
    CopyWarehouse,
)
from tests.conformance.served import Served
from tests.conformance.serving import serving
from tests.loops import play
from tests.unit.admin_requests import ask

from sapwood import App, ChatAgent, Turn, tool
from sapwood.address import Address
from sapwood.errors import InvalidArguments, NotFound
from sapwood.testing import ScriptedModel, World, call, calls, fails, running, text

Scene = Callable[[], Coroutine[Any, Any, str]]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    """A conversation; it returns a turn of it as a test."""
    SCENES[function.__name__] = function
    return function


@asynccontextmanager
async def talking(
    *lines: Any, cls: type[ChatAgent[Any]] = CopyDesk, **more: Any
) -> AsyncGenerator[tuple[World, Any, ScriptedModel]]:
    model = ScriptedModel(*lines)
    async with running(App(agents=[cls], **more), models={cls: model}) as world:
        yield world, await world.get_agent(cls, "main"), model


async def copied(world: World, turn: Turn[Any] | str, cls: str = "CopyDesk", **more: Any) -> str:
    address = cls if ":" in cls else f"{cls}:main"
    return (await ask(world, "record", address=address, turn=turn if isinstance(turn, str) else turn.id, **more))[
        "text"
    ]


async def sent(*lines: Any, message: Any = "How long is the Nile?", **more: Any) -> str:
    """Return the only turn of a conversation as a test."""
    cls: type[ChatAgent[Any]] = more.get("cls", CopyDesk)
    async with talking(*lines, **more) as (world, agent, _):
        return await copied(world, await agent.send(message), cls.__name__)


@scene
async def a_text() -> str:
    return await sent(text("The Nile is 6650 km long."))


@scene
async def several_steps() -> str:
    looking = calls(text("Let me look. "), call("look", about="rivers", id="c1"))
    return await sent(looking, call("look", about="the Nile", id="c2"), text("It is long."))


@scene
async def parallel_tools() -> str:
    both = calls(call("look", about="Nile", id="c1"), call("look", about="Rhine", id="c2"))
    return await sent(both, text("Both are long."))


@scene
async def a_tool_that_fails() -> str:
    return await sent(call("fail", why="no map", id="c1"), text("I have no map."))


@scene
async def a_call_that_is_corrected() -> str:
    lines = [call("doubt", river="Nil", id="c1"), call("doubt", river="Nile", id="c2"), text("Long.")]
    return await sent(*lines)


@scene
async def calls_that_do_not_fit() -> str:
    wrong = [call("doubt", '{"river": ', id="c1"), call("doubt", rivers=3, id="c2"), call("nothing", id="c3")]
    return await sent(*wrong, text("I give up."))


async def answered(answer: Callable[[Any], Awaitable[Any]]) -> str:
    paying = calls(call("pay", amount=3, id="c1"), call("look", about="boats", id="c2"))
    async with talking(paying, text("Done.")) as (world, agent, _):
        turn = await agent.send("Cross the river.")
        assert turn.status == "waiting"
        await answer(agent)
        return await copied(world, await agent.turns.wait(turn.id))


@scene
async def an_approval() -> str:
    found = await answered(lambda agent: agent.questions.approve("c1"))
    assert "# approved\n" in found
    return found


@scene
async def a_denial() -> str:
    found = await answered(lambda agent: agent.questions.deny("c1", reason="Swim."))
    assert '# denied\n        "c1": ToolResult.failed("Swim."),\n' in found
    return found


@scene
async def ids_of_a_provider() -> str:
    paying = call("pay", amount=3, id="toolu_01T1x1fJ34qAmk2tNTrN7Up6")
    async with talking(paying, call("look", about="boats", id="c1"), text("Done.")) as (world, agent, _):
        turn = await agent.send("Cross the river.")
        await agent.questions.approve("toolu_01T1x1fJ34qAmk2tNTrN7Up6")
        found = await copied(world, await agent.turns.wait(turn.id))
    assert '# approved\n        "c1": "paid 3' in found
    assert '"c2": {"about": "boats"' in found
    return found


@scene
async def changed_arguments() -> str:
    found = await answered(lambda agent: agent.questions.approve("c1", arguments={"amount": 1, "to": "Ann"}))
    assert """# approved with {'amount':1,'to':'Ann'}\n""" in found
    return found


@scene
async def a_choice() -> str:
    async with talking(call("choose", id="c1"), text("The Rhine it is.")) as (world, agent, _):
        asking = asyncio.create_task(agent.send("Choose a river."))
        while not (found := await agent.questions.list()):  # noqa: ASYNC110 - a question tells nobody
            await asyncio.sleep(0.01)
        await agent.questions.answer(found[0], "Rhine")
        found = await copied(world, await asking)
    assert "A person was asked: Which river? Answer: 'Rhine'.\n" in found
    return found


@scene
async def a_sub_agent() -> str:
    lines = [call("copy_scout", message="Nile", id="c1"), call("copy_plain", message="Nile", id="c2"), text("Far.")]
    return await sent(*lines)


@scene
async def a_nested_sub_agent() -> str:
    return await sent(call("copy_guide", message="Nile", id="c1"), text("6650 km, I hear."))


@scene
async def three_levels_of_sub_agents() -> str:
    chief = ScriptedModel(call("copy_desk", message="How long is the Nile?", id="c1"), text("Ask about 6650 km."))
    asks = calls(call("copy_guide", message="Nile", id="c1"), call("look", about="Nile", id="c2"))
    desk = ScriptedModel(asks, text("The guide says so."))
    async with running(App(agents=[CopyChief]), models={CopyChief: chief, CopyDesk: desk}) as world:
        found = await copied(world, await (await world.get_agent(CopyChief, "main")).send("Ask."), "CopyChief")
    below = "CopyChief:main/CopyDesk:agent-tool%3Ac1/CopyGuide:agent-tool%3Ac1/CopyScout:agent-tool%3Ag1"
    assert f'"{below}": copy_scout_model,' in found
    assert 'run=["copy_desk"]' in found
    return found


@scene
async def sub_agents_of_one_class_at_once() -> str:
    async def echo(messages: Any, info: Any) -> AsyncIterator[Any]:
        yield f"{messages[0].parts[0].content} is long"

    both = calls(call("copy_scout", message="Nile", id="c1"), call("copy_scout", message="Rhine", id="c2"))
    desk = ScriptedModel(both, text("Both are long."))
    models = {CopyDesk: desk, CopyScout: FunctionModel(stream_function=echo)}
    async with running(App(agents=[CopyDesk]), models=models) as world:
        found = await copied(world, await (await world.get_agent(CopyDesk, "main")).send("How long are they?"))
    assert 'copy_scout_2_model = ScriptedModel(text("Rhine is long"))' in found
    return found


@scene
async def a_persistent_child_that_the_model_waits_for() -> str:
    chief = ScriptedModel(
        call("spawn_agent", agent="guide", name="g", message="Nile", id="c1"),
        call("list_children", id="c2"),
        text("6650 km, I hear."),
    )
    async with running(App(agents=[CopyChief]), models={CopyChief: chief}) as world:
        found = await copied(world, await (await world.get_agent(CopyChief, "main")).send("Ask."), "CopyChief")
    assert 'run=["spawn_agent"]' in found
    assert '"CopyChief:main/CopyGuide:g/CopyScout:agent-tool%3Ag1": copy_scout_model' in found
    return found


@scene
async def a_sub_agent_that_is_deleted_since() -> str:
    async with talking(call("copy_scout", message="Nile", id="c1"), text("Far.")) as (world, agent, _):
        turn = await agent.send("Where?")
        scout = "CopyDesk:main/CopyScout:agent-tool%3Ac1"
        await ask(world, "destroy", address=scout, name="agent-tool:c1")
        found = await copied(world, turn)
    assert f"Not copied: the work of {scout}, of which only the result is known" in found
    return found


@scene
async def tools_that_run() -> str:
    made = calls(call("look", about="Nile", id="c1"), call("pay", amount=3, id="c2"))
    again = calls(call("doubt", river="Nil", id="c3"), call("fail", why="no map", id="c4"))
    async with talking(made, again, text("It is long.")) as (world, agent, _):
        turn = await agent.send("Look.")
        await agent.questions.approve("c2")
        found = await copied(world, await agent.turns.wait(turn.id), run_tools=True)
    assert 'run=["look", "doubt", "fail"]' in found
    return found


@scene
async def a_sub_agent_that_fails() -> str:
    return await sent(call("copy_plain", message="nowhere", id="c1"), text("There is no such place."))


@scene
async def a_turn_of_a_sub_agent() -> str:
    async with talking(call("copy_guide", message="Where?", id="c1"), text("Far.")) as (world, agent, _):
        await agent.send("Where?")
        (guide,) = (await ask(world, "agents", address="CopyDesk:main"))["rows"]
        (turn,) = (await ask(world, "works", address=guide["address"]))["rows"]
        return await copied(world, turn["work"], guide["address"])


@scene
async def a_structured_output() -> str:
    wrong = call("final_result", dish="Soup", minutes="many", id="c1")
    right = call("final_result", dish="Soup", minutes=30, steps=["Boil water", "Add salt"], id="c2")
    return await sent(wrong, right, cls=CopyCook, message="Cook!")


@scene
async def an_output_function() -> str:
    made = [call("final_result", word="empty", id="c1"), call("final_result", word="river", id="c2")]
    return await sent(*made, cls=CopyCounter, message="Count!")


@scene
async def cancelled_in_the_model() -> str:
    async with talking(call("look", about="x", id="c1"), text("The Nile is", stalls=True)) as (world, agent, model):
        asking = asyncio.create_task(agent.send("How long is the Nile?"))
        await world.until(lambda: model.is_stalled)
        await agent.turns.cancel()
        return await copied(world, await asking)


@scene
async def cancelled_before_a_word() -> str:
    async with talking(text("", stalls=True)) as (world, agent, model):
        asking = asyncio.create_task(agent.send("How long is the Nile?"))
        await world.until(lambda: model.is_stalled)
        await agent.turns.cancel()
        return await copied(world, await asking)


@scene
async def cancelled_in_a_tool() -> str:
    CopyDesk.begun, CopyDesk.held = 0, asyncio.Event()
    waiting = calls(text("One moment. "), call("wait", id="c1"), call("look", about="boats", id="c2"))
    async with talking(waiting) as (world, agent, _):
        asking = asyncio.create_task(agent.send("Wait."))
        await world.until(lambda: CopyDesk.begun == 1)
        await agent.turns.cancel()
        return await copied(world, await asking)


@scene
async def cancelled_while_it_waited() -> str:
    async with talking(call("pay", amount=3, id="c1")) as (world, agent, _):
        turn = await agent.send("Pay.")
        await agent.turns.cancel(turn.id)
        return await copied(world, await agent.turns.wait(turn.id))


@scene
async def a_question_without_an_answer() -> str:
    async with talking(call("pay", amount=3, id="c1"), text("As you like.")) as (world, agent, _):
        turn = await agent.send("Pay.")
        await agent.send("No, do not.")
        return await copied(world, turn)


@scene
async def a_model_that_fails() -> str:
    return await sent(call("look", about="x", id="c1"), fails(RuntimeError("out of order")))


@scene
async def a_model_that_fails_in_the_middle() -> str:
    return await sent(fails(RuntimeError("out of order"), after="The Nile is"))


@scene
async def a_request_that_is_repeated() -> str:
    overloaded = fails(ModelOverloadedError("scripted", "busy"))
    async with talking(overloaded, text("6650 km")) as (world, agent, model):
        turn = await agent.turns.start("How long?")
        await world.until(lambda: len(model.asked) == 1)
        await world.clock.advance(30)
        return await copied(world, await agent.turns.wait(turn.id))


@scene
async def a_crash_in_the_middle() -> str:
    CopyDesk.begun, CopyDesk.held = 0, asyncio.Event()
    async with talking(call("wait", id="c1"), text("I waited.")) as (world, agent, _):
        turn = await agent.turns.start("Wait.")
        await world.until(lambda: CopyDesk.begun == 1)
        await world.crash()
        agent = await world.get_agent(CopyDesk, "main")
        return await copied(world, await agent.turns.wait(turn.id))


@scene
async def a_compaction_before() -> str:
    async with talking(text("word " * 60), text("Short."), cls=CopyShort) as (world, agent, _):
        for _ in range(3):
            await agent.send("Say more.")
            await world.settled()
        found = await copied(world, await agent.send("And now?"), "CopyShort")
    assert "older messages of the conversation" in found
    return found


@scene
async def a_compaction_since() -> str:
    async with talking(text("word " * 60), cls=CopyShort) as (world, agent, _):
        turn = await agent.send("Say more.")
        for _ in range(3):
            await agent.send("Say more.")
            await world.settled()
        found = await copied(world, turn, "CopyShort")
    assert "compacted since" not in found  # what a summary replaces stays stored
    return found


@scene
async def messages_before() -> str:
    async with talking(text("Hello."), call("look", about="x", id="c1"), text("Long."), text("Yes.")) as (
        world,
        agent,
        _,
    ):
        await agent.send("Hi!")
        await agent.send("How long is the Nile?")
        return await copied(world, await agent.send("Really?"))


@scene
async def a_queued_message() -> str:
    gate = asyncio.Event()
    async with talking(text("The first answer", gate=gate), text("The second answer")) as (world, agent, model):
        first = await agent.turns.start("One")
        await world.until(lambda: len(model.asked) == 1)
        second = await agent.turns.start("Two")
        gate.set()
        await agent.turns.wait(first.id)
        return await copied(world, await agent.turns.wait(second.id))


@scene
async def several_messages() -> str:
    messages = [
        {"id": f"m{at}", "role": "user", "parts": [{"type": "text", "text": one}]} for at, one in enumerate("ab")
    ]
    return await sent(text("Two at once."), message=messages)


@scene
async def an_answer_that_is_continued() -> str:
    async with talking(text("Once upon a time"), text(" there was a river.")) as (world, agent, _):
        await agent.send("Tell me a story.")
        return await copied(world, await agent.turns.continue_last())


@scene
async def odd_texts() -> str:
    odd = 'She said "it\'s"\n\tüber 🌲 \\ {x} """ \u202e # \x1b[31m' + "\u2028end  "
    return await sent(
        call("odd", {"from": odd, "a b": "x", "id": 'é"', "class": "it's"}, id='c"1\n'), text(odd), message=f"  {odd}"
    )


@scene
async def a_long_text() -> str:
    long = "\n\n".join(f"{number}. " + "A river is long, and longer than a line. " * 9 for number in range(20))
    return await sent(text(long + "x" * 300), message=long)


@scene
async def hostile_names() -> str:
    hostile = '"""\nboom()\n\\'
    made = call(hostile, {hostile: hostile}, id=hostile)
    async with talking(made, text(hostile)) as (world, _, _):
        agent = await world.get_agent(CopyDesk, "a\"b'")
        turn = await agent.turns.start(hostile, id=hostile)
        await agent.turns.wait(turn.id)
        address = str(Address.root_of("CopyDesk", "a\"b'"))
        return await copied(world, turn, address)


SECRET = "hunter2"


@scene
async def a_secret() -> str:
    def redact(kind: str, text: str) -> str:
        return text.replace(SECRET, f"<{kind}>")

    signing = call("sign_in", user=f"ann {SECRET}", password="swordfish", id="c1")
    lines = [signing, text(f"Your code {SECRET} works.")]
    found = await sent(*lines, message=f"My code is {SECRET}.", redact=redact)
    assert SECRET not in found
    assert "swordfish" not in found
    assert "Redacted: the arguments of sign_in (c1).\n" in found
    return found


@scene
async def a_redaction_that_leaves_nothing() -> str:
    lines = [call("odd", given="x", id="c1"), call("fail", why="x", id="c2"), text("Hello, Ann.")]
    found = await sent(*lines, message="I am Ann.", redact=lambda kind, text: "(gone)")
    assert "Ann" not in found
    return found


@scene
async def a_client_tool() -> str:
    model = ScriptedModel(call("beep", id="c1"), text("It beeped."))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CopyDesk, "model", model)
        async with running(App(agents=[CopyDesk])) as world, serving(world.app, world) as site:
            one = Served(world, site)
            client = await one.join("/agents/copy-desk/main")
            await say(client, "r1", "Beep!", clientTools=[{"name": "beep"}])
            await done(client, "r1")
            await tool_result(client, "c1", "beep!")
            await done(client, "r1-1")
            found = await copied(world, "r1")
            await one.end()
    assert '"c1": "beep!"' in found
    return found


@scene
async def reasoning() -> str:
    async def thinking(messages: Any, info: Any) -> AsyncIterator[Any]:
        yield {0: DeltaThinkingPart(content="Rivers are long.")}
        yield "6650 km"

    async with running(App(agents=[CopyDesk]), models={CopyDesk: FunctionModel(stream_function=thinking)}) as world:
        found = await copied(world, await (await world.get_agent(CopyDesk, "main")).send("How long?"))
    assert "Not copied: reasoning.\n" in found
    return found


@scene
async def an_empty_answer() -> str:
    said = iter(["", "6650 km"])

    async def hesitating(messages: Any, info: Any) -> AsyncIterator[Any]:
        yield next(said)

    async with running(App(agents=[CopyDesk]), models={CopyDesk: FunctionModel(stream_function=hesitating)}) as world:
        return await copied(world, await (await world.get_agent(CopyDesk, "main")).send("How long?"))


@scene
async def too_many_steps() -> str:
    return await sent(*[call("look", about=f"{at}", id=f"c{at}") for at in range(3)], cls=CopyHasty)


@scene
async def too_many_retries() -> str:
    return await sent(*[call("doubt", river="Nil", id=f"c{at}") for at in range(3)], cls=CopyHasty)


@scene
async def a_message_received_during_the_turn() -> str:
    gate = asyncio.Event()
    pupil = ScriptedModel(text("I study.", gate=gate), text(" Faster now."))
    desk = ScriptedModel(
        call("spawn_agent", agent="pupil", name="p", message="Study!", id="c1"),
        call("send_message", name="p", message="Hurry!", id="c2"),
        text("Told."),
    )
    async with running(App(agents=[CopyDesk]), models={CopyDesk: desk, CopyPupil: pupil}) as world:
        agent = await world.get_agent(CopyDesk, "main")
        turn = await agent.turns.start("Teach.")
        await world.until(lambda: bool(pupil.asked))
        await agent.turns.wait(turn.id)
        gate.set()
        await world.until(lambda: len(pupil.asked) == 2)
        await world.settled()
        (row,) = (await ask(world, "agents", address="CopyDesk:main"))["rows"]
        (work,) = (await ask(world, "works", address=row["address"]))["rows"]
        found = await copied(world, work["work"], row["address"])
    assert "Not copied: messages received during the turn.\n" in found
    return found


@scene
async def files() -> str:
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGVsbG8="}
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "What is this?"}, picture]}
    found = await sent(text("A river."), message=[message])
    assert "Not copied: files in messages.\n" in found
    return found


@scene
async def dependencies_and_a_debounce() -> str:
    async with talking(text("All there."), cls=CopyKeeper, deps=CopyWarehouse()) as (world, agent, _):
        turn = await agent.turns.start("How many?")
        await world.clock.advance(CopyKeeper.debounce)
        return await copied(world, await agent.turns.wait(turn.id), "CopyKeeper")


@scene
async def no_records() -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CopyDesk, "record_retention", None)
        return await sent(call("look", about="x", id="c1"), fails(RuntimeError("out of order")))


USUAL = (
    "several_steps",
    "parallel_tools",
    "an_approval",
    "a_nested_sub_agent",
    "a_model_that_fails",
    "hostile_names",
    "a_secret",
)
"""What `just check` copies; `.ci/run` copies all."""


def changed(source: str, most: int) -> list[str]:
    """Return a test once for each of the last texts of its model, with another word in it."""
    count = len(list(_texts(ast.parse(source))))
    found: list[str] = []
    for at in range(max(count - most, 0), count):
        tree = ast.parse(source)
        word = list(_texts(tree))[at]
        word.value = f"{word.value} otherwise" if " " in str(word.value) else f"{word.value}x"
        found.append(ast.unparse(tree))
    return found


def _texts(tree: ast.Module) -> list[ast.Constant]:
    """Return the texts of a model: what it says, the tools it calls, and the arguments; no ids."""
    scripts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("model")
    ]
    return [text for script in scripts for text in _texts_of(script)]


def _texts_of(script: ast.expr) -> list[ast.Constant]:
    ids = {id(one.value) for one in ast.walk(script) if isinstance(one, ast.keyword) and one.arg == "id"}
    ids |= {id(one) for node in ast.walk(script) if isinstance(node, ast.Dict) for one in node.keys}
    errors = [
        node for node in ast.walk(script) if isinstance(node, ast.Call) and ast.unparse(node.func) == "RuntimeError"
    ]
    ids |= {id(one) for error in errors for one in ast.walk(error)}
    return [
        node
        for node in ast.walk(script)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value and id(node) not in ids
    ]


class Outcomes:
    """Notes how tests end."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.passed[Path(report.fspath).stem] = report.passed
            if not report.passed:
                self.problems.append(str(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(str(report.longrepr))


def run(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """Run test files with pytest, as a project does that has no more than anyio's plugin."""
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    for name, source in files.items():
        (folder / name).write_text(source)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    outcomes = Outcomes()
    # What takes long at the end of each session, and tests do not need.
    left_out = [f"-pno:{one}" for one in ("unraisableexception", "threadexception", "doctest", "unittest", "logging")]
    options = [
        *left_out,
        "--assert=plain",
        "-p",
        "anyio",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
        f"--rootdir={folder}",
    ]
    with contextlib.redirect_stdout(None):
        pytest.main([*options, "--import-mode=importlib", "-c", str(folder / "pytest.ini"), str(folder)], [outcomes])
    return outcomes


@pytest.mark.parametrize("name", [*USUAL, *slow(name for name in SCENES if name not in USUAL)])
def test_a_copy_passes_and_fails_with_another_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, tmp_path, monkeypatch, most=1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENES)
def test_a_copy_fails_with_each_other_word(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, tmp_path, monkeypatch, most=100)


def check(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, most: int) -> None:
    source = play(SCENES[name]())
    others = {f"test_changed_{at}.py": one for at, one in enumerate(changed(source, most))}

    same = {"test_same.py": ast.unparse(ast.parse(source))} if most > 1 else {}
    outcomes = run(folder, {"test_copy.py": source, **same, **others}, monkeypatch)

    assert outcomes.passed.get("test_copy"), (source, outcomes.problems)
    assert not same or outcomes.passed.get("test_same")
    assert [name for name in others if outcomes.passed.get(Path(name).stem, True)] == []
    assert others or name == "cancelled_before_a_word"


async def test_a_copy_fails_if_a_tool_that_runs_returns_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    source = await tools_that_run()
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - it is a test
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    await test()

    async def look(self: Any, about: str) -> dict[str, Any]:
        """Look something up."""
        return {"about": about, "km": 6651}

    monkeypatch.setattr(CopyDesk, "look", tool(look))
    with pytest.raises(AssertionError, match=r"look with the id 'c1' returned .*6651.*; recorded is .*6650"):
        await test()


async def test_what_cannot_be_copied_is_said() -> None:
    async with talking(call("pay", amount=3, id="c1"), text("Done.")) as (world, agent, _):
        turn = await agent.send("Pay.")
        with pytest.raises(InvalidArguments, match="is waiting: wait until it has ended"):
            await copied(world, turn)
        with pytest.raises(NotFound, match="no turn 'other'"):
            await copied(world, "other")
    async with running(App(agents=[agents.CopyResponder])) as world:
        agent = await world.get_agent(agents.CopyResponder, "main")
        turn = await agent.send("Hi")
        with pytest.raises(InvalidArguments, match=r"respond\(\)"):
            await copied(world, turn, "CopyResponder")


async def test_a_turn_that_did_not_begin_or_was_cancelled_after_its_answer_cannot_be_copied() -> None:
    gate = asyncio.Event()
    async with talking(text("Once upon", gate=gate), text(" a time", stalls=True)) as (world, agent, model):
        first = await agent.turns.start("Tell me a story.")
        second = await agent.turns.start("Another one.")
        await agent.turns.cancel(second.id)
        with pytest.raises(InvalidArguments, match="is cancelled: it did not begin"):
            await copied(world, second)
        gate.set()
        await agent.turns.wait(first.id)
        continuing = asyncio.create_task(agent.turns.continue_last())
        await world.until(lambda: model.is_stalled)
        await agent.turns.cancel()
        with pytest.raises(InvalidArguments, match="was continued and then cancelled"):
            await copied(world, await continuing)
