"""Agents that would wait for each other's start in a circle are refused, wherever each of them runs.

Who waits for the start of an agent is noted at that agent. So before an agent is waited for, its
way is followed back: who waits for those that want to wait, who for them, and so on. It is noted
first and followed then, so of several that close a circle at the same time at least one sees it.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

import msgspec

from sapwood.address import Address
from sapwood.errors import StartCycle, Unavailable
from sapwood.kernel.rpc.remote import AWAITED, Peers

Search = Generator[Address, Sequence[Address], None]


def search(agent: Address, waiting: Sequence[Address]) -> Search:
    """Raise `StartCycle` if `agent` waits for one of these; ask, with each yield, who waits for the one yielded."""
    seen: set[Address] = set()
    ways: list[tuple[Address, ...]] = [(one,) for one in waiting]
    while ways:
        way = ways.pop()
        if way[0] == agent:
            names = " → ".join(map(str, (way[-1], *way)))
            raise StartCycle(
                f"Agents wait for each other's on_start in a cycle: {names}. Move one of the calls out of on_start."
            )
        if way[0] not in seen:
            seen.add(way[0])
            ways.extend((further, *way) for further in (yield way[0]))


class StartCycleDetector:
    """Finds circles that begin or end at one node."""

    def __init__(
        self, loop: AbstractEventLoop, far: Peers | None, awaited_by: Callable[[Address], Sequence[Address]]
    ) -> None:
        self._loop = loop
        self._far = far
        self._awaited_by = awaited_by
        """Who waits for the start of an agent of this node."""

    def refuse(self, agent: Address, waiting: Sequence[Address]) -> Task[None] | None:
        """Raise `StartCycle` if these close a circle by waiting for `agent`; or return what looks at other nodes."""
        looking, far = search(agent, waiting), self._far
        try:
            wanted = next(looking)
            while far is None or far.directory.is_here(wanted.root):
                wanted = looking.send(self._awaited_by(wanted))
        except StopIteration:
            return None
        return self._loop.create_task(self._look_on(far, looking, wanted))

    async def _look_on(self, far: Peers, looking: Search, wanted: Address) -> None:
        with suppress(StopIteration):
            while True:
                if far.directory.is_here(wanted.root):
                    found = self._awaited_by(wanted)
                else:
                    found = await _awaited_by(far, wanted)
                wanted = looking.send(found)

    def answer(self, far: Peers) -> None:
        """Tell other nodes who waits for agents of this one."""
        far.transport.answer(
            AWAITED,
            lambda message, exchange: exchange.end(
                msgspec.msgpack.encode([str(one) for one in self._awaited_by(Address.parse(message.decode()))])
            ),
        )


async def _awaited_by(far: Peers, agent: Address) -> list[Address]:
    try:
        answer = await far.ask_owner(agent.root, AWAITED, str(agent).encode())
    except Unavailable:
        return []  # with its node, whatever waited there has ended
    return [Address.parse(one) for one in msgspec.msgpack.decode(answer, type=list[str])]
