"""An exception arrives at its caller as what it was, a copy, and something always arrives."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

import pytest

from sapwood.address import PathSegment
from sapwood.errors import Aborted, ChildFailed, Crashed, NotFound, OverLimit, Refused
from sapwood.kernel.marshal.exceptions import crossing, describe

HERE = (PathSegment("Inbox", "alice"), PathSegment("Notebook", "shopping"))
LIMIT = 100_000


def raised(error: BaseException) -> Exception:
    """Return what arrives when an agent raises this."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - that is what is tested
        return crossing(caught, HERE, LIMIT)


class Plain(Exception):
    pass


class Rich(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Picky(Exception):
    def __new__(cls, *args: Any) -> Self:
        if args != ("right",):
            raise ValueError("only the right words")
        return super().__new__(cls, *args)


class Wanting(Exception):
    def __new__(cls, *, needed: int) -> Self:
        return super().__new__(cls)

    def __init__(self, *, needed: int) -> None:
        super().__init__("wanting")


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def picky() -> Picky:
    error = Picky("right")
    error.args = ("wrong",)
    return error


def with_attribute(value: object) -> Exception:
    error = Plain("with an attribute")
    error.value = value  # pyright: ignore[reportAttributeAccessIssue]
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        Plain(),
        KeyError("k"),
        Rich(7, hint="look"),
        Frozen(7),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 3),
        json.JSONDecodeError("m", "doc", 0),
        FileNotFoundError(2, "no such file"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
        ExceptionGroup("several", [ValueError(1), Plain(2)]),
        AssertionError(),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_its_own_type_and_as_crashed(error: Exception) -> None:
    copy = raised(error)

    assert isinstance(copy, type(error))
    assert isinstance(copy, Crashed)
    assert copy is not error
    assert str(copy) == str(error)
    assert copy.path == HERE
    assert type(copy).__name__ == type(error).__name__
    assert "in raised" in copy.remote_traceback
    assert "Raised in Inbox:alice/Notebook:shopping" in "".join(copy.__notes__)


@pytest.mark.parametrize(
    "error",
    [
        Unspeakable(),
        picky(),
        Wanting(needed=1),
        Plain(Opaque()),
        Plain(["\ud800"]),
        Plain([2**80]),
        with_attribute(Opaque()),
        with_attribute(lambda: None),
        ExceptionGroup("several", [Plain(Opaque()), picky()]),
        BaseExceptionGroup("several", [KeyboardInterrupt()]),
        GeneratorExit(),
        RecursionError(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_something_always_arrives(error: Exception) -> None:
    copy = raised(error)

    assert isinstance(copy, Crashed)
    assert copy.path == HERE
    assert isinstance(describe(copy), str)


def test_an_exception_keeps_its_attributes() -> None:
    copy = raised(Rich(7, hint="look here"))

    assert isinstance(copy, Rich)
    assert (copy.code, copy.hint, copy.args) == (7, "look here", ("code 7",))


def test_a_system_error_keeps_its_number() -> None:
    copy = raised(FileNotFoundError(2, "no such file"))

    assert isinstance(copy, OSError)
    assert (copy.errno, copy.strerror) == (2, "no such file")


def test_each_of_several_errors_arrives() -> None:
    copy = raised(ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [Plain(2)])]))

    assert isinstance(copy, ExceptionGroup)
    assert [type(one).__name__ for one in copy.exceptions] == ["ValueError", "ExceptionGroup"]
    inner = copy.exceptions[1]
    assert isinstance(inner, ExceptionGroup)
    assert inner.exceptions[0].args == (2,)


def test_nothing_that_can_change_is_shared_with_the_agent() -> None:
    mutable: list[int] = [1]
    error = with_attribute(mutable)
    error.args = (mutable, (mutable,), ((mutable,),))

    copy = raised(error)
    mutable.append(2)

    assert "2" not in repr(copy.args)
    assert copy.value == [1]  # pyright: ignore[reportAttributeAccessIssue]


def test_causes_arrive_too_and_end_somewhere() -> None:
    first: BaseException = ValueError("0")
    for number in range(1, 50):
        error = Plain(str(number))
        error.__cause__ = first
        first = error

    copy: BaseException | None = raised(first)
    chain: list[str] = []
    while copy is not None:
        chain.append(str(copy))
        copy = copy.__cause__

    assert chain[:3] == ["49", "48", "47"]
    assert len(chain) < 12


@pytest.mark.parametrize(
    "error",
    [Refused("no"), Aborted({"why": 1}), OverLimit("full", limit="depth"), NotFound("gone"), ChildFailed("no")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_sapwoods_own_arrives_as_what_it_is(error: Exception) -> None:
    copy = raised(error)

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy is not error


def test_a_failed_child_keeps_the_path_of_the_agent_that_failed_first() -> None:
    deep = crossing(ValueError("deep"), (*HERE, PathSegment("Page", "1")), LIMIT)

    copy = crossing(deep, HERE, LIMIT)

    assert isinstance(copy, Crashed)
    assert isinstance(copy, ValueError)
    assert copy.path == (*HERE, PathSegment("Page", "1"))
    assert copy.path[-1].name == "1"
    assert copy.remote_traceback


def test_the_reason_of_an_abort_and_the_name_of_a_limit_arrive() -> None:
    aborted, over = raised(Aborted({"why": 1})), raised(OverLimit("full", limit="depth"))

    assert isinstance(aborted, Aborted)
    assert aborted.reason == {"why": 1}
    assert isinstance(over, OverLimit)
    assert (over.limit, over.path) == ("depth", HERE)


def test_an_exception_is_described_by_what_it_says_not_by_its_notes() -> None:
    error = ValueError("no")
    error.add_note("while baking")

    assert describe(error) == "ValueError: no"
