"""Which clients are connected to which agents, whoever holds the wire.

A socket is a value with an id and an address. Its writer is a port: the server that
accepted it, in this process or another one. Agents sleep, wake and move while their
sockets stay open, so what an agent wants to remember of one is kept with the socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import Protocol

from sapwood.address import Address
from sapwood.kernel.classes import AgentClass

GOING_AWAY = 1001
RESTARTING = 1012


class Writer(Protocol):
    """Whoever holds the wire."""

    def send(self, number: int, frame: str | bytes) -> None:
        """Take a frame; never waits. `number` counts the frames of this socket from 1."""
        ...

    def room(self) -> Awaitable[None] | None:
        """Return what to await before sending more than news; None: now."""
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
        "address",
        "headers",
        "hears_close",
        "id",
        "is_open",
        "is_orphan",
        "is_protocol",
        "is_readonly",
        "kind",
        "note",
        "path",
        "query",
        "sent",
        "tags",
        "user",
        "writer",
    )

    def __init__(
        self,
        id: str,
        address: Address,
        kind: AgentClass,
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
        self.hears_close = kind.overrides("on_close")
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
        self.is_open = True
        self.is_orphan = False
        """Whether its agent is no more: nobody is to be told that it closed."""
        self.is_readonly = False
        self.is_protocol = True
        """Whether it is told identity and state."""
        self.sent = 0

    def send(self, frame: str | bytes) -> None:
        if self.is_open:
            self.sent += 1
            self.writer.send(self.sent, frame)

    def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.writer.close(code, reason)


class Sockets:
    """The open sockets of one node's agents."""

    def __init__(self) -> None:
        self._trees: dict[Address, dict[Address, dict[Socket, None]]] = {}
        self.count = 0
        self.arriving: dict[Writer | Socket, object] = {}
        """Clients that are known already and not connected yet, by what closes them: their users."""

    def add(self, socket: Socket) -> None:
        self.arriving.pop(socket, None)
        tree = self._trees.setdefault(socket.address.root, {})
        tree.setdefault(socket.address, {})[socket] = None
        self.count += 1

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
        """Return the sockets of one agent, oldest first."""
        return list(self._trees.get(address.root, {}).get(address, ()))

    def number_of(self, address: Address) -> int:
        return len(self._trees.get(address.root, {}).get(address, ()))

    def within(self, address: Address) -> Iterator[Socket]:
        """Yield the sockets of an agent and of everybody below it."""
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
        """Close the sockets of an agent and of everybody below it."""
        for socket in self.within(address):
            socket.is_orphan = True
            socket.close(code, reason)
            self.remove(socket)
