"""Clients of a server whose workers die: what they asked for, what they were told, and when.

Nobody asks for the same thing twice, but for what promises to be done once however often it is asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import websockets
from tests.faults.worker_server import PATIENCE, Server
from tests.faults.worker_workload import answer_to

from sapwood.wire import chat as wire

ROOTS = tuple(f"d{number}" for number in range(6))
TALKS = tuple(f"t{number}" for number in range(3))
BROKEN = (OSError, EOFError, TimeoutError, websockets.WebSocketException)


class Refused(Exception):
    """The answer is no."""


@dataclass(slots=True)
class Act:
    """Something a client asked for."""

    what: str
    needs: set[int]
    """The workers that run what is asked."""
    holder: int | None
    """The worker that holds the connection; None: not known."""
    begin: float
    end: float = 0.0
    problem: str | None = None
    item: str = ""


@dataclass
class Record:
    """What all clients of one folder know."""

    acts: list[Act] = field(default_factory=list[Act])
    tried: dict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    """Items that were given to a list, by the list's path."""
    kept: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: defaultdict[str, dict[str, list[str]]](lambda: defaultdict[str, list[str]](list))
    )
    """Items that somebody was told are kept, by the list's path and who was told, in order."""
    dug: dict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    """Fibers that somebody was told have begun, by the list's path."""
    carried: dict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    """What was answered for each run."""
    planted: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: defaultdict[str, dict[str, list[str]]](lambda: defaultdict[str, list[str]](list))
    )
    """What is in each shoot, by its root and its name."""
    cut: dict[str, bool] = field(default_factory=dict[str, bool])
    """The shoots that were to be deleted, and whether somebody was told that they are."""
    felled: dict[str, bool] = field(default_factory=dict[str, bool])
    """The roots that were to be destroyed, and whether somebody was told that they are."""
    asleep: dict[str, float] = field(default_factory=dict[str, float])
    """The roots that have an alarm, and are left alone until then, and when that is at the latest."""
    asked: dict[str, dict[str, bool]] = field(default_factory=lambda: defaultdict[str, dict[str, bool]](dict))
    """The questions of each talk, and whether they were seen to be taken."""
    first_seen: dict[int, float] = field(default_factory=dict[int, float])
    """When a process answered first."""
    problems: list[str] = field(default_factory=list[str])
    numbers: Iterable[int] = field(default_factory=itertools.count)
    done: bool = False

    def name(self, kind: str) -> str:
        return f"{kind}{next(iter(self.numbers))}"

    def saw(self, processes: Iterable[int]) -> None:
        for one in processes:
            self.first_seen.setdefault(one, time.monotonic())


def at(root: str, depth: int = 0) -> str:
    """Return the path of a list."""
    return f"/agents/depot/{root}" + "/sub/rack/r" * (depth > 0) + "/sub/crate/c" * (depth > 1)


@dataclass
class Client:
    """Comes back whenever it is cut off, until it is told to stop."""

    server: Server
    record: Record
    random: Random
    holder: int | None = None

    async def run(self) -> None:
        while not self.record.done:
            await self.server.is_up.wait()
            try:
                await self.live()
            except BROKEN:
                await asyncio.sleep(0.01)

    async def live(self) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def act(self, what: str, needs: Iterable[int], item: str = "") -> AsyncIterator[Act]:
        act = Act(what, set(needs), self.holder, time.monotonic(), item=item)
        try:
            async with asyncio.timeout(PATIENCE):
                yield act
        except (*BROKEN, Refused) as error:
            act.problem = f"{type(error).__name__}: {error}"
            if not isinstance(error, Refused):
                raise
        finally:
            act.end = time.monotonic()
            self.record.acts.append(act)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() * 0.03)


