"""One life of an agent in memory: whether it may be used, and when what it wrote may leave it.

Whatever leaves the agent passes the gate first. An incarnation that was dropped can do nothing any more: everything
that is used through it raises.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable
from threading import get_ident

from sapwood.address import Address
from sapwood.errors import SapwoodError, WrongThread
from sapwood.kernel.actors.node_services import NodeServices
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.ports.log import OutOfTouch
from sapwood.storage.database import Database

TOUCH = 0.05
"""Seconds between two looks at whether a node may answer again."""


class Incarnation:
    """An agent in memory, from its start to its end."""

    __slots__ = ("_node", "_slices", "address", "database", "dropped")

    def __init__(self, address: Address, database: Database, slices: Slices, node: NodeServices) -> None:
        self.address = address
        self.database = database
        self._slices = slices
        self._node = node
        self.dropped: SapwoodError | None = None
        """Why this incarnation ended."""

    def check_live(self) -> None:
        """Raise if this incarnation was dropped."""
        if self.dropped is not None:
            raise again(self.dropped)

    def check_use(self) -> None:
        """Raise unless the agent may be used here and now: alive, and on its own thread."""
        if self.dropped is not None:
            raise again(self.dropped)
        if get_ident() != self._node.thread:
            raise WrongThread(
                f"{self.address} was used from another thread. Do the blocking work in in_thread() or "
                "in_process(), and use the agent with its result."
            )

    def to_leave(self) -> Future[None] | None:
        """The gate: return what to await before anything may leave this agent; None if it may leave now."""
        slices, gate = self._slices, self._node.gate
        if slices.open is not None:
            if gate.synced and slices.open is self.database and self.dropped is None:
                return slices.leaving()  # it waits anyway: others may still join this commit
            slices.commit()
        if self.dropped is not None:
            raise again(self.dropped)
        return gate.wait(self.database)

    def to_answer(self, call: Call) -> Awaitable[None] | None:
        """Return what to await before a call may be answered; None if it may be now."""
        try:
            waiting = self.to_leave()
        except OutOfTouch:
            if call.client is not None:
                raise  # a client may go to another node at once
            return self.leave()
        return None if waiting is None else self._until_stored(waiting, call)

    async def _until_stored(self, waiting: Future[None], call: Call) -> None:
        try:
            await waiting
            await self.until_leased(call)
        except OutOfTouch:  # the log answered late
            if call.client is not None:
                raise
            await self.leave()

    async def leave_now(self) -> None:
        """Do as `leave` for a client, which may go to another node at once: `OutOfTouch` if this one may not answer."""
        if (waiting := self.to_leave()) is not None:
            await waiting
            if not self._node.holds_lease():
                raise OutOfTouch

    async def leave(self) -> None:
        """Return when everything this agent wrote so far is durable, and this node may answer.

        It may be out of touch for a while, which is no mistake of what runs here: nothing is to fail for good by
        that. If another node takes the tree before that, it is dropped here.
        """
        while True:
            try:
                if (waiting := self.to_leave()) is None:
                    return
                await waiting
                if self._node.holds_lease():  # the log may have answered late
                    return
            except OutOfTouch:
                pass
            await asyncio.sleep(TOUCH)

    async def until_leased(self, call: Call | None = None) -> None:
        """Return when this node holds its lease. Await it right before anything that may act outside of the agent.

        If another node takes the tree before that, this agent is dropped, and what waits here is cancelled.
        `OutOfTouch` if a client made the call, which may go to another node at once.
        """
        while not self._node.holds_lease():
            if call is not None and call.client is not None:
                raise OutOfTouch
            await asyncio.sleep(TOUCH)
            self.check_live()
