"""Repeated failures in the log: one line per minute and cause, then their number."""

from __future__ import annotations

import logging

import pytest

from sapwood.errors import StoredDataError
from sapwood.kernel.marshal.failure_log import MANY, FailureLog
from sapwood.storage.availability import StorageUnavailable

log = logging.getLogger("sapwood.test")


class Minutes:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Minutes:
    return Minutes()


@pytest.fixture
def failures(now: Minutes) -> FailureLog:
    return FailureLog(now)


def fail(failures: FailureLog, error: Exception, about: str = "Root:a") -> str:
    return failures.report(
        log, logging.WARNING, "%s failed", about, error=error, about=about, traceback=error, with_reference=True
    )


def test_a_repeated_failure_is_one_line_and_then_a_count(
    failures: FailureLog, now: Minutes, caplog: pytest.LogCaptureFixture
) -> None:
    references = set()
    for number in range(100):
        now.seconds = number * 0.5
        references.add(fail(failures, ValueError(f"no item {number}")))
    now.seconds = 61.0
    failures.flush()
    failures.flush()

    (reference,) = references
    assert caplog.messages == [
        f"Root:a failed reference={reference}",
        f"failure repeated count=99 seconds=61: Root:a failed reference={reference}",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_another_tree_another_error_and_the_next_minute_are_lines_of_their_own(
    failures: FailureLog, now: Minutes, caplog: pytest.LogCaptureFixture
) -> None:
    fail(failures, ValueError("no"))
    fail(failures, ValueError("no"), about="Root:b")
    fail(failures, StoredDataError("no"))
    now.seconds = 60.0
    fail(failures, ValueError("no"))

    assert [message.partition(" reference")[0] for message in caplog.messages] == [
        "Root:a failed",
        "Root:b failed",
        "Root:a failed",
        "Root:a failed",
    ]


def test_a_full_disk_is_one_failure_for_all_trees(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        fail(failures, StorageUnavailable("The disk is full."), about=f"Root:{number}")

    assert len(caplog.messages) == 1


def test_many_causes_are_not_remembered_for_ever(failures: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2 * MANY):
        fail(failures, ValueError("no"), about=f"Root:{number}")

    assert len(caplog.messages) == 2 * MANY
    assert len(failures._known) == MANY
