"""Who asks a provider waits as long as it must, in the order of coming, and nobody pays for who gave up."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.machine import patience

from sapwood.chat.models.providers import Limiter, Providers, provider_of
from sapwood.settings import Settings
from sapwood.testing import FakeClock, ScriptedModel


class Asking:
    """Somebody who asks a provider, and holds on until told to end."""

    def __init__(self, limiter: Limiter, key: str = "") -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.told: list[float | None] = []
        self.is_through = False
        self.may_end = asyncio.Event()
        self.task = asyncio.create_task(self._ask(limiter, key))

    async def _ask(self, limiter: Limiter, key: str) -> None:
        async with limiter.request(key, self.told.append, self.stopped):
            self.is_through = not self.stopped.done()
            await self.may_end.wait() if self.is_through else None

    async def end(self) -> None:
        self.may_end.set()
        await self.task
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def some(limiter: Limiter, number: int, key: str = "") -> list[Asking]:
    asking = [Asking(limiter, key) for _ in range(number)]
    await settled()
    return asking


async def test_those_who_wait_go_in_the_order_in_which_they_came() -> None:
    limiter = Limiter(1, 100, FakeClock())
    first, second, third = await some(limiter, 3)
    assert [one.is_through for one in (first, second, third)] == [True, False, False]
    assert limiter.waiting == 2

    first.may_end.set()
    await first.task
    (late,) = await some(limiter, 1)

    assert [one.is_through for one in (second, third, late)] == [True, False, False]
    await second.end()
    assert [one.is_through for one in (third, late)] == [True, False]
    await third.end()
    await late.end()
    assert limiter.waiting == 0


async def served(*asking: list[Asking]) -> list[str]:
    """End the requests as they are let through; return the order in which they were."""
    waiting = [(name, one) for name, many in zip("abcdefgh", asking, strict=False) for one in many]
    order: list[str] = []
    while waiting:
        name, one = next((name, one) for name, one in waiting if one.is_through)
        waiting.remove((name, one))
        order.append(name)
        await one.end()
    return order


async def test_one_who_floods_a_provider_delays_another_by_as_many_requests_as_that_one_has() -> None:
    limiter = Limiter(1, 1000, FakeClock())
    flood = await some(limiter, 200, "a")
    quiet = await some(limiter, 5, "b")

    order = await served(flood, quiet)

    assert "".join(order) == "a" + "ab" * 5 + "a" * 194
    assert limiter.waiting == 0


async def test_one_who_asks_again_and_again_waits_for_one_other_request_each_time() -> None:
    limiter = Limiter(2, 1000, FakeClock())
    flood = await some(limiter, 200, "a")
    for _ in range(20):
        (quiet,) = await some(limiter, 1, "b")
        before = 0
        while not quiet.is_through:
            await next(one for one in flood if one.is_through and not one.task.done()).end()
            before += 1
        assert before <= 2
        await quiet.end()
    assert limiter.waiting == 200 - 2 - sum(one.task.done() for one in flood)
    await served(flood)


async def test_each_of_many_is_served_in_turn_within_a_minute_too() -> None:
    clock = FakeClock()
    limiter = Limiter(100, 6, clock)
    users = [await some(limiter, 30, key) for key in "abc"]
    late = await some(limiter, 2, "d")

    went: list[list[int]] = []
    for _ in range(3):
        went.append([sum(one.is_through for one in many) for many in (*users, late)])
        await clock.advance(60)
        await settled()
    assert went == [[6, 0, 0, 0], [8, 2, 1, 1], [10, 3, 3, 2]]
    for one in (*users[0], *users[1], *users[2], *late):
        one.task.cancel()
    await settled()
    assert limiter.waiting == 0


async def test_who_is_told_to_wait_is_told_once_and_how_long() -> None:
    clock = FakeClock()
    limiter = Limiter(10, 1, clock)
    (first,) = await some(limiter, 1)
    await first.end()
    await clock.advance(20)

    (second,) = await some(limiter, 1)
    await clock.advance(39)
    await settled()
    assert (first.told, second.told, second.is_through) == ([], [40.0], False)

    await clock.advance(1)
    await settled()
    assert (second.told, second.is_through) == ([40.0], True)
    await second.end()


async def test_so_many_in_any_minute_and_no_more() -> None:
    clock = FakeClock()
    limiter = Limiter(100, 3, clock)
    asking: list[Asking] = []
    for _ in range(9):
        asking += await some(limiter, 1)
    went: list[int] = []
    for _ in range(13):
        await settled()
        went.append(sum(one.is_through for one in asking))
        await clock.advance(10)
    assert went == [3] * 6 + [6] * 6 + [9]
    for one in asking:
        await one.end()


async def test_who_gave_up_waiting_does_not_count() -> None:
    clock = FakeClock()
    limiter = Limiter(1, 2, clock)
    first, second, third = await some(limiter, 3)

    second.stopped.set_result(None)
    third.task.cancel()
    await settled()
    assert (second.is_through, second.task.done(), limiter.waiting) == (False, True, 0)
    await first.end()

    (fourth,) = await some(limiter, 1)
    assert fourth.is_through, "Two in a minute: the first, and this one."
    await fourth.end()


async def test_who_is_cancelled_just_when_let_through_leaves_the_place_to_the_next() -> None:
    limiter = Limiter(1, 100, FakeClock())
    first, second, third = await some(limiter, 3)

    first.may_end.set()
    await first.task
    second.task.cancel()
    await settled()

    assert third.is_through
    await third.end()
    (fourth,) = await some(limiter, 1)
    assert fourth.is_through
    await fourth.end()


async def test_a_provider_that_asks_to_wait_is_left_alone_so_long() -> None:
    clock = FakeClock()
    limiter = Limiter(10, 100, clock)
    limiter.close_for(30)
    limiter.close_for(5)
    first, second = await some(limiter, 2)
    await clock.advance(29)
    await settled()
    assert (first.is_through, first.told) == (False, [30.0])

    await clock.advance(1)
    await settled()
    assert first.is_through
    assert second.is_through
    await first.end()
    await second.end()


async def test_one_alone_waits_until_it_is_time_or_it_is_stopped() -> None:
    clock = FakeClock()
    limiter = Limiter(10, 100, clock)
    told: list[Any] = []
    for way in ("time", "stopped"):
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pausing = asyncio.create_task(limiter.pause(10, told.append, stopped))
        await clock.advance(9)
        assert not pausing.done()
        (other,) = await some(limiter, 1)
        assert other.is_through
        await other.end()
        if way == "time":
            await clock.advance(1)
        else:
            stopped.set_result(None)
        await asyncio.wait_for(pausing, patience())
    assert told == [10, 10]


async def test_who_waits_is_counted_over_all_keys_of_a_provider() -> None:
    class Keyed:
        system = "somebody"

        def __init__(self, key: str) -> None:
            self.client = type("Client", (), {"api_key": key})()

    providers = Providers(Settings(model_requests_at_once=1), FakeClock())
    one, two = providers.of(Keyed("a")), providers.of(Keyed("b"))
    assert one is not two
    assert providers.of(Keyed("a")) is one
    asking = [*await some(one, 2), *await some(two, 3)]
    assert providers.waiting() == {"somebody": 3}
    for each in asking:
        each.task.cancel()
    await settled()
    assert providers.waiting() == {}


def test_a_model_s_name_says_whom_it_asks() -> None:
    assert provider_of("openai:gpt-5")[0] == "openai"
    assert provider_of(ScriptedModel()) == provider_of(ScriptedModel())
