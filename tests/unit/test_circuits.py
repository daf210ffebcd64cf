"""Circuits: what opens them, what closes them, how many are remembered."""

from __future__ import annotations

import pytest

from sapwood import Agent, Breaker
from sapwood.errors import CircuitOpen
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.rpc.circuits import Circuits

BREAKER = Breaker(failures=2, reset_after=10)


class Mill(Agent):
    async def grind(self) -> None: ...


MILL = known(Mill)


def opened(at: float) -> Circuits:
    """Return circuits of which that of `Mill.grind` has opened at this time."""
    circuits = Circuits()
    for _ in range(2):
        assert not circuits.enter(BREAKER, MILL, "grind", at)
        circuits.fail(BREAKER, MILL, "grind", at, decides=False)
    return circuits


def refused(circuits: Circuits, at: float) -> float:
    """Return after how many seconds a refused call is to be made again."""
    with pytest.raises(CircuitOpen, match=r"Mill\.grind was not called: the circuit breaker is open") as error:
        circuits.enter(BREAKER, MILL, "grind", at)
    return error.value.retry_after


def test_an_open_circuit_says_when_to_come_again() -> None:
    circuits = opened(at=100)
    assert refused(circuits, 100) == 10
    assert refused(circuits, 109) == 1


def test_it_never_says_later_than_the_breaker() -> None:
    at = 508.917219869216
    assert at + BREAKER.reset_after - at > BREAKER.reset_after  # rounded
    assert refused(opened(at), at) == BREAKER.reset_after


def test_then_one_call_is_let_through_and_closes_it() -> None:
    circuits = opened(at=100)
    assert circuits.enter(BREAKER, MILL, "grind", 110)
    assert refused(circuits, 110) == 10

    circuits.succeed(BREAKER, MILL, "grind", decides=True)

    assert not circuits.enter(BREAKER, MILL, "grind", 110)
    assert len(circuits) == 0


def test_or_keeps_it_open() -> None:
    circuits = opened(at=100)
    assert circuits.enter(BREAKER, MILL, "grind", 110)
    circuits.fail(BREAKER, MILL, "grind", 115, decides=True)
    assert refused(circuits, 115) == 10


def test_if_that_call_is_cancelled_or_does_not_end_the_next_one_decides() -> None:
    circuits = opened(at=100)
    assert circuits.enter(BREAKER, MILL, "grind", 110)
    circuits.leave(BREAKER, MILL, "grind", 111, decides=True)
    assert circuits.enter(BREAKER, MILL, "grind", 111)
    assert circuits.enter(BREAKER, MILL, "grind", 121)


def test_calls_that_began_before_it_opened_change_nothing() -> None:
    circuits = opened(at=100)
    circuits.fail(BREAKER, MILL, "grind", 109, decides=False)
    circuits.succeed(BREAKER, MILL, "grind", decides=False)
    circuits.leave(BREAKER, MILL, "grind", 109, decides=False)
    assert refused(circuits, 109) == 1
    assert circuits.enter(BREAKER, MILL, "grind", 110)


def test_only_failures_in_a_row_count() -> None:
    circuits = Circuits()
    for _ in range(5):
        circuits.fail(BREAKER, MILL, "grind", 100, decides=False)
        circuits.succeed(BREAKER, MILL, "grind", decides=False)
        assert not circuits.enter(BREAKER, MILL, "grind", 100)


def test_a_limited_number_is_remembered() -> None:
    circuits = Circuits(most=3)
    for number in range(10):
        circuits.fail(BREAKER, MILL, f"grind_{number}", 100, decides=False)
    assert len(circuits) == 3
