"""`with_options`: timeouts, retries, idempotency keys and circuit breakers of calls through a stub."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.worlds import Run, until
from tests.machine import patience

from sapwood import (
    Agent,
    Breaker,
    ChildFailed,
    Limits,
    NotFound,
    OverLimit,
    Refused,
    Retry,
    SapwoodError,
    TimedOut,
    Unavailable,
    deadline,
    with_options,
)
from sapwood.errors import Aborted, CircuitOpen, Crashed, KeyReused, NotCopyable, UsageError
from sapwood.testing import World
from sapwood.timings import Timings

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
AT_ONCE = Retry(max_attempts=5, initial_delay=timedelta(0))
BREAKER = Breaker(failures=3, reset_after=1000)
STEADY = Retry(max_attempts=4, initial_delay=timedelta(seconds=0.2), max_delay=timedelta(seconds=0.2))


@dataclass
class Bank:
    """Seen by the test and by its agents alike."""

    log: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)
    errors: list[Exception] = field(default_factory=list[Exception])
    """What the next calls raise, first in first."""

    async def seen(self, entry: str) -> None:
        """Return when an agent has written this entry."""
        await until(lambda: entry in self.log)

    def fail(self) -> None:
        """Raise what is next."""
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def bank() -> Bank:
    """Return what the agents of a test share with it."""
    return Bank()


class Till(Agent):
    """An agent that charges, and has tills like itself below it."""

    deps: Bank
    migrations = ("CREATE TABLE charges (amount INTEGER NOT NULL) STRICT",)

    async def charge(self, amount: int = 1) -> int:
        """Charge in one slice, then fail if that is next."""
        self.deps.log.append(f"charge {amount}")
        self.sql("INSERT INTO charges VALUES (?)", amount)
        self.deps.fail()
        return self.sql("SELECT count(*) FROM charges").scalar(int)

    async def charge_slowly(self, amount: int = 1) -> int:
        """Charge after an await."""
        self.deps.log.append(f"slow {amount}")
        await self.deps.go.wait()
        return await self.charge(amount)

    async def bill(self, lines: dict[str, set[str]], note: str = "") -> str:
        self.deps.log.append("bill")
        return f"{len(lines)}{note}"

    async def fail_with_cause(self) -> None:
        self.deps.log.append("fail")
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM charges").scalar(int)

    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number
        await self.deps.go.wait()

    async def tell(self, hear: Callable[[str], Any]) -> None:
        await hear("told")
        self.deps.fail()

    async def grow(self, *names: str) -> None:
        if names:
            await (await self.sub_agent(Till, names[0])).grow(*names[1:])

    async def charge_below(self, key: str, *names: str) -> int:
        """Charge the till at the end of this path, with a key and retries."""
        child = await self.sub_agent(Till, names[0])
        if len(names) > 1:
            return await child.charge_below(key, *names[1:])
        return await with_options(child, idempotency_key=key, retry=AT_ONCE).charge(7)

    async def charge_parent(self, key: str) -> int:
        parent = await self.parent_agent(Till)
        return await with_options(parent, idempotency_key=key).charge(7)

    async def let_child_charge(self, name: str, key: str) -> int:
        return await (await self.sub_agent(Till, name)).charge_parent(key)

    async def charge_other(self, key: str) -> int:
        return await with_options(await self.get_agent(Till, "other"), idempotency_key=key).charge(7)

    async def charge_other_from(self, key: str, *names: str) -> int:
        """Charge another root from the till at the end of this path."""
        child = await self.sub_agent(Till, names[0])
        return await (child.charge_other_from(key, *names[1:]) if len(names) > 1 else child.charge_other(key))

    async def start(self, key: str, *names: str) -> None:
        self.start_fiber(key, self.work, key, list(names))

    async def work(self, key: str, names: list[str]) -> None:
        """Charge twice as part of work that is begun again after a crash: below, and at another root."""
        await self.charge_below(key, *names)
        other = await self.get_agent(Till, "other")
        await with_options(other, idempotency_key=key).charge(7)
        self.deps.log.append("worked")

    async def ask_itself(self, key: str) -> int:
        return await (await self.sub_agent(Till, "child")).ask_parent(key)

    async def ask_parent(self, key: str) -> int:
        parent = await self.parent_agent(Till)
        return await with_options(parent, idempotency_key=key).ask_itself(key)

    async def cut(self, name: str) -> None:
        await self.children.delete(Till, name)

    async def stop(self, name: str) -> None:
        self.children.abort(Till, name)


async def till(world: World, depth: int = 0) -> Till:
    """Return a stub of a till that is so far below its root."""
    names = [f"t{level}" for level in range(depth)]
    root = await world.get_agent(Till, "r")
    await root.grow(*names)
    return await world.get_agent(Till, "r", sub=[(Till, name) for name in names]) if depth else root


@pytest.mark.promise("B-3")
async def test_a_second_call_returns_the_outcome_of_the_first(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, depth), idempotency_key="order 17")

        assert await one.charge(5) == 1
        assert await one.charge(5) == 1
        world.sleep()
        assert await one.charge(amount=5) == 1
        await world.crash()
        one = with_options(await till(world, depth), idempotency_key="order 17")
        assert await one.charge(5) == 1

        assert bank.log == ["charge 5"]
        assert await with_options(one, idempotency_key="order 18").charge(5) == 2
        assert await (await till(world, depth)).charge(5) == 3


@pytest.mark.promise("B-3")
async def test_a_second_call_raises_what_the_first_raised(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, depth), idempotency_key="k", retry=AT_ONCE)

        for _ in range(2):
            with pytest.raises(ValueError, match="second") as raised:
                await one.fail_with_cause()
            assert isinstance(raised.value, Crashed)
            assert len(raised.value.path) == depth + 1
            assert isinstance(raised.value.__cause__, KeyError)
            assert "fail_with_cause" in raised.value.remote_traceback

        assert bank.log == ["fail"]


async def test_what_a_method_wrote_before_it_raised_is_kept_with_its_error(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), idempotency_key="k")
        bank.errors = [ValueError("declined"), ValueError("never")]

        for _ in range(2):
            with pytest.raises(ValueError, match="declined"):
                await one.charge()

        assert await (await till(world)).count() == 1


async def test_a_retryable_error_is_not_kept_and_what_its_slice_wrote_is_undone(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        bank.errors = [Unavailable("later"), Unavailable("later")]

        with pytest.raises(Unavailable, match="later"):
            await with_options(root, idempotency_key="k").charge()
        assert await root.count() == 0

        assert await with_options(root, idempotency_key="k", retry=AT_ONCE).charge() == 1
        assert bank.log.count("charge 1") == 3


async def test_a_call_made_meanwhile_waits_for_the_first(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, depth), idempotency_key="k")
        calls = [asyncio.create_task(one.charge_slowly()) for _ in range(3)]
        await bank.seen("slow 1")

        with pytest.raises(KeyReused):
            await one.charge_slowly(2)
        bank.go.set()

        assert await asyncio.gather(*calls) == [1, 1, 1]
        assert bank.log == ["slow 1", "charge 1"]


async def test_if_the_first_call_is_cancelled_one_that_waits_carries_it_out(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), idempotency_key="k")
        first = asyncio.create_task(one.charge_slowly())
        await bank.seen("slow 1")
        second = asyncio.create_task(one.charge_slowly())
        with pytest.raises(TimedOut):
            await with_options(one, timeout=0.01).charge_slowly()

        first.cancel()
        await until(lambda: bank.log.count("slow 1") == 2)
        bank.go.set()

        assert await second == 1
        assert bank.log.count("charge 1") == 1


async def test_a_key_stands_for_one_method_and_its_arguments(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), idempotency_key="k")
        await one.charge(5)
        with pytest.raises(KeyReused, match=r"'k' was used before with other arguments, and now for Till.charge"):
            await one.charge(6)
        with pytest.raises(KeyReused, match=r"for charge\(\), and now for Till.count"):
            await one.count()

        other = with_options(one, idempotency_key="l")
        lines = {"a": {"x", "y", "z"}, "b": {"u"}}
        await other.bill(lines, "!")
        # Equal arguments are the same, whatever their order and whether they come by name.
        assert await other.bill(note="!", lines={"b": {"u"}, "a": {"z", "y", "x"}}) == "2!"
        with pytest.raises(KeyReused):
            await other.bill({"a": {"x"}, "b": {"u"}}, "!")
        assert bank.log == ["charge 5", "bill"]


async def test_keys_of_two_callers_do_not_meet(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)

        assert await root.let_child_charge("a", "k") == 1
        assert await root.let_child_charge("b", "k") == 2
        assert await with_options(root, idempotency_key="k").charge(7) == 3

        assert await root.let_child_charge("a", "k") == 1
        assert await with_options(root, idempotency_key="k").charge(7) == 3


@pytest.mark.promise("B-3")
async def test_a_caller_that_was_deleted_and_created_again_has_new_keys(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        assert await root.let_child_charge("a", "k") == 1
        assert await root.charge_other_from("k", "a", "b") == 1

        await root.cut("a")

        assert await root.let_child_charge("a", "k") == 2
        assert await root.let_child_charge("a", "k") == 2
        assert await root.charge_other_from("k", "a", "b") == 2
        assert await root.charge_other_from("k", "a", "b") == 2


async def test_a_call_that_would_wait_for_itself_is_refused(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        await root.grow("child")
        child = await world.get_agent(Till, "r", sub=[(Till, "child")])

        with pytest.raises(UsageError, match="waits for itself"):
            await child.ask_parent("k")


async def test_two_calls_that_would_wait_for_each_other_are_refused(run: Run, bank: Bank) -> None:
    """The parent pays and has the child confirm, while the child confirms and has the parent pay."""

    class Payer(Agent):
        deps: Bank

        async def begin(self) -> None:
            child = await self.sub_agent(Confirmer, "c")
            await with_options(child, idempotency_key="confirm").confirm("parent")

        async def make(self) -> None:
            await self.sub_agent(Confirmer, "c")

        async def pay(self, by: str) -> None:
            self.deps.log.append("pay")
            await self.deps.go.wait()
            child = await self.sub_agent(Confirmer, "c")
            await with_options(child, idempotency_key="confirm").confirm("parent")

    class Confirmer(Agent):
        deps: Bank

        async def begin(self) -> None:
            parent = await self.parent_agent(Payer)
            await with_options(parent, idempotency_key="pay").pay("child")

        async def confirm(self, by: str) -> None:
            self.deps.log.append("confirm")
            await self.deps.go.wait()
            parent = await self.parent_agent(Payer)
            await with_options(parent, idempotency_key="pay").pay("child")

    async with asyncio.timeout(patience()), run(Payer, deps=bank) as world:
        payer = await world.get_agent(Payer, "p")
        await payer.make()
        confirmer = await world.get_agent(Payer, "p", sub=[(Confirmer, "c")])
        calls = [asyncio.create_task(payer.begin()), asyncio.create_task(confirmer.begin())]
        await bank.seen("pay")
        await bank.seen("confirm")
        bank.go.set()

        ended = await asyncio.gather(*calls, return_exceptions=True)

        assert any(isinstance(one, UsageError) and "waits for itself" in str(one) for one in ended)


async def test_outcomes_are_kept_for_a_day(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), idempotency_key="k")
        assert await one.charge() == 1
        await world.clock.advance(DAY - SECOND)
        assert await one.charge() == 1
        await world.clock.advance(SECOND)
        assert await one.charge() == 2


async def test_how_long_outcomes_are_kept_is_a_setting(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank, idempotency_retention=10.0) as world:
        one = with_options(await till(world), idempotency_key="k")
        assert await one.charge() == 1
        await world.clock.advance(11 * SECOND)
        assert await one.charge(2) == 2


async def test_the_oldest_keys_are_forgotten_when_there_are_too_many(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank, timings=Timings(idempotency_keys=3)) as world:
        root = await till(world)
        for number in range(5):
            await with_options(root, idempotency_key=f"k{number}").charge()
            await world.clock.advance(SECOND)

        kept = [await with_options(root, idempotency_key=f"k{number}").charge() for number in (4, 3, 2)]
        assert kept == [5, 4, 3]
        assert await with_options(root, idempotency_key="k0").charge() == 6


async def test_a_deleted_agent_forgets_its_keys(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root, child = await till(world), await till(world, 1)
        one = with_options(child, idempotency_key="k", retry=AT_ONCE)
        assert await one.charge() == 1

        await root.cut("t0")
        with pytest.raises(NotFound):
            await one.charge()
        await root.grow("t0")

        assert await one.charge() == 1
        assert bank.log == ["charge 1", "charge 1"]


@pytest.mark.core("workers", "cluster")
@pytest.mark.promise("B-3")
async def test_work_that_crashes_at_any_commit_takes_effect_once(run: Run, level: str, bank: Bank) -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        bank.log.clear()
        async with run(Till, deps=bank) as world:
            last = await till(world, 3)
            root, other = await till(world), await world.get_agent(Till, "other")
            await root.count()
            await other.count()
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await root.start("k", "t0", "t1", "t2")
                await root.count()
            with contextlib.suppress(AssertionError):
                await until(lambda: "worked" in bank.log or world.points.ended)
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            root, other = await till(world), await world.get_agent(Till, "other")
            await root.start("k", "t0", "t1", "t2")  # if the first start was lost
            await bank.seen("worked")

            last = await till(world, 3)
            assert (await last.count(), await other.count()) == (1, 1), f"crashed at commit {nth}"
    assert nth > 4


async def test_functions_and_generators_take_no_key(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), idempotency_key="k")
        with pytest.raises(NotCopyable, match="takes no function"):
            await one.tell(print)
        with pytest.raises(UsageError, match="is a generator and accepts no idempotency_key"):
            one.numbers(3)


async def test_a_result_that_is_too_large_is_an_outcome_too(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank, limits=Limits(payload_bytes=2000)) as world:
        one = with_options(await till(world), idempotency_key="k")
        bank.errors = [ValueError("x" * 10_000)]
        for _ in range(2):
            with pytest.raises(Crashed, match="ValueError: xxx"):
                await one.charge()
        assert bank.log == ["charge 1"]


@pytest.mark.promise("B-3")
async def test_a_call_that_takes_longer_than_its_timeout_is_cancelled(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = await till(world, depth)
        await one.count()

        with pytest.raises(TimedOut) as late:
            await with_options(one, timeout=0.5).charge_slowly()

        assert len(late.value.path) == depth + 1
        bank.go.set()
        assert await with_options(one, timeout=5).charge_slowly(2) == 1


async def test_a_timeout_holds_for_all_attempts_together(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        bank.errors = [Unavailable(str(number)) for number in range(100)]
        patient = Retry(max_attempts=100, initial_delay=SECOND / 2, max_delay=SECOND / 2)
        loop = asyncio.get_running_loop()
        began = loop.time()

        with pytest.raises(Unavailable):
            await with_options(root, timeout=1, retry=patient).charge()

        assert loop.time() - began < 1 + patience(5)
        assert len(bank.log) < 100


async def test_a_tighter_deadline_around_a_call_counts(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        with pytest.raises(TimedOut), deadline(0.5):
            await with_options(root, timeout=1000).charge_slowly()


async def test_generators_take_a_timeout(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        numbers = with_options(root, timeout=0.5).numbers(3)
        assert [await anext(numbers) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(TimedOut):
            await anext(numbers)


@pytest.mark.promise("B-3")
async def test_a_call_that_was_unavailable_is_made_again(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, depth), retry=AT_ONCE)
        bank.errors = [Unavailable("one"), TimedOut("two")]

        # Without a key, what each attempt wrote stays.
        assert await one.charge() == 3


async def test_retries_end_with_the_last_error(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        bank.errors = [Unavailable(str(number)) for number in range(10)]
        with pytest.raises(Unavailable, match="4"):
            await with_options(root, retry=AT_ONCE).charge()
        assert len(bank.log) == AT_ONCE.max_attempts


async def test_errors_of_the_method_s_own_are_not_retried(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), retry=AT_ONCE)
        for error in (ValueError("own"), Refused("no"), OverLimit("full")):
            bank.errors = [error]
            with pytest.raises(type(error)):
                await one.charge()
        assert len(bank.log) == 3


async def test_a_cancelled_caller_makes_no_further_attempt(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), retry=Retry(initial_delay=DAY, max_delay=DAY))
        bank.errors = [Unavailable("later")]
        call = asyncio.create_task(one.charge())
        await bank.seen("charge 1")

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        await one.count()
        assert bank.log == ["charge 1"]


async def test_arguments_are_those_of_the_moment_of_the_call(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), retry=AT_ONCE)
        lines = {"a": {"x"}}
        call = one.bill(lines)
        lines["b"] = {"y"}
        assert await call == "1"


async def test_each_attempt_may_call_back(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        heard: list[str] = []

        async def hear(text: str) -> None:
            heard.append(text)

        bank.errors = [Unavailable("later")]
        await with_options(await till(world), retry=AT_ONCE).tell(hear)
        assert heard == ["told", "told"]


async def test_a_call_that_outlives_the_process_of_its_agent_is_made_again(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, 1), idempotency_key="k", retry=STEADY)
        call = asyncio.create_task(one.charge_slowly())
        await bank.seen("slow 1")
        await world.crash()
        bank.go.set()
        error = await failure(lambda: call)  # where the caller's own node has ended, too
        assert error is None or (error.retryable and getattr(error, "path", ())[-1:] == (("Till", "t0"),))

        again = with_options(await till(world, 1), idempotency_key="k", retry=STEADY)
        assert await again.charge_slowly() == 1
        assert bank.log.count("charge 1") == 1


async def fail_three_times(one: Till, bank: Bank) -> None:
    bank.errors = [Unavailable("down")] * 3
    for _ in range(3):
        with pytest.raises(Unavailable, match="down"):
            await one.charge()


@pytest.mark.promise("B-3")
async def test_after_failures_in_a_row_calls_are_refused_at_once(run: Run, bank: Bank, depth: int) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world, depth), breaker=BREAKER)
        await fail_three_times(one, bank)

        with pytest.raises(
            CircuitOpen, match=r"Till.charge was not called: the circuit breaker is open after 3 failures in a row"
        ) as refused:
            await one.charge()

        assert refused.value.retryable
        assert refused.value.code == "circuit_open"
        assert 0 < refused.value.retry_after <= 1000
        assert len(refused.value.path) == depth + 1
        assert len(bank.log) == 3
        # Each method has its own circuit; stubs without a breaker know nothing of it.
        await one.count()
        await (await till(world, depth)).charge()


async def test_all_agents_of_a_class_share_a_circuit(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        await fail_three_times(with_options(await till(world), breaker=BREAKER), bank)
        with pytest.raises(CircuitOpen):
            await with_options(await world.get_agent(Till, "other"), breaker=BREAKER).charge()


async def test_an_open_circuit_lets_one_call_through_which_decides(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), breaker=Breaker(failures=1, reset_after=0.3))
        bank.errors = [Unavailable("down"), Unavailable("still down")]
        with pytest.raises(Unavailable, match="down"):
            await one.charge()
        refused = 0
        while not isinstance(error := await failure(one.charge), Unavailable) or error.code != "unavailable":
            assert isinstance(error, CircuitOpen)
            refused += 1
            await asyncio.sleep(error.retry_after)
        assert str(error) == "still down"
        while (error := await failure(one.charge)) is not None:
            assert isinstance(error, CircuitOpen)
            refused += 1
            await asyncio.sleep(error.retry_after)

        assert refused >= 1
        assert await one.count() == 3


async def test_errors_of_the_method_s_own_open_no_circuit(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), breaker=BREAKER)
        bank.errors = [Unavailable("1"), Unavailable("2"), *[ValueError("own")] * 5, Unavailable("3"), Refused("4")]
        for error in list(bank.errors):
            with pytest.raises(type(error)):
                await one.charge()
        await one.charge()


async def test_a_refusal_of_an_open_circuit_is_not_retried(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), breaker=BREAKER, retry=AT_ONCE)
        bank.errors = [Unavailable("down")] * 10
        with pytest.raises(CircuitOpen):
            await one.charge()
        assert len(bank.log) == 3


async def test_a_cancelled_call_opens_no_circuit(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        one = with_options(await till(world), breaker=Breaker(failures=1, reset_after=1000))
        call = asyncio.create_task(one.charge_slowly())
        await bank.seen("slow 1")
        call.cancel()
        await asyncio.wait({call})
        bank.go.set()
        assert await one.charge_slowly() == 1


async def failure(act: Callable[[], Any]) -> SapwoodError | None:
    """Return what a call failed with; `None` if it succeeded."""
    try:
        await act()
    except SapwoodError as error:
        return error
    return None


async def test_a_stub_with_options_is_a_stub_of_the_same_agent(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        one = with_options(root, timeout=5)
        assert one == root
        assert hash(one) == hash(root)
        assert repr(one) == repr(root)
        assert set(dir(one)) == set(dir(await world.get_agent(Till, "r")))
        with pytest.raises(SapwoodError, match="does not exist"):
            await getattr(one, "nothing")()  # noqa: B009 - it has none


async def test_options_add_up_and_the_last_one_counts(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        root = await till(world)
        one = with_options(with_options(root, idempotency_key="k", timeout=1000), timeout=0.5)
        with pytest.raises(TimedOut):
            await one.charge_slowly()
        bank.go.set()
        assert await one.charge_slowly() == await one.charge_slowly() == 1
        assert await root.charge_slowly() == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": -1}, "timeout must be a number of seconds, 0 or more, got -1"),
        ({"timeout": True}, "timeout must be .*, got True"),
        ({"timeout": float("nan")}, "timeout must be .*, got nan"),
        ({"retry": 3}, r"retry must be Retry\(…\), got 3"),
        ({"breaker": 3}, r"breaker must be Breaker\(…\), got 3"),
        ({"idempotency_key": ""}, "a string of 1 to 255 characters"),
        ({"idempotency_key": "x" * 256}, "a string of 1 to 255 characters"),
        ({"idempotency_key": 3}, "a string of 1 to 255 characters"),
        ({"idempotency_key": "\ud800"}, "must be valid Unicode"),
    ],
)
async def test_wrong_options_are_refused(run: Run, bank: Bank, options: dict[str, Any], says: str) -> None:
    async with run(Till, deps=bank) as world:
        with pytest.raises(UsageError, match=says):
            with_options(await till(world), **options)


def test_what_is_no_stub_is_refused() -> None:
    with pytest.raises(UsageError, match=r"with_options\(\) expected a stub, such as sub_agent\(\) returns, got str"):
        with_options("Till:r", timeout=3)


@pytest.mark.parametrize("options", [{"failures": 0}, {"failures": 1.5}, {"reset_after": 0}, {"reset_after": "3"}])
def test_a_breaker_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Breaker"):
        Breaker(**options)


@pytest.mark.promise("B-3")
async def test_each_failure_of_a_child_says_whose_it_is_and_whether_to_retry(run: Run, bank: Bank) -> None:
    async with run(Till, deps=bank) as world:
        parent, child = await till(world, 2), await till(world, 3)
        path = (("Till", "r"), ("Till", "t0"), ("Till", "t1"), ("Till", "t2"))

        raised: dict[type[SapwoodError], SapwoodError] = {}
        for error in (KeyError("own"), OverLimit("full"), Unavailable("gone")):
            bank.errors = [error]
            with pytest.raises(SapwoodError) as caught:
                await child.charge()
            raised[type(error) if isinstance(error, SapwoodError) else Crashed] = caught.value
        with pytest.raises(TimedOut) as late:
            await with_options(child, timeout=0.2).charge_slowly()
        raised[TimedOut] = late.value
        await parent.stop("t2")
        with pytest.raises(Aborted) as aborted:
            await child.charge()
        raised[Aborted] = aborted.value
        await parent.cut("t2")
        with pytest.raises(NotFound) as missing:
            await child.charge()
        raised[NotFound] = missing.value

        for kind, error in raised.items():
            assert isinstance(error, kind)
            assert getattr(error, "path", ()) == path, kind
            assert error.retryable is (kind in (TimedOut, Unavailable)), kind
            assert isinstance(error, ChildFailed | Unavailable)
        assert len({error.code for error in raised.values()}) == 6
