"""Classes: what cannot work is refused when the class is made, not when it is first used."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai.toolsets import FunctionToolset
from tests.conformance.runtimes import running
from tests.conformance.worlds import Run

from sapwood import Agent, App, ChatAgent, Limits, RemoteSubAgent, agent_tool, expose, persistent_agent
from sapwood.agent_checks import HOOKS, SETTINGS
from sapwood.errors import UsageError


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


def make(class_name: str, /, **members: Any) -> type[Agent[Any]]:
    return type(class_name, (Agent,), members)


async def method(self: Agent) -> None: ...


FRAMEWORK = [
    name
    for name in dir(Agent)
    if not name.startswith(("__", "_sapwood_")) and name not in HOOKS | SETTINGS and name != "_actor"
]


@pytest.mark.parametrize("name", FRAMEWORK)
def test_a_framework_method_that_is_no_hook_cannot_be_overridden(name: str) -> None:
    with pytest.raises(UsageError, match=rf"Mine\.{name} would hide an attribute of Agent.*on_start"):
        make("Mine", **{name: method})


@pytest.mark.parametrize("name", ["name", "sql", "state", "address", "runs", "_actor"])
def test_an_attribute_cannot_take_the_place_of_a_framework_s_name(name: str) -> None:
    with pytest.raises(UsageError, match=rf"Mine\.{name} would hide"):
        make("Mine", **{name: "mine"})


def test_an_init_is_refused_with_what_to_write_instead() -> None:
    def init(self: Any) -> None: ...

    with pytest.raises(UsageError, match=r"Mine must not define __init__.*in on_start\(\)"):
        make("Mine", __init__=init)


def test_what_a_mixin_brings_is_checked_too() -> None:
    class Noisy:
        def sql(self) -> None: ...

    class Initialised:
        def __init__(self) -> None: ...

    with pytest.raises(UsageError, match="sql would hide"):
        type("Mine", (Noisy, Agent), {})
    with pytest.raises(UsageError, match="__init__"):
        type("Mine", (Initialised, Agent), {})


def test_hooks_and_settings_may_be_set() -> None:
    def upgrade_state(self: Any, old: Any, version: int) -> Any: ...

    mine = make("Mine", on_start=method, upgrade_state=upgrade_state, initial_state=1, migrations=(), limits=None)

    assert mine.__dict__["initial_state"] == 1


def test_a_plain_public_method_is_warned_about_because_checkers_cannot_see_that_it_is_awaited() -> None:
    def plain(self: Any) -> int:
        return 1

    with pytest.warns(
        UserWarning, match=r"Mine\.plain is not `async def`.*Write `async def`, or rename it _plain"
    ) as seen:
        make("Mine", plain=plain)

    assert len(seen) == 1


def test_private_async_and_inherited_methods_are_not_warned_about() -> None:
    def _private(self: Any) -> None: ...

    async def stream(self: Any) -> Any:
        yield 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base = make("Base", _private=_private, fine=method, stream=stream, value=3)
        type("Derived", (base,), {})


def test_a_warning_points_at_the_class_that_has_the_method() -> None:
    with pytest.warns(UserWarning, match="is not `async def`") as seen:

        class Mine(Agent):
            def plain(self) -> None: ...

    assert seen[0].filename == __file__
    assert Mine.plain


@pytest.mark.parametrize(
    ("base", "name", "value", "meant"),
    [
        (Agent, "limit", Limits(children=3), "limits"),
        (Agent, "migration", ["CREATE TABLE t (a) STRICT"], "migrations"),
        (Agent, "run_retentio", {}, "run_retention"),
        (ChatAgent, "limit", Limits(children=3), "limits"),
        (ChatAgent, "instruction", "Be kind.", "instructions"),
        (ChatAgent, "max_step", 3, "max_steps"),
        (Agent, "on_state_change", method, "on_state_changed"),
        (Agent, "onstart", method, "on_start"),
        (ChatAgent, "before_tool_cal", method, "before_tool_call"),
        (RemoteSubAgent, "on_run_finished", method, "on_run_finish"),
        (ChatAgent, "on_turn_end", method, "after_turn"),
        (ChatAgent, "on_agent_start", method, "before_turn"),
        (ChatAgent, "on_agent_complete", method, "after_turn"),
        (ChatAgent, "on_agent_fail", method, "after_turn"),
        (ChatAgent, "on_turn_finish", method, "after_turn"),
        (ChatAgent, "on_turn_complete", method, "after_turn"),
        (ChatAgent, "on_turn_start", method, "before_turn"),
        (ChatAgent, "on_child_finish", method, "on_run_finish"),
        (Agent, "on_run_end", method, "on_run_finish"),
        (Agent, "on_run_complete", method, "on_run_finish"),
    ],
)
def test_a_misspelt_setting_or_hook_is_asked_about(base: type, name: str, value: Any, meant: str) -> None:
    with pytest.warns(UserWarning, match=rf"Mine\.{name} is not a (setting|hook).*Did you mean {meant}\?") as seen:
        type("Mine", (base,), {name: value})

    assert len(seen) == 1


class Clerical(Agent):
    async def on_run(self, input: str) -> str:
        return input


@pytest.mark.parametrize(
    ("tools", "sentence"),
    [
        (
            agent_tool(Clerical, description="Help."),
            "Mine.tools must be a tuple of tools, got agent_tool(Clerical). Write tools = (agent_tool(Clerical),).",
        ),
        (
            persistent_agent(Clerical, description="Help."),
            (
                "Mine.tools must be a tuple of tools, got persistent_agent(Clerical). "
                "Write tools = (persistent_agent(Clerical),)."
            ),
        ),
        (method, "Mine.tools must be a tuple of tools, got the function method. Write tools = (method,)."),
        (
            Clerical,
            "Mine.tools must be a tuple of tools, got the class Clerical. Write tools = (agent_tool(Clerical),).",
        ),
        ("look", "Mine.tools must be a tuple of tools, got 'look'. Write tools = (…,)."),
        (42, "Mine.tools must be a tuple of tools, got 42. Write tools = (…,)."),
        (None, "Mine.tools must be a tuple of tools, got None. Write tools = (…,)."),
        (("look",), "Mine.tools must not contain a string, got 'look'. Write the function itself."),
    ],
)
def test_tools_without_a_tuple_are_refused(tools: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        type("Mine", (ChatAgent,), {"tools": tools})

    assert str(refused.value) == sentence


def test_toolsets_without_a_tuple_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Mine\.tools must be a tuple of tools, got <"):
        type("Mine", (ChatAgent,), {"tools": FunctionToolset()})


@pytest.mark.parametrize(
    ("tools", "remedy"),
    [
        ((Agent,), r"got Agent\. Write agent_tool\(Agent\) or persistent_agent\(Agent\)\."),
        ([method, int], r"got int\. Write int\(…\)\."),
    ],
)
def test_a_class_in_tools_is_refused(tools: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=rf"Mine\.tools must not contain a class, {remedy}"):
        type("Mine", (ChatAgent,), {"tools": tools})


def test_an_agent_as_a_tool_outside_of_tools_is_warned_about() -> None:
    ask = agent_tool(Clerical, description="Writes.")
    with pytest.warns(UserWarning, match=r"Mine\.ask is agent_tool\(Clerical\), but .* Write tools = ") as seen:
        type("Mine", (ChatAgent,), {"ask": ask})

    assert len(seen) == 1
    type("Mine", (ChatAgent,), {"ask": ask, "tools": (ask,)})  # a warning would be an error here


def test_a_misspelt_hook_that_is_plain_is_asked_about() -> None:
    def is_read_only(self: Any, connection: Any) -> bool:
        return True

    with pytest.warns(UserWarning, match=r"is not a hook.*Did you mean is_readonly\?"):
        make("Mine", is_read_only=is_read_only)


def test_names_that_are_somewhat_like_settings_and_hooks_are_free() -> None:
    class Honest(ChatAgent):
        model_name = "large"
        models = ("large", "small")
        mode = "fast"
        limits_page = "/limits"
        tool = None
        limit: int = 20
        page_limit = 20

        async def before_run(self) -> None: ...

        async def get_mode(self) -> str:
            return self.mode

        async def get_models(self) -> tuple[str, ...]:
            return self.models

        @expose
        async def on_messages(self) -> None: ...

    class Derived(Honest): ...

    assert Derived.limit == 20


def test_a_misspelt_setting_is_asked_about_where_it_is_written_and_once() -> None:
    with pytest.warns(UserWarning, match="Did you mean instructions") as seen:

        class Vague(ChatAgent):
            instruction = "Be kind."

    class Vaguer(Vague): ...

    assert [one.filename for one in seen] == [__file__]
    assert Vaguer.instruction


async def test_names_that_only_the_user_has_are_free(run: Run) -> None:
    class Free(Agent):
        async def on_start(self) -> None:
            self.tasks = [1]
            self.actor = "mine"
            self.registry = {"a": 1}

        async def database(self) -> tuple[list[int], str, dict[str, int]]:
            return self.tasks, self.actor, self.registry

        async def call(self) -> str:
            return "called"

        async def stub(self) -> str:
            return "stubbed"

        async def child_names(self) -> str:
            return "mine"

    async with run(Free) as world:
        free = await world.get_agent(Free, "f")

        assert await free.database() == ([1], "mine", {"a": 1})
        assert [await free.call(), await free.stub(), await free.child_names()] == ["called", "stubbed", "mine"]


async def test_a_chat_agent_written_in_a_function_may_name_its_neighbours_there(run: Run) -> None:
    @dataclass
    class Neighbour:
        value: int

    class Local(ChatAgent):
        async def value_of(self, neighbour: Neighbour) -> int:
            return neighbour.value

    async with run(Local) as world:
        assert await (await world.get_agent(Local, "l")).value_of(Neighbour(3)) == 3


async def test_agents_may_share_a_base_class_and_a_mixin(run: Run) -> None:
    class Counting:
        count = 0

        async def add(self) -> int:
            self.count += 1
            return self.count

    class Base(Agent):
        async def who(self) -> str:
            return f"{type(self).__name__} {self.name}"

    class One(Counting, Base): ...

    class Two(Base, Counting): ...

    async with run(One, Two) as world:
        one, two = await world.get_agent(One, "x"), await world.get_agent(Two, "x")

        assert await asyncio.gather(one.add(), one.add(), two.add()) == [1, 2, 1]
        assert [await one.who(), await two.who()] == ["One x", "Two x"]


async def test_an_exposed_method_is_called_as_any_other(run: Run) -> None:
    class Open(Agent):
        @expose
        async def greet(self, name: str) -> str:
            return f"hello {name}"

    async with run(Open) as world:
        assert await (await world.get_agent(Open, "o")).greet("you") == "hello you"


def test_an_agent_is_not_made_by_calling_its_class() -> None:
    class Plain(Agent):
        pass

    with pytest.raises(UsageError, match=r"await app\.get_agent\(Plain, name\)"):
        Plain()


def test_a_method_without_self_and_a_plain_on_start_are_refused_when_the_class_is_made() -> None:
    async def go() -> None: ...

    def hasty(self: Agent) -> None: ...

    with pytest.raises(UsageError, match="Add self as the first parameter"):
        make("Selfless", go=go)
    with pytest.raises(UsageError, match="must be `async def`"):
        make("Hasty", on_start=hasty)


def test_what_an_app_and_its_limits_are_given_is_checked_at_once() -> None:
    class Plain(Agent):
        pass

    app: Any = App
    with pytest.raises(UsageError, match=r"Write agents=\[Plain\]"):
        app(agents=Plain)
    with pytest.raises(UsageError, match="must be Settings"):
        app(agents=[Plain], settings={"data": "x"})
    with pytest.raises(UsageError, match=r"Limits\(children=-1\)"):
        Limits(children=-1)
    with pytest.raises(UsageError, match=r"Limited\.limits must be Limits\(…\), got a dict"):
        make("Limited", limits={"children": 3})


async def test_reading_a_stream_with_await_says_how_to_read_it() -> None:
    class Spring(Agent):
        async def drops(self) -> AsyncIterator[int]:
            yield 1

    async with running(App(agents=[Spring])) as world:
        spring: Any = await world.get_agent(Spring, "s")

        with pytest.raises(UsageError, match="async for"):
            await spring.drops()
