"""Which clients are connected to which agents, whichever node holds the wire.

A socket is a value with an id and an address. Its writer is a port: the server that
accepted it, in this process or another one. Agents sleep, wake and move while their
sockets stay open, so what an agent wants to remember of one is kept with the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Protocol

from sapwood.address import Address
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.ports.shards import shard_of

GOING_AWAY = 1001
TOO_BIG = 1009
TOO_LONG = "The message is too long"
RESTARTING = 1012
TRY_AGAIN = 1013
WATCH_ONLY = "This connection is read-only."
SETTLED = "The server stops, and all calls that began were answered"
"""The reason of a close after which unanswered clients may retry: nothing of it was begun."""
ON_THE_WAY = 10.0
"""Seconds that the sockets of a tree which came from another node may take to follow it."""
MISSED = 1024 * 1024
"""Bytes that are buffered for them until then."""


class Writer(Protocol):
    """The holder of the wire."""

    def send(self, number: int, frame: str | bytes) -> None:
        """Take a frame; never waits. `number` counts the frames of this socket from 1."""
        ...

    def room(self) -> Awaitable[None] | None:
        """Return what to await before sending more than news. `None` means now."""
        ...

    @property
    def unsent(self) -> int:
        """How many bytes wait for the other side to read."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the wire once what was sent is written."""
        ...


class Socket:
    """One client's socket."""

    __slots__ = (
        "added_at",
        "address",
        "headers",
        "hears_close",
        "id",
        "is_leaving",
        "is_open",
        "is_orphan",
        "is_protocol",
        "is_readonly",
        "is_watch_only",
        "kind",
        "note",
        "number",
        "path",
        "query",
        "reading",
        "runs",
        "sent",
        "shown",
        "tags",
        "user",
        "writer",
    )

    def __init__(
        self,
        id: str,
        address: Address,
        kind: AgentClass | None,
        writer: Writer,
        *,
        path: str,
        query: str,
        headers: Mapping[str, str],
        user: object,
    ) -> None:
        self.id = id
        self.address = address
        self.kind = kind
        self.hears_close = kind is not None and kind.overrides("on_close")
        """Whether its agent is woken to be told that it closed."""
        self.writer = writer
        self.path = path
        """What follows the agent's own part of the URL; begins with a slash."""
        self.query = query
        self.headers = headers
        self.user = user
        """What `authenticate` returned."""
        self.tags: tuple[str, ...] = ()
        self.note = b""
        """What the agent remembers of it, as JSON."""
        self.number = 0
        """Counts the sockets of the node, in the order in which they were added."""
        self.added_at = 0.0
        """When it was added, by the clock of the event loop."""
        self.is_open = True
        self.is_orphan = False
        """Whether its agent no longer exists: no agent is notified when the connection closes."""
        self.is_readonly = False
        self.is_watch_only = False
        """Whether it may neither begin turns, nor answer questions, nor call methods."""
        self.is_protocol = True
        """Whether it is told identity and state."""
        self.runs: set[str] = set()
        """The runs of guarded sub-agents whose frames it receives."""
        self.shown: dict[str, list[str]] = {}
        """The ids of the questions that it was shown and that are open, by the address of the agent that asks."""
        self.sent = 0
        self.is_leaving = False
        """Whether its agent is about to be run by another node: nothing more is read from it here."""
        self.reading: asyncio.Timeout | None = None
        """Ends the wait for its next message."""

    def leave(self) -> None:
        """Read nothing more from it here."""
        self.is_leaving = True
        if self.reading is not None and not self.reading.expired():
            self.reading.reschedule(asyncio.get_running_loop().time())

    def send(self, frame: str | bytes) -> None:
        if self.is_open:
            self.sent += 1
            self.writer.send(self.sent, frame)

    def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.writer.close(code, reason)


class MissedBroadcasts:
    """Keeps broadcasts, for sockets that are on their way to this node."""

    unsent = 0

    def __init__(self) -> None:
        self.frames: list[str | bytes] = []
        self.is_whole = True
        self._bytes = 0

    def send(self, number: int, frame: str | bytes) -> None:
        self._bytes += len(frame)
        if self._bytes > MISSED:
            self.close(RESTARTING, "")
        if self.is_whole:
            self.frames.append(frame)

    def room(self) -> None:
        return None

    def close(self, code: int, reason: str) -> None:
        """Whatever was said, it is not known any more."""
        self.is_whole = False
        self.frames.clear()


class Absent(Socket):
    """Stands for all sockets of an agent that are on their way to this node."""

    __slots__ = ("missed",)

    def __init__(self, address: Address, *, is_protocol: bool) -> None:
        self.missed = MissedBroadcasts()
        super().__init__("", address, None, self.missed, path="/", query="", headers={}, user=None)
        self.is_protocol = is_protocol

    def require_reconnect(self) -> None:
        """What is sent depends on the user, who is not known yet: the sockets have to connect again when they come."""
        self.writer.close(RESTARTING, "")


