"""How frames are written: together where there are many, at once where there is one, always in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sapwood.web.server import GATHERED, BatchedTransport


class Under:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def is_closing(self) -> bool:
        return "closed" in self.done


def gathering() -> tuple[Under, Any]:
    under = Under()
    return under, BatchedTransport(cast("Any", under), asyncio.get_running_loop())


async def test_the_first_goes_at_once_and_what_follows_in_the_same_turn_goes_together() -> None:
    under, over = gathering()

    for letter in (b"a", b"b", b"c"):
        over.write(letter)
    assert under.done == [b"a"]
    await asyncio.sleep(0)

    assert under.done == [b"a", b"bc"]
    over.write(b"d")
    assert under.done == [b"a", b"bc", b"d"]


async def test_much_does_not_wait_for_the_end_of_the_turn() -> None:
    under, over = gathering()

    over.write(b"a")
    over.write(bytes(GATHERED))

    assert [len(data) for data in under.done] == [1, GATHERED]


async def test_what_was_written_goes_before_the_close() -> None:
    under, over = gathering()

    over.write(b"a")
    over.write(b"b")
    over.close()
    await asyncio.sleep(0)

    assert under.done == [b"a", b"b", "closed"]
    assert over.is_closing()


async def test_nothing_is_written_after_an_abort() -> None:
    under, over = gathering()

    over.write(b"a")
    over.write(b"b")
    over.abort()
    await asyncio.sleep(0)

    assert under.done == [b"a", "aborted"]