class Tab(Client):
    """A client with a socket."""

    path = ""
    root = ""
    kind = "Depot"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        self.holder = None
        url = f"ws://127.0.0.1:{self.server.port}{self.path}"
        async with self.act("connect", [self.server.worker_of(self.root, self.kind)]):
            socket = await websockets.connect(url, compression=None, open_timeout=PATIENCE, max_queue=None)
        self.holder = self.server.holder(socket.local_address[1])
        try:
            yield socket
        finally:
            if socket.close_code not in (None, 1000, 1006, 1012, 1013):
                self.record.problems.append(f"a socket of {self.path} closed with {socket.close_code}")
            await socket.close()

    async def call(self, socket: Any, method: str, *args: Any, until_done: bool = False) -> Any:
        id = self.record.name("call")
        await socket.send(json.dumps({"type": "rpc", "id": id, "method": method, "args": args}))
        items: list[Any] = []
        while True:
            frame = json.loads(await socket.recv())
            if frame.get("type") == "cf_agent_state":
                self.heard_state(frame["state"])
            if frame.get("type") != "rpc" or frame["id"] != id:
                continue
            if not frame["success"]:
                raise Refused(frame["error"])
            if until_done and not frame["done"]:
                items.append(frame["result"])
            else:
                return items if until_done else frame.get("result")

    def heard_state(self, state: int) -> None:
        pass


class Writer(Tab):
    """Writes to one list, at some depth, and if it is a root's, by way of others too."""

    def __init__(self, server: Server, record: Record, random: Random, root: str, depth: int) -> None:
        super().__init__(server, record, random)
        self.root, self.path, self.depth = root, at(root, depth), depth
        self._run = ""
        self._state = 0
        """How long the list was, as far as this one was told or has seen."""

    async def live(self) -> None:
        self._state = sum(map(len, self.record.kept[self.path].values()))
        async with self.connected() as socket:
            while not self.record.done:
                acts: list[tuple[int, Callable[[Any], Any]]] = [(5, self.put), (1, self.dig)]
                if self.depth == 0:
                    acts += [(3, self.put_to), (2, self.put_back), (1, self.numbers), (1, self.pour), (1, self.carry)]
                (act,) = self.random.choices([act for _, act in acts], [weight for weight, _ in acts])
                await act(socket)
                await self.pause()

    def heard_state(self, state: int) -> None:
        if state < self._state:
            self.record.problems.append(f"a client of {self.path} knew of {self._state} items, and then saw {state}")
        self._state = state

    def _mine(self) -> int:
        return self.server.worker_of(self.root)

    def _other(self) -> str:
        return self.random.choice([root for root in ROOTS if root != self.root])

    def _delay(self) -> float:
        return self.random.choice((0.0, 0.05, 0.3, 1.5)) * self.random.random()

    async def put(self, socket: Any) -> None:
        await self._put(socket, self.path, [self._mine()], "put")

    async def put_to(self, socket: Any) -> None:
        other = self._other()
        await self._put(socket, at(other), [self._mine(), self.server.worker_of(other)], "put_to", other)

    async def put_back(self, socket: Any) -> None:
        other = self._other()
        await self._put(socket, self.path, [self._mine(), self.server.worker_of(other)], "put_back", other)

    async def _put(self, socket: Any, path: str, needs: list[int], method: str, *args: Any) -> None:
        item = f"{path} {self.record.name('i')}"
        self.record.tried[path].add(item)
        async with self.act(method, needs, item):
            self.record.saw(await self.call(socket, method, *args, item, self._delay()))
            self.record.kept[path][f"{self.path} {self.depth}"].append(item)

    async def dig(self, socket: Any) -> None:
        fiber = self.record.name("f")
        async with self.act("dig", [self._mine()]):
            self.record.saw(await self.call(socket, "dig", fiber))
            self.record.dug[self.path].add(fiber)

    async def numbers(self, socket: Any) -> None:
        other, upto = self._other(), self.random.choice((3, 40, 200))
        async with self.act("numbers_of", [self._mine(), self.server.worker_of(other)]):
            processes, read = await self.call(socket, "numbers_of", other, upto)
            self.record.saw(processes)
            if read != [*range(upto)]:
                self.record.problems.append(f"a stream of {upto} numbers of another root came as {len(read)}")

    async def pour(self, socket: Any) -> None:
        count, size = self.random.choice(((20, 100), (60, 8_000)))
        async with self.act("pour", [self._mine()]):
            heard = await self.call(socket, "pour", count, size, until_done=True)
            if [one.partition(":")[0] for one in heard] != [*map(str, range(count))]:
                self.record.problems.append(f"a stream of {count} items came to its client as {len(heard)}")

    async def carry(self, socket: Any) -> None:
        self._run = self._run or self.record.name("run")
        async with self.act("carry", [self._mine()]):
            processes, output = await self.call(socket, "carry", self._run)
            self.record.saw(processes)
            self.record.carried[self._run].add(output)
            if self.random.random() < 0.7:  # or it is asked for once more
                self._run = ""


