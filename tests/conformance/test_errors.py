"""Errors: what went wrong in another agent arrives as what it is, with where it happened."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conformance.worlds import Run

import sapwood.errors
from sapwood import Agent, ChildFailed, NotFound, OverLimit, Refused, SapwoodError, TimedOut, Unavailable
from sapwood.errors import Aborted, Crashed, UsageError
from sapwood.types import PathSegment


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


class Budget(Exception):
    """An exception with an idea of its own of how it is made."""

    def __init__(self, *, spent: int, allowed: int) -> None:
        super().__init__(f"spent {spent} of {allowed}")
        self.spent = spent
        self.details = {"allowed": [allowed]}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I do not speak")


@dataclass(frozen=True)
class FrozenError(Exception):
    n: int


class Handmade:
    def __str__(self) -> str:
        return "a handmade thing"


RAISES: dict[str, Exception] = {
    "value": ValueError("no good", 3),
    "key": KeyError("missing"),
    "os": FileNotFoundError(2, "No such file", "/tmp/x"),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "stop": StopIteration(3),
    "stop_async": StopAsyncIteration(),
    "assertion": AssertionError(),
    "timeout": TimeoutError("own"),
    "budget": Budget(spent=5, allowed=3),
    "mute": Mute("x"),
    "frozen": FrozenError(3),
    "handmade": ValueError(Handmade()),
    "group": ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "refused": Refused("not you"),
    "usage": UsageError("not so"),
    "unavailable": Unavailable("later"),
    "over_limit": OverLimit("too much", limit="tokens"),
}


class Faulty(Agent):
    async def fail(self, how: str) -> None:
        raise RAISES[how]

    async def fail_with_cause(self) -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            try:
                raise LookupError("second") from error
            except LookupError as middle:
                raise ValueError("third") from middle

    async def fail_below(self, how: str, *names: str) -> None:
        first, *rest = names
        child = await self.sub_agent(Faulty, first)
        if rest:
            await child.fail_below(how, *rest)
        elif how == "cause":
            await child.fail_with_cause()
        else:
            await child.fail(how)

    async def catch_below(self, how: str) -> str:
        child = await self.sub_agent(Faulty, "child")
        try:
            await child.fail(how)
        except Crashed as error:
            return f"{error.code} {type(error).__name__} {error.path[-1][1]}"
        return "nothing"

    async def last_error(self) -> str | None:
        return self.children.status(Faulty, "child").last_error

    async def ping(self) -> str:
        return "pong"


async def test_an_exception_arrives_as_its_own_type_and_as_crashed(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(ValueError, match="no good") as own:
            await faulty.fail("value")
        with pytest.raises(Crashed, match="no good"):
            await faulty.fail("value")

        error = own.value
        assert isinstance(error, Crashed)
        assert error.args == ("no good", 3)
        assert error.path == (PathSegment("Faulty", "f"),)
        assert error.path[-1].name == "f"
        assert error.code == "crashed"
        assert not error.retryable
        assert "in fail\n    raise RAISES[how]" in error.remote_traceback
        assert type(error).__name__ == "ValueError"
        assert error is not RAISES["value"]
        assert await faulty.ping() == "pong"


async def test_the_traceback_shows_where_it_was_raised(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(ValueError, match="no good") as raised:
            await faulty.fail("value")

        (note,) = raised.value.__notes__
        assert note.startswith("Raised in Faulty:f:\nTraceback")
        assert "raise RAISES[how]" in note


async def test_an_exception_with_an_init_of_its_own_keeps_its_message_and_attributes(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(Budget, match="spent 5 of 3") as raised:
            await faulty.fail("budget")

        assert raised.value.spent == 5
        assert raised.value.details == {"allowed": [3]}
        raised.value.details["allowed"].append(99)
        assert RAISES["budget"].details == {"allowed": [3]}  # pyright: ignore[reportAttributeAccessIssue]


async def test_python_s_own_exceptions_keep_what_they_know(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(KeyError) as key:
            await faulty.fail("key")
        assert str(key.value) == "'missing'"
        with pytest.raises(FileNotFoundError, match="No such file") as missing:
            await faulty.fail("os")
        assert (missing.value.errno, missing.value.filename) == (2, "/tmp/x")
        with pytest.raises(UnicodeDecodeError, match="invalid start byte") as decode:
            await faulty.fail("unicode")
        assert decode.value.object == b"\xff"
        with pytest.raises(AssertionError):
            await faulty.fail("assertion")
        with pytest.raises(TimeoutError, match="own") as timeout:
            await faulty.fail("timeout")
        assert not isinstance(timeout.value, TimedOut)


@pytest.mark.parametrize("how", ["stop", "stop_async", "mute", "frozen", "handmade", "group"])
async def test_an_odd_exception_arrives_too(run: Run, how: str) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(Crashed) as raised:
            await faulty.fail(how)

        assert raised.value.path == (("Faulty", "f"),)
        assert type(RAISES[how]).__name__ in raised.value.remote_traceback
        assert await faulty.ping() == "pong"


async def test_an_argument_that_cannot_be_copied_arrives_as_its_text(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(ValueError, match="a handmade thing") as raised:
            await faulty.fail("handmade")

        assert raised.value.args == ("a handmade thing",)


async def test_a_group_of_exceptions_keeps_its_members(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(ExceptionGroup) as raised:
            await faulty.fail("group")

        assert [type(member) for member in raised.value.exceptions] == [ValueError, KeyError]


async def test_through_several_levels_an_error_keeps_the_innermost_path(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(Budget) as raised:
            await faulty.fail_below("budget", "a", "b", "c")

        error = raised.value
        assert isinstance(error, Crashed)
        assert error.path == (("Faulty", "f"), ("Faulty", "a"), ("Faulty", "b"), ("Faulty", "c"))
        assert error.spent == 5
        assert "raise RAISES[how]" in error.remote_traceback
        assert any("Raised in Faulty:f/Faulty:a/Faulty:b/Faulty:c" in note for note in error.__notes__)


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b")])
async def test_the_causes_of_an_error_come_with_it(run: Run, names: tuple[str, ...]) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        with pytest.raises(ValueError, match="third") as raised:
            await (faulty.fail_below("cause", *names) if names else faulty.fail_with_cause())

        middle = raised.value.__cause__
        assert isinstance(middle, LookupError)
        assert middle.args == ("second",)
        assert isinstance(middle.__cause__, KeyError)


@pytest.mark.parametrize(
    ("how", "kind", "code", "retryable"),
    [
        ("refused", Refused, "refused", False),
        ("usage", UsageError, "usage", False),
        ("unavailable", Unavailable, "unavailable", True),
        ("over_limit", OverLimit, "over_limit", False),
    ],
)
async def test_sapwood_s_own_errors_arrive_as_what_they_are(
    run: Run, how: str, kind: type[SapwoodError], code: str, retryable: bool
) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        for call in (faulty.fail(how), faulty.fail_below(how, "a", "b")):
            with pytest.raises(kind) as raised:
                await call
            assert type(raised.value) is kind
            assert (raised.value.code, raised.value.retryable) == (code, retryable)
            assert str(raised.value) == str(RAISES[how])
        if isinstance(raised.value, OverLimit):
            assert raised.value.limit == "tokens"
            assert raised.value.path[-1] == ("Faulty", "b")


async def test_a_caller_may_catch_by_kind_and_go_on(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        assert await faulty.catch_below("budget") == "crashed Budget child"


async def test_the_last_error_shows_in_the_status(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")
        await faulty.catch_below("value")

        assert "ValueError" in str(await faulty.last_error())
        await faulty.catch_below("mute")
        assert "Mute" in str(await faulty.last_error())


KINDS = [value for _, value in inspect.getmembers(sapwood.errors, inspect.isclass) if issubclass(value, SapwoodError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_code_a_message_and_says_whether_to_retry(kind: type[SapwoodError]) -> None:
    error = kind()

    assert error.code.replace("_", "").isalpha()
    assert isinstance(error.retryable, bool)
    assert str(error).endswith(".")


def test_no_two_errors_share_a_code() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", [Crashed, Aborted, TimedOut, OverLimit, NotFound])
def test_every_way_a_child_fails_has_its_path(kind: type[ChildFailed]) -> None:
    error = kind("why", path=(PathSegment("Root", "r"), PathSegment("Child", "c")))

    assert isinstance(error, ChildFailed)
    assert error.path == (("Root", "r"), ("Child", "c"))
    assert str(error) == "why"
    assert error.retryable == (kind is TimedOut)


async def test_one_error_raised_to_many_callers_is_a_copy_for_each(run: Run) -> None:
    async with run(Faulty) as world:
        faulty = await world.get_agent(Faulty, "f")

        errors: list[Any] = []
        for _ in range(2):
            with pytest.raises(Budget) as raised:
                await faulty.fail("budget")
            errors.append(raised.value)

        assert errors[0] is not errors[1]
        assert len(errors[0].__notes__) == len(errors[1].__notes__) == 1


class Logged(Agent):
    """Fails where nobody waits for it: only the log tells."""

    async def on_start(self) -> None:
        if self.name == "unstarted":
            raise Refused("not today")

    async def later(self, error: str) -> None:
        self.enqueue(self.fail, error)

    async def as_fiber(self, error: str) -> None:
        self.start_fiber("f", self.fail, error)

    async def fail(self, error: str) -> None:
        errors = {"refused": Refused("no"), "over": OverLimit("too many"), "aborted": Aborted("gone")}
        raise errors.get(error) or ValueError("a mistake")

    async def misspelt(self) -> None:
        self.start_fiber("f", self.call_what_is_not_there)

    async def call_what_is_not_there(self) -> None:
        other: Any = await self.sub_agent(Logged, "other")
        await other.nothing()


@pytest.mark.parametrize("error", ["refused", "over", "aborted"])
@pytest.mark.parametrize("way", ["later", "as_fiber"])
async def test_what_has_to_be_expected_is_logged_in_a_sentence(
    run: Run, caplog: pytest.LogCaptureFixture, way: str, error: str
) -> None:
    async with run(Logged) as world:
        await getattr(await world.get_agent(Logged, "l"), way)(error)
        await world.settled()

    record = next(one for one in caplog.records if "failed" in one.message)
    assert record.exc_info is None
    assert record.message.endswith(("no", "too many", "gone"))


@pytest.mark.parametrize("way", ["later", "as_fiber"])
async def test_a_mistake_is_logged_with_where_it_is(run: Run, caplog: pytest.LogCaptureFixture, way: str) -> None:
    async with run(Logged) as world:
        await getattr(await world.get_agent(Logged, "l"), way)("mistake")
        await world.settled()

    assert next(one for one in caplog.records if "ValueError: a mistake" in one.message).exc_info


async def test_a_method_that_is_not_there_is_a_mistake(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async with run(Logged) as world:
        await (await world.get_agent(Logged, "l")).misspelt()
        await world.settled()

    assert next(one for one in caplog.records if "NoSuchMethod" in one.message).exc_info


async def test_a_start_that_is_refused_is_logged_in_a_sentence(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async with run(Logged) as world:
        with pytest.raises(Refused, match="not today"):
            await world.get_agent(Logged, "unstarted")

    record = next(one for one in caplog.records if "failed to start" in one.message)
    assert record.message.endswith("Refused: not today")
    assert record.exc_info is None