class Sockets:
    """The open sockets of one node's agents."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._added = 0
        self._came: dict[int, float] = {}
        """The shards that came from another node just now, and until when sockets may follow."""
        self._absent: dict[Address, tuple[Absent, Absent]] = {}
        """Who stands for those of an agent: with the protocol, and without."""
        self._trees: dict[Address, dict[Address, dict[Socket, None]]] = {}
        self.count = 0
        self.arriving: dict[Writer | Socket, object] = {}
        """Clients that are known already and not connected yet, by what closes them: their users."""

    def add(self, socket: Socket) -> None:
        self.arriving.pop(socket, None)
        tree = self._trees.setdefault(socket.address.root, {})
        tree.setdefault(socket.address, {})[socket] = None
        self.count += 1
        self._added += 1
        socket.number, socket.added_at = self._added, self._now()

    def remove(self, socket: Socket) -> None:
        """Forget a socket; one that is not known does no harm."""
        self.arriving.pop(socket, None)
        root = socket.address.root
        tree = self._trees.get(root, {})
        sockets = tree.get(socket.address, {})
        if socket in sockets:
            del sockets[socket]
            self.count -= 1
            if not sockets:
                del tree[socket.address]
                if not tree:
                    del self._trees[root]

    def of(self, address: Address) -> list[Socket]:
        """Return the sockets of one agent, oldest first, to say something to all of them."""
        found = self.here(address)
        if self._came:
            found.extend(self._on_the_way(address))
        return found

    def here(self, address: Address) -> list[Socket]:
        """Return the sockets of one agent, oldest first; none that is still on its way."""
        return list(self._trees.get(address.root, {}).get(address, ()))

    def gained(self, shards: Collection[int]) -> None:
        """These came from another node; their sockets may follow."""
        self._came.update(dict.fromkeys(shards, self._now() + ON_THE_WAY))

    def _on_the_way(self, address: Address) -> tuple[Absent, ...]:
        if not self._came_lately(address.root):
            return ()
        found = self._absent.get(address)
        if found is None:
            found = Absent(address, is_protocol=True), Absent(address, is_protocol=False)
            self._absent[address] = found
        return found

    def _came_lately(self, root: Address) -> bool:
        now = self._now()
        if late := {shard for shard, until in self._came.items() if until < now}:
            self._forget(late)
        return shard_of(root) in self._came

    def come(self, socket: Socket) -> bool:
        """Take a socket that followed its tree from another node; `False` if it is unknown what it missed."""
        if not self._came_lately(socket.address.root):
            return False
        absent = self._absent.get(socket.address)
        missed = None if absent is None else absent[0 if socket.is_protocol else 1].missed
        if missed is not None and not missed.is_whole:
            return False
        self.add(socket)
        if absent is not None and socket.is_protocol:
            socket.shown.update(absent[0].shown)
            socket.shown = {owner: ids for owner, ids in socket.shown.items() if ids}
        for frame in () if missed is None else missed.frames:
            socket.send(frame)
        return True

    def leave(self, shards: Collection[int]) -> None:
        """These go to another node: read nothing more from their sockets."""
        self._forget(shards)
        for root in list(self._trees):
            if shard_of(root) in shards:
                for socket in self.within(root):
                    socket.leave()

    def lost(self, shards: Collection[int]) -> None:
        """These are another node's, and it is unknown what was sent last: clients have to reconnect."""
        self._forget(shards)
        for root in list(self._trees):
            if shard_of(root) in shards:
                self.close_within(root, RESTARTING, "The agent restarts")

    def _forget(self, shards: Collection[int]) -> None:
        for shard in shards:
            self._came.pop(shard, None)
        for address in [one for one in self._absent if shard_of(one.root) in shards]:
            del self._absent[address]

    def number_of(self, address: Address) -> int:
        return len(self._trees.get(address.root, {}).get(address, ()))

    def in_tree(self, root: Address) -> Mapping[Address, Collection[Socket]]:
        """Return the sockets of each agent of a tree that has some."""
        return self._trees.get(root, {})

    def age(self, socket: Socket) -> float:
        """Return for how many seconds a socket has been connected to this node."""
        return self._now() - socket.added_at

    def within(self, address: Address) -> Iterator[Socket]:
        """Yield the sockets of an agent and of all agents below it."""
        for one, sockets in list(self._trees.get(address.root, {}).items()):
            if one == address or one.is_below(address):
                yield from list(sockets)

    def everyone(self) -> Iterator[Socket]:
        for tree in list(self._trees.values()):
            for sockets in list(tree.values()):
                yield from list(sockets)

    def show_out(self, user: object, code: int, reason: str) -> int:
        """Close the sockets of a user, also those on their way in; return how many there were."""
        connected: list[Writer | Socket] = [socket for socket in self.everyone() if socket.user == user]
        found = connected + [one for one, who in self.arriving.items() if who == user]
        for one in found:
            one.close(code, reason)
        return len(found)

    def close_within(self, address: Address, code: int, reason: str) -> None:
        """Close the sockets of an agent and of all agents below it."""
        for socket in self.within(address):
            socket.is_orphan = True
            socket.close(code, reason)
            self.remove(socket)
