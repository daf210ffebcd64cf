"""The checker of what a broken cluster leaves finds everything that must not be, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.faults.cluster.cell import Node
from tests.faults.cluster.checker import check, check_chain
from tests.faults.cluster.history import Act, History, Kept, Written
from tests.faults.cluster.said import unexpected

from sapwood.kernel.log.records import Message, seal
from sapwood.kernel.ports.log import Record

LIST = "/agents/ledger/a"


def append(item: str, begin: float, end: float = float("inf"), *, place: int = 0) -> Act:
    return Act("append", LIST, item, begin, "n0", end, place)


def read(length: int, last: str, begin: float, end: float) -> Act:
    return Act("read", LIST, "", begin, "n1", end, length, last)


def found(acts: list[Act], items: str, **kept: object) -> list[str]:
    there = Kept([Written(item) for item in items], **kept)  # pyright: ignore[reportArgumentType]
    return check(History(acts, {LIST: there}))


def test_what_may_be_is_not_found() -> None:
    acts = [
        append("a", 0, 1, place=1),
        append("b", 0.5, 2, place=2),
        append("lost", 2),
        append("c", 2.1),  # nobody was told, and it is there
        append("d", 2.2, 4, place=4),
        read(0, "", 0, 0.9),
        read(2, "b", 1.5, 1.9),  # before its writer was told
        read(3, "c", 2.5, 2.6),
        Act("plan", LIST, "p", 0, "n0", 1),
        Act("dig", LIST, "f", 0, "n0", 1),
        Act("carry", LIST, "r", 0, "n0", 5, 0, "r x 1"),
        Act("carry", LIST, "r", 0, "n0"),
    ]

    dug = [("f", 0, "x"), ("f", 1, "y"), ("f", 1, "y"), ("f", 2, "z")]
    assert found(acts, "abcd", due={"p": 5.0}, rung=[("p", 5.0)], dug=dug, fibers={"f": "completed"}) == []


@pytest.mark.parametrize(
    ("acts", "items", "sentence"),
    [
        ([append("a", 0, 1, place=1)], "", "a was acknowledged through n0 and is not in"),
        ([append("a", 0)], "aa", "a is in /agents/ledger/a 2 times"),
        ([], "a", "where nobody put it"),
        ([append("a", 0, 1, place=2), append("b", 0, 1, place=1)], "ab", "was said to be item 2"),
        ([append("a", 0, 1, place=2), append("b", 2, 3, place=1)], "ba", "b (through n0) is before a (through n0)"),
        ([append("a", 0, 1, place=2), append("b", 2)], "ba", "b (through n0) is before a (through n0)"),
        ([append("a", 0, 1, place=1), read(0, "", 1.5, 2)], "a", "a read of 0 items through n1 is older than a"),
        ([append("a", 0), append("b", 0), read(1, "b", 1, 2)], "ab", "was read through n1 as what it never was"),
        ([append("a", 0), read(2, "b", 1, 2)], "a", "was read through n1 as what it never was"),
        ([append("a", 0), read(1, "a", 1, 2), read(0, "", 3, 4)], "a", "a read of 0 items through n1 is older than"),
        ([append("a", 3), read(1, "a", 1, 2)], "a", "a (through n0) is before a read of 1 items"),
    ],
)
def test_a_wrong_list_is_found(acts: list[Act], items: str, sentence: str) -> None:
    problems = found(acts, items)

    assert any(sentence in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("act", "kept", "sentence"),
    [
        (Act("plan", LIST, "p", 0, "n0", 1), {}, "knows nothing of it"),
        (Act("plan", LIST, "p", 0, "n0"), {"due": {"p": 5.0}}, "p of /agents/ledger/a rang 0 times"),
        (Act("plan", LIST, "p", 0), {"due": {"p": 5.0}, "rung": [("p", 5.0), ("p", 6.0)]}, "rang 2 times"),
        (Act("plan", LIST, "p", 0), {"due": {"p": 5.0}, "rung": [("p", 4.9)]}, "rang 0.100 s too early"),
        (Act("dig", LIST, "f", 0, "n0", 1), {}, "f of /agents/ledger/a was begun and did 0 of 3 steps"),
        (
            Act("dig", LIST, "f", 0),
            {"dug": [("f", 0, "x"), ("f", 0, "y"), ("f", 1, "z"), ("f", 2, "z")]},
            "step 0 of f in /agents/ledger/a was completed, and ran again",
        ),
        (Act("carry", LIST, "r", 0), {}, "nobody heard how it ended"),
        (Act("carry", LIST, "r", 0, "n0", 1, 0, "r x 2"), {}, "r ended with 'r x 2'"),
        (Act("carry", LIST, "r", 0, "n0", 1, 0, "failed: no"), {}, "r ended with 'failed: no'"),
    ],
)
def test_wrong_alarms_fibers_and_runs_are_found(act: Act, kept: dict[str, object], sentence: str) -> None:
    problems = found([act], "", **kept)

    assert any(sentence in problem for problem in problems), problems


def test_a_run_that_ended_in_two_ways_is_found() -> None:
    acts = [Act("carry", LIST, "r", 0, "n0", 1, 0, f"r {token} 1") for token in "xy"]

    assert any("ended in 2 ways" in problem for problem in found(acts, ""))


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([Written("a", "n0/1", 1), Written("b", "n1/2", 2), Written("c", "n0/1", 1)], "after items of ownership 2"),
        ([Written("a", "n0/1", 1), Written("b", "n1/2", 1), Written("c", "n1/2", 1)], "used by n0/1 and n1/2"),
    ],
)
def test_what_a_fenced_owner_wrote_is_found(items: list[Written], sentence: str) -> None:
    acts = [append(one.item, 0) for one in items]
    problems = check(History(acts, {LIST: Kept(items)}))

    assert any(sentence in problem for problem in problems), problems


def test_a_list_that_nobody_could_read_is_found() -> None:
    assert check(History([append("a", 0)], {})) == [f"nobody could say at the end what is in {LIST}"]


def message(epoch: int, before: bytes) -> tuple[bytes, bytes]:
    return seal(Message(root=LIST, epoch=epoch, previous=0, before=before, at=0.0, version="0"))


def test_a_chain_with_a_gap_and_one_of_two_owners_are_found() -> None:
    first, digest = message(1, b"")
    second, after = message(2, digest)
    third, _ = message(1, after)

    def problems(*stored: bytes) -> list[str]:
        return check_chain("t", [Record("t", number, data) for number, data in enumerate(stored, 1)])

    assert problems(first, second) == []
    assert "does not follow" in problems(first, third)[0]
    assert "was written by an earlier owner" in problems(first, second, third)[0]
    assert "was changed" in problems(first, second[:-1] + b"\1")[0]


def test_errors_and_damage_in_a_nodes_log_are_told_once_and_a_full_disk_is_not(tmp_path: Path) -> None:
    node = Node("n0", "", cast(Any, None), tmp_path / "n0.log")
    traced = "Traceback (most recent call last):\n  File …\n"
    node.log.write_text(
        "10:00:00 INFO    sapwood is running\n"
        f"10:00:01 ERROR   Task exception was never retrieved\n{traced}KeyError: 3\n"
        f"10:00:02 ERROR   Task exception was never retrieved\n{traced}KeyError: 3\n"
        "10:00:03 ERROR   the log of Ledger:a1 is not whole\n"
        f"10:00:04 ERROR   a call failed\n{traced}OSError: No space left on device\n"
        "TASK main\n    Traceback\n"
    )

    assert unexpected(node) == [
        "n0 wrote: Task exception was never retrieved KeyError: 3",
        "n0 wrote: the log of Ledger:a1 is not whole",
    ]
    assert unexpected(node) == []
