"""A task that is cancelled ends, also when the cancelling itself gets lost."""

from __future__ import annotations

import asyncio

from tests.machine import patience

from sapwood.kernel.aio import cancel_all


async def test_a_task_whose_cancelling_got_lost_is_cancelled_again() -> None:
    answers: list[asyncio.Future[None]] = []

    async def ask_for_ever() -> None:
        while True:
            answers.append(asyncio.get_running_loop().create_future())
            await asyncio.wait_for(answers[-1], patience())

    task = asyncio.create_task(ask_for_ever())
    await asyncio.sleep(0.01)
    ending = asyncio.create_task(cancel_all([task]))
    answers[-1].set_result(None)  # in the same moment as the cancelling: Python 3.11 forgets that then

    async with asyncio.timeout(patience()):
        await ending
    assert task.cancelled()


async def test_a_task_that_failed_is_ended_too() -> None:
    async def fail() -> None:
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await cancel_all([task])
    assert task.done()