class Poster(Client):
    """Writes to lists by requests, some of which take a while, over a connection that it keeps."""

    async def live(self) -> None:
        self.holder = None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            while not self.record.done:
                await self._post(reader, writer)
                self.holder = self.holder or self.server.holder(writer.get_extra_info("sockname")[1])
                await self.pause()
        finally:
            writer.close()

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        root = self.random.choice(ROOTS)
        path, item = at(root), f"{at(root)} {self.record.name('h')}"
        self.record.tried[path].add(item)
        wait = self.random.choice((0.0, 0.0, 0.05, 0.3))
        async with self.act("post", [self.server.worker_of(root)], item):
            head = f"POST {path}?wait={wait} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(item)}"
            writer.write(f"{head}\r\n\r\n{item}".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            status = int(head.split(" ")[1])
            if status != 200:
                writer.close()
                raise ConnectionResetError(f"{status}: {head}")
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = (await reader.readexactly(length)).decode()
            self.record.saw([int(body)])
            self.record.kept[path][f"posts {id(self)}"].append(item)


class Gardener(Tab):
    """Makes sub-agents and roots, and has them deleted."""

    def __init__(self, server: Server, record: Record, random: Random, root: str) -> None:
        super().__init__(server, record, random)
        self.root, self.path = root, at(root)

    async def live(self) -> None:
        async with self.connected() as socket:
            while not self.record.done:
                await self.random.choice((self.grow, self.grow, self.fell, self.leave_alone))(socket)
                await self.pause()

    async def grow(self, socket: Any) -> None:
        name, needs = self.record.name("s"), [self.server.worker_of(self.root)]
        for number in range(self.random.randint(1, 3)):
            async with self.act("plant", needs):
                self.record.saw(await self.call(socket, "plant", name, f"{name} {number}"))
                self.record.planted[self.path][name].append(f"{name} {number}")
        if self.random.random() < 0.8:
            self.record.cut[name] = False
            async with self.act("cut", needs):
                self.record.saw(await self.call(socket, "cut", name))
                self.record.cut[name] = True

    async def fell(self, socket: Any) -> None:
        name = self.record.name("felled-")
        needs = [self.server.worker_of(self.root), self.server.worker_of(name)]
        item = f"{at(name)} {self.record.name('i')}"
        self.record.tried[at(name)].add(item)
        async with self.act("put_to", needs, item):
            self.record.saw(await self.call(socket, "put_to", name, item, 0.1))
            self.record.kept[at(name)][self.path].append(item)
        self.record.felled[name] = False
        async with self.act("fell", needs):
            self.record.saw(await self.call(socket, "fell", name))
            self.record.felled[name] = True

    async def leave_alone(self, socket: Any) -> None:
        """Have a root be rung later, and ask it for nothing until then."""
        name, delay = self.record.name("asleep-"), 0.3 + self.random.random() * 3
        needs = [self.server.worker_of(self.root), self.server.worker_of(name)]
        item = f"{at(name)} {self.record.name('i')}"
        self.record.tried[at(name)].add(item)
        async with self.act("put_to", needs, item):
            self.record.saw(await self.call(socket, "put_to", name, item, delay))
            self.record.kept[at(name)][self.path].append(item)
            self.record.asleep[name] = time.time() + delay


class Talker(Tab):
    """Asks one question after the other, and hears the answers, in one piece or not; or only listens."""

    kind = "Rumour"

    def __init__(self, server: Server, record: Record, random: Random, talk: str, *, asks: bool) -> None:
        super().__init__(server, record, random)
        self.root, self.path, self._asks = talk, f"/agents/rumour/{talk}", asks
        self._question = ""
        self._texts: dict[str, str] = {}
        """What this connection heard of each answer, from its beginning on."""
        self._frames: deque[Any] = deque(maxlen=60)

    async def live(self) -> None:
        self._texts.clear()
        self._frames.clear()
        async with self.connected() as socket:
            await self._tell(socket, {"type": wire.RESUME, "probeId": self.record.name("p")})
            while not self.record.done:
                if not self._asks:
                    await self._take_up(self._hear(await self._frame(socket)), socket)
                    continue
                self._question = self._question or f"q{self.record.name('')}"
                async with self.act("ask", [self.server.worker_of(self.root, self.kind)]):
                    await self._ask(socket)
                await self.pause()

    async def _frame(self, socket: Any) -> dict[str, Any]:
        while True:
            try:
                async with asyncio.timeout(0.5):
                    return json.loads(await socket.recv())
            except TimeoutError:
                if self.record.done:
                    return {}

    async def _ask(self, socket: Any) -> None:
        question = self._question
        self.record.asked[self.root].setdefault(question, False)
        said = [{"id": f"m-{question}", "role": "user", "parts": [{"type": "text", "text": question}]}]
        body = json.dumps({"messages": said, "trigger": "submit-message"})
        # If it was asked before, and nobody knows whether that was heard: the same id again changes nothing.
        await self._tell(socket, {"id": question, "init": {"method": "POST", "body": body}, "type": wire.REQUEST})
        while self._question and not self.record.done:
            await self._take_up(self._hear(await self._frame(socket)), socket)

    async def _take_up(self, offered: str | None, socket: Any) -> None:
        if offered is not None:
            await self._tell(socket, {"type": wire.RESUME_ACK, "id": offered})

    async def _tell(self, socket: Any, frame: dict[str, Any]) -> None:
        await socket.send(json.dumps(frame))

    def _hear(self, frame: dict[str, Any]) -> str | None:
        """Note what was heard; return the id of a stream that is offered."""
        self._frames.append({**frame, "messages": len(frame.get("messages", ()))})
        kind = frame.get("type")
        if kind == wire.RESUMING:  # what was heard of it comes again, or all of it is among the messages by now
            self._texts.pop(frame["id"], None)
            return str(frame["id"])
        if kind == wire.MESSAGES:
            texts = [_text(message) for message in frame["messages"]]
            if answer_to(self._question) in texts:
                self._heard_all(self._question)
        if kind != wire.RESPONSE:
            return None
        id = frame["id"]
        self.record.asked[self.root][id] = True
        if frame["done"]:
            text = self._texts.get(id)
            if frame.get("error"):
                self.record.problems.append(f"the answer to {id} failed: {frame}")
            elif text is not None and text != answer_to(id):
                self.record.problems.append(f"the answer to {id} came as {text!r}: {self._frames}")
            self._heard_all(id)
            return None
        chunk = json.loads(frame["body"] or "{}")
        if chunk.get("type") == "start":
            self._texts[id] = ""
        elif chunk.get("type") == "text-delta" and id in self._texts:
            self._texts[id] += chunk["delta"]
        return None

    def _heard_all(self, question: str) -> None:
        if question == self._question:
            self._question = ""


def _text(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"])


def clients(server: Server, record: Record, random: Random) -> list[Client]:
    """Return the clients of one folder."""
    one: Callable[[], Random] = lambda: Random(random.random())  # noqa: E731
    return [
        *(Writer(server, record, one(), root, 0) for root in ROOTS),
        *(Writer(server, record, one(), root, depth) for depth in (1, 2) for root in ROOTS[:3]),
        *(Poster(server, record, one()) for _ in range(3)),
        *(Gardener(server, record, one(), root) for root in ROOTS[:2]),
        *(Talker(server, record, one(), talk, asks=True) for talk in TALKS),
        Talker(server, record, one(), TALKS[0], asks=False),
    ]


async def ask(server: Server, path: str, method: str, *args: Any) -> Any:
    """Ask once, and return the answer."""
    tab = Tab(server, Record(), Random())
    url = f"ws://127.0.0.1:{server.port}{path}"
    async with (
        asyncio.timeout(PATIENCE),
        websockets.connect(url, compression=None, open_timeout=PATIENCE, max_size=None) as socket,
    ):
        return await tab.call(socket, method, *args)


async def transcript(server: Server, talk: str) -> list[tuple[str, str]]:
    """Return who said what in a talk, as whoever comes now is told when nothing streams."""
    url = f"ws://127.0.0.1:{server.port}/agents/rumour/{talk}"
    async with asyncio.timeout(PATIENCE), websockets.connect(url, compression=None, max_size=None) as socket:
        while True:
            frame = json.loads(await socket.recv())
            if frame.get("type") == wire.RESUMING:
                await socket.send(json.dumps({"type": wire.RESUME_ACK, "id": frame["id"]}))
            if frame.get("type") == wire.MESSAGES:
                return [(message["role"], _text(message)) for message in frame["messages"]]
