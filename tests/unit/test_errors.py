"""Errors are sentences with a stable code."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from sapwood import errors
from sapwood.address import PathSegment
from sapwood.errors import Aborted, ChildFailed, Crashed, NoSuchMethod, OverLimit, SapwoodError, Unavailable


def every_error() -> list[type[SapwoodError]]:
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, SapwoodError)]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_an_error_says_in_a_sentence_what_happened_without_being_told(error: type[SapwoodError]) -> None:
    message = str(error())

    assert message == (error.__doc__ or "").strip().partition("\n")[0]
    assert message.endswith(".")
    assert message[0].isupper()


def test_every_error_has_a_code_of_its_own() -> None:
    codes = Counter(error.code for error in every_error())

    assert [code for code, uses in codes.items() if uses > 1] == []


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_a_given_message_replaces_the_sentence(error: type[SapwoodError]) -> None:
    assert str(error("There was no wood.")) == "There was no wood."


def test_only_what_may_succeed_later_is_retryable() -> None:
    assert {error.code for error in every_error() if error.retryable} == {"unavailable", "timed_out", "circuit_open"}


def test_an_error_is_sorted_by_who_can_do_something_about_it() -> None:
    families = (errors.UsageError, errors.Refused, errors.Unavailable, errors.StoredDataError, errors.ChildFailed)

    for error in every_error():
        if error is not SapwoodError:
            assert sum(issubclass(error, family) for family in families) == 1


def test_a_failed_child_is_named_by_its_path() -> None:
    path = (PathSegment("Inbox", "alice"), PathSegment("Notebook", "shopping"))

    assert Crashed("no", path=path).path == path
    assert Aborted("enough", path=path).path == path
    assert ChildFailed().path == ()


def test_an_abort_keeps_its_reason_as_it_was_given() -> None:
    assert Aborted({"why": 1}).reason == {"why": 1}
    assert str(Aborted({"why": 1})) == "{'why': 1}"
    assert str(Aborted()) == "The agent was aborted."


def test_a_limit_is_named() -> None:
    assert OverLimit("Too deep.", limit="depth").limit == "depth"


def test_a_missing_method_is_an_attribute_error_too() -> None:
    # So that hasattr() and getattr() with a default work on a stub.
    assert issubclass(NoSuchMethod, AttributeError)


def test_an_error_survives_pickling() -> None:
    assert str(pickle.loads(pickle.dumps(Unavailable("Later.")))) == "Later."  # noqa: S301 - our own bytes
