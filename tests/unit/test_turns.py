"""Much that is due at once leaves turns of the loop to others."""

from __future__ import annotations

import asyncio
import contextlib

from tests.machine import patience

from sapwood.kernel.node.dispatcher import Throttle


class Crowd:
    """Many who want to begin something, and what the loop did in each of its turns."""

    def __init__(self, most: int) -> None:
        self.turns = Throttle(asyncio.get_running_loop(), most)
        self.begun: list[int] = []
        self.per_turn: list[int] = []

    async def want(self, number: int, much: int) -> None:
        await self.turns.wait()
        self.begun.append(number)
        self.turns.take(much)

    async def watch(self) -> None:
        while True:
            before = len(self.begun)
            await asyncio.sleep(0)
            self.per_turn.append(len(self.begun) - before)


async def test_no_more_begins_in_one_turn_than_there_is_room_for() -> None:
    crowd = Crowd(most=10)
    watching = asyncio.create_task(crowd.watch())

    await asyncio.gather(*(crowd.want(number, 5) for number in range(20)))

    watching.cancel()
    assert max(crowd.per_turn) <= 2
    assert crowd.begun == list(range(20))


async def test_something_larger_than_a_turn_begins_all_the_same() -> None:
    crowd = Crowd(most=10)

    await asyncio.gather(*(crowd.want(number, 1000) for number in range(3)))

    assert crowd.begun == [0, 1, 2]


async def test_whoever_gives_up_while_waiting_holds_up_nobody() -> None:
    crowd = Crowd(most=1)
    waiting = [asyncio.create_task(crowd.want(number, 1)) for number in range(6)]
    await asyncio.sleep(0)

    for task in waiting[1:4]:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*waiting[1:4])
    await asyncio.wait_for(asyncio.gather(waiting[0], *waiting[4:]), patience())

    assert crowd.begun == [0, 4, 5]
