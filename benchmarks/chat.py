"""Chats beside bare Pydantic AI: what a token costs, how late it comes where many talk, and how soon a long one opens.

    python benchmarks/chat.py [--small] [metric …]

The server is a process of its own and runs both sides, ours and bare Pydantic AI, on the
same model. What a token costs is the processor time of that process, so neither the
clients nor what else the machine does is in it. How late a token comes is time on the
wall, and means something only where the server has a core to itself: the note of that
line says for how long others had it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import served
import uvloop
from frame import Result, alternately, at_most, below, emit, say, scratch
from pydantic_ai import Agent as Bare
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from sockets import Client, connect

from sapwood import Agent, App, ChatAgent, Settings, expose
from sapwood.chat.store.record import ConversationRecord

SMALL = "--small" in sys.argv
GREETING = 3
"""Frames a client is greeted with."""
SNAPSHOT = b'{"type":"cf_agent_chat_messages"'
TOKENS = 500
"""Tokens of one answer, where its whole cost is measured."""
PACE = 0.02
"""Seconds between two tokens, where many talk: 50 a second."""
LONG = 5000
"""Messages of a long conversation."""
BEFORE, TURNS = 40, 10
"""Messages before the turns whose whole cost is measured, and how many turns are measured at once."""
ANSWER = "It grows from the root, a ring a year, and what is within carries what it drinks. " * 20


async def say_tokens(messages: Any, info: Any) -> AsyncIterator[str]:
    """Say as many tokens as asked for, at the pace asked for.

    A paced token says when it was due, by the clock that all processes share. One that
    comes late because the loop is busy is late from then on.
    """
    tokens, pace = str(messages[-1].parts[-1].content).split()
    if not float(pace):
        for _ in range(int(tokens)):
            await asyncio.sleep(0)
            yield "tok "
        return
    due = time.monotonic()
    for _ in range(int(tokens)):
        due += float(pace)
        await asyncio.sleep(due - time.monotonic())
        yield f"{due:.4f} "


MODEL = FunctionModel(stream_function=say_tokens)
bare = Bare(MODEL)


class Talker(ChatAgent):
    model = MODEL

    async def fill(self, n: int) -> None:
        """Have a conversation of so many messages, without having it."""
        transcript = self._actor.of(ConversationRecord).transcript
        for number in range(0, n, 2):
            question, id = f"Question {number}: how does a tree know how old it is?", f"msg-{number:031}"
            transcript.put({"id": id, "role": "user", "parts": [{"type": "text", "text": question}]})
            transcript.add(id, ModelRequest(parts=[UserPromptPart(question)]))
            said, id = {"type": "text", "text": ANSWER, "state": "done"}, f"msg-{number + 1:031}"
            transcript.put({"id": id, "role": "assistant", "parts": [{"type": "step-start"}, said]})
            transcript.add(id, ModelResponse(parts=[TextPart(ANSWER)]))


class Meter(Agent):
    """Tells what the process has used, and runs the bare side in it."""

    @expose
    async def used(self) -> float:
        return time.process_time()

    @expose
    async def waited(self) -> float:
        """Return for how many seconds the process could have run, and others had the core."""
        return waited()

    @expose
    async def fill(self, name: str, n: int) -> None:
        await (await self.get_agent(Talker, name)).fill(n)

    @expose
    async def turns(self, name: str) -> float:
        """Return the processor time of a turn that says one word, in a conversation that has begun."""
        talker = await self.get_agent(Talker, name)
        await talker.fill(BEFORE)
        await talker.send("1 0")
        start = time.process_time()
        for _ in range(TURNS):
            await talker.send("1 0")
        return (time.process_time() - start) / TURNS

    @expose
    async def bare_turns(self) -> float:
        """Return the processor time of a bare step that says one word, after as many messages."""
        taken = [await self.run_bare(1, 0, 1, BEFORE + 2 + 2 * number) for number in range(TURNS)]
        return sum(taken) / TURNS

    @expose
    async def run_bare(self, tokens: int, pace: float, at_once: int, before: int) -> float:
        """Return the processor time that so many bare runs at once took, after so many messages each."""
        history: list[Any] = []
        for _ in range(0, before, 2):
            history += [ModelRequest(parts=[UserPromptPart("Why?")]), ModelResponse(parts=[TextPart(ANSWER)])]
        start = time.process_time()
        await asyncio.gather(*(read(f"{tokens} {pace}", history) for _ in range(at_once)))
        return time.process_time() - start


def waited() -> float:
    path = Path("/proc/self/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0


async def read(prompt: str, history: Sequence[Any]) -> None:
    async with bare.iter(prompt, message_history=history or None) as run:
        async for node in run:
            if Bare.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass


def serve(folder: str, port: int) -> None:
    served.serve(App(agents=[Talker, Meter], settings=Settings(data=folder, slow_after=60)), port)


class Listener(Client):
    """A client of a chat: notes when something came, and knows when an answer is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[float, bytes]] = []
        self.snapshot = 0
        """How long the last snapshot of the conversation was, in bytes."""
        self._whole: asyncio.Future[None] | None = None

    def heard(self, payload: bytes) -> None:
        super().heard(payload)
        if b'"done":false' in payload:
            self.came.append((time.monotonic(), payload))
        elif b'"done":true' in payload and self._whole is not None and not self._whole.done():
            self._whole.set_result(None)
        elif payload.startswith(SNAPSHOT):
            self.snapshot = len(payload)

    def whole(self) -> asyncio.Future[None]:
        """Return what ends with the answer."""
        self._whole = asyncio.get_running_loop().create_future()
        return self._whole

    def ask(self, id: str, text: str) -> asyncio.Future[None]:
        message = {"id": f"user-{id}", "role": "user", "parts": [{"type": "text", "text": text}]}
        body = json.dumps({"messages": [message], "trigger": "submit-message"})
        frame = {"id": id, "init": {"method": "POST", "body": body}, "type": "cf_agent_use_chat_request"}
        whole = self.whole()
        self.send(json.dumps(frame).encode())
        return whole


class Server:
    """Our server, and what it is asked about itself."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._meter: Client | None = None
        self._names = iter(range(1_000_000))

    async def meter(self, method: str, *args: object) -> Any:
        if self._meter is None:
            self._meter = await connect(self.port, "/agents/meter/m", 2)
        before = self._meter.frames
        self._meter.send(json.dumps({"type": "rpc", "id": "1", "method": method, "args": args}).encode())
        await self._meter.until(before + 1)
        answer = json.loads(self._meter.last)
        if not answer.get("success"):
            raise RuntimeError(answer)
        return answer.get("result")

    async def listeners(self, n: int) -> list[Listener]:
        """Return so many clients of a new conversation."""
        path = f"/agents/talker/talk-{next(self._names)}"
        return [await connect(self.port, path, GREETING, Listener) for _ in range(n)]

    async def answer(self, clients: Sequence[Listener], prompt: str) -> float:
        """Have one of the clients ask; return the processor time until all have the answer."""
        before = await self.meter("used")
        others = [client.whole() for client in clients[1:]]
        await clients[0].ask("ask", prompt)
        await asyncio.gather(*others)
        return await self.meter("used") - before


@contextmanager
def server(folder: Path | None = None) -> Generator[Server, None, None]:
    """Run our server in a process of its own."""
    with served.process(__file__, "--serve", str(folder or scratch("chat")), served.PORT) as port:
        yield Server(port)


async def token() -> None:
    """Read answers of a model that speaks as fast as it is read, with one client and with twenty."""
    with server() as one:

        async def ours(watchers: int) -> float:
            clients = await one.listeners(watchers)
            taken = await one.answer(clients, f"{TOKENS} 0")
            chunks.append(len(clients[0].came))
            for client in clients:
                client.transport.abort()
            return taken / TOKENS * 1e6

        async def theirs() -> float:
            return await one.meter("run_bare", TOKENS, 0, 1, 0) / TOKENS * 1e6

        alone = 0.0
        for watchers, name in ((1, "one client"), (20, "20 watchers")):
            chunks: list[int] = []
            mine, reference = await alternately(lambda watchers=watchers: ours(watchers), theirs, repeats=15)
            name = f"CPU of a token, stored and sent to {name}, beside bare Pydantic AI"
            note = f"answers of {TOKENS} tokens, in {(many := statistics.median(chunks)):.0f} chunks"
            if watchers == 1:
                alone = mine / reference
                at_most(name, mine, reference, times=1.4, unit="µs", n=TOKENS, note=note)
            else:
                each = (mine - alone * reference) * TOKENS / (watchers - 1)
                note += f"; about {each:.0f} µs for each further watcher of an answer, {each / many:.0f} µs a chunk"
                emit(Result(name, mine, reference, mine / reference, "µs", TOKENS, "recorded", True, note))


async def turn() -> None:
    """Take turns of one word, with no client: what is left is what a turn costs besides its tokens."""
    with server() as one:
        names = iter(range(1_000))

        async def ours() -> float:
            return await one.meter("turns", f"turns-{next(names)}") * 1e3

        async def theirs() -> float:
            return await one.meter("bare_turns") * 1e3

        mine, reference = await alternately(ours, theirs, repeats=5 if SMALL else 25)
        name = f"CPU of a turn of one word after {BEFORE} messages, beside a bare Pydantic AI step"
        at_most(name, mine, reference, times=1.5, unit="ms", n=TURNS)


async def watched() -> None:
    """Have twenty conversations at 50 tokens a second each, with one client each and with twenty."""
    talks, tokens = 20, 100
    with server() as one:

        async def ours(watchers: int) -> float:
            groups = [await one.listeners(watchers) for _ in range(talks)]
            before = await one.meter("used")
            ends = [client.whole() for group in groups for client in group[1:]]
            ends += [group[0].ask("ask", f"{tokens} {PACE}") for group in groups]
            await asyncio.gather(*ends)
            taken = await one.meter("used") - before
            for group in groups:
                for client in group:
                    client.transport.abort()
            return taken / talks / tokens * 1e6

        async def theirs() -> float:
            return await one.meter("run_bare", tokens, PACE, talks, 0) / talks / tokens * 1e6

        for watchers, whom in ((1, "one client each"), (20, "20 watchers each")):
            mine, reference = await alternately(lambda watchers=watchers: ours(watchers), theirs, repeats=5)
            name = f"CPU of a token in {talks} conversations at 50 tokens/s with {whom}, beside bare Pydantic AI"
            emit(Result(name, mine, reference, mine / reference, "µs", talks * tokens, "recorded", True))


async def crowd() -> None:
    """Have many conversations at 50 tokens a second each, one answer after the other."""
    tokens, seconds = 250, 5 if SMALL else 20
    for talks in (100, 200):
        with server() as one:
            clients = [(await one.listeners(1))[0] for _ in range(talks)]
            tasks: list[asyncio.Future[None]] = []
            for client in clients:
                tasks.append(asyncio.ensure_future(talk(client, tokens)))
                await asyncio.sleep(tokens * PACE / talks)
            await asyncio.sleep(1)
            for client in clients:
                client.came.clear()
            used, lost, start = await one.meter("used"), await one.meter("waited"), time.monotonic()
            await asyncio.sleep(seconds)
            used, lost = await one.meter("used") - used, await one.meter("waited") - lost
            lasted = time.monotonic() - start
            late = sorted(delay for client in clients for delay in delays(client.came))
            for task in tasks:
                task.cancel()
        name = f"{talks} conversations at 50 tokens/s on one core, how late a token comes, p99"
        note = (
            f"p50 {late[len(late) // 2]:.0f} ms; the server used {used / lasted:.0%} of a core for "
            f"{len(late) / lasted:,.0f} tokens/s, and others had it {lost / lasted:.0%} of the time"
        )
        p99 = late[len(late) * 99 // 100]
        if talks == 100:
            below(name, p99, 150, unit="ms", n=len(late), note=note)
        else:
            emit(Result(name, p99, None, None, "ms", len(late), "recorded", True, note))


def delays(came: Sequence[tuple[float, bytes]]) -> list[float]:
    """Return how late each paced token came, in milliseconds."""
    found: list[float] = []
    for at, payload in came:
        chunk = json.loads(json.loads(payload)["body"])
        if chunk["type"] == "text-delta":
            found += [(at - float(due)) * 1e3 for due in chunk["delta"].split()]
    return found


async def talk(client: Listener, tokens: int) -> None:
    """Ask again whenever the answer is whole."""
    for number in count():
        await client.ask(f"{id(client):x}-{number}", f"{tokens} {PACE}")


async def reopen() -> None:
    """Open long conversations in a process that has not seen them, over HTTP and by a socket."""
    folder, each = scratch("long"), 3 if SMALL else 9
    with server(folder) as one:
        for number in range(2 * each + 1):
            await one.meter("fill", f"long-{number}", LONG)
    with server(folder) as one:
        clients = await one.listeners(1)
        await one.answer(clients, "10 0")
        await get(one.port, "/agents/talker/long-0/get-messages")
        asked: list[tuple[float, float]] = []
        connected: list[tuple[float, float]] = []
        for number in range(1, 2 * each + 1, 2):
            used, start = await one.meter("used"), time.perf_counter()
            size = await get(one.port, f"/agents/talker/long-{number}/get-messages")
            lasted = time.perf_counter() - start
            asked.append((await one.meter("used") - used, lasted))
            used, start = await one.meter("used"), time.perf_counter()
            client = await connect(one.port, f"/agents/talker/long-{number + 1}", GREETING, Listener)
            lasted = time.perf_counter() - start
            connected.append((await one.meter("used") - used, lasted))
            if client.snapshot < size:
                raise RuntimeError(client.last[:100])
            client.transport.abort()
        for how, taken in (("GET get-messages", asked), ("a socket's snapshot", connected)):
            cpu, wall = (statistics.median(one) * 1e3 for one in zip(*taken, strict=True))
            note = f"{size / 1e6:.1f} MB, of which the client had the last byte after {wall:.0f} ms"
            name = f"server time to reopen a conversation of {LONG:,} messages, {how}"
            below(name, cpu, 150, unit="ms", n=each, note=note)

        async def ours() -> float:
            nonlocal number
            number -= 1
            client = await connect(one.port, f"/agents/talker/long-{number}", GREETING, Listener)
            taken = await one.answer([client], "50 0")
            client.transport.abort()
            return taken * 1e3

        async def theirs() -> float:
            return await one.meter("run_bare", 50, 0, 1, LONG) * 1e3

        mine, reference = await alternately(ours, theirs, repeats=2 if SMALL else 7)
        name = f"CPU of the first answer after {LONG:,} messages, beside bare Pydantic AI"
        emit(Result(name, mine, reference, mine / reference, "ms", 50, "recorded", True, "answers of 50 tokens"))


async def get(port: int, path: str) -> int:
    """Return how long the body is that a GET is answered with, once it is here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.splitlines()[0]:
        raise RuntimeError(head)
    body = await reader.read()
    writer.close()
    return len(body)


METRICS = {metric.__name__: metric for metric in (token, turn, watched, crowd, reopen)}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
