"""Records: what they cost a turn in CPU time and bytes.

    python benchmarks/records.py [--small] [NAME …]

Turns with records and without take turns in one process; the figures are medians of the CPU time of the process, so
the load of the machine counts little. The provider of the metrics "over HTTP" is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
from frame import at_most, say, scratch
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, Settings, tool

SMALL = "--small" in sys.argv
ONLY = {one for one in sys.argv[1:] if not one.startswith("-")}
ROUNDS = 8 if SMALL else 32
PER_ROUND = 10
PER_AGENT = 4
"""Rounds that one pair of agents takes: its conversation grows in them."""
HISTORY = 200
BAR = 1.05
NUMBERS = itertools.count()
PROVIDER = """
import asyncio, json
def event(delta, end=None, usage=None):
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": end}]
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "choices": choices}
    return b"data: " + json.dumps(body | ({"usage": usage} if usage else {})).encode() + b"\\n\\n"
USED = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
END = event({}, "stop") + event(None, usage=USED) + b"data: [DONE]\\n\\n"
WORD = event({"role": "assistant", "content": "Yes."}) + END
HEAD = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(WORD)
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode().lower()
            await reader.readexactly(int(head.split("content-length: ")[1].split("\\r\\n")[0]))
            writer.write(HEAD + WORD)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


async def word(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "Yes."


async def word_after_a_tool(messages: Any, info: Any) -> AsyncIterator[Any]:
    if messages[-1].parts[-1].part_kind == "user-prompt":
        yield {0: DeltaToolCall(name="look", json_args='{"about": "water"}', tool_call_id=f"c{next(NUMBERS)}")}
    else:
        yield "Yes."


class Looking(ChatAgent):
    instructions = "You are a helpful assistant of a small firm. Be short, and say where you know it from. " * 10

    @tool
    async def look(self, about: str) -> str:
        """Look something up in the handbook of the firm."""
        return f"All about {about}."


def both(model: Any) -> tuple[type[ChatAgent], type[ChatAgent]]:
    """Return a class with records, and one without."""
    return (
        type("On", (Looking,), {"model": model}),
        type("Off", (Looking,), {"model": model, "record_retention": None}),
    )


async def turns(agent: Any, count: int) -> float:
    """Return the seconds of CPU time that one turn took."""
    start = time.process_time()
    for _ in range(count):
        turn = await agent.send(f"Question {next(NUMBERS)}: " + "is water wet, and if so, how wet is it? " * 8)
        if turn.status != "completed":
            raise RuntimeError(turn)
    return (time.process_time() - start) / count


async def measure(name: str, model: Any, *, history: int = 0) -> None:
    """Measure turns with records and without in turn; each pair of agents begins with so many messages."""
    if ONLY and name not in ONLY:
        return
    on, off = both(model)
    data = scratch("records")
    ratios, theirs = list[float](), list[float]()
    async with App(agents=[on, off], settings=Settings(data=data, slow_after=10.0)) as app:
        for number in range(ROUNDS):
            agents = {cls: await app.get_agent(cls, f"a{number // PER_AGENT}") for cls in (on, off)}
            if number % PER_AGENT == 0:
                for agent in agents.values():
                    await turns(agent, max(history // 2, 3))
            gc.collect()
            took: dict[type, float] = {on: 0.0, off: 0.0}
            for at in range(PER_ROUND):
                for cls in (on, off) if at % 2 else (off, on):
                    took[cls] += await turns(agents[cls], 1) / PER_ROUND
            ratios.append(took[on] / took[off])
            theirs.append(took[off])
    bytes_each = sizes(data)
    other, ratio = statistics.median(theirs) * 1e3, statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4)
    note = f"{bytes_each:.0f} bytes a turn; middle half of the rounds {quarters[0]:.3f} to {quarters[2]:.3f}"
    n = ROUNDS * PER_ROUND
    at_most(f"CPU of {name}, with records beside without", other * ratio, other, times=BAR, unit="ms", n=n, note=note)


def sizes(data: Path) -> float:
    """Return how many bytes records add to a turn."""
    used, count = 0.0, 0
    for path in data.rglob("root.db"):
        with contextlib.closing(apsw.Connection(str(path))) as database:
            ((pages, size),) = database.execute(
                "SELECT page_count - freelist_count, page_size"
                " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
            )
            ((turns,),) = database.execute("SELECT count(*) FROM sapwood_turns")
            is_on = bool(list(database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sapwood_spans'")))
            used += int(str(pages)) * int(str(size)) * (1 if is_on else -1)
            count += int(str(turns)) * is_on
    return used / count


@contextlib.contextmanager
def provider() -> Iterator[Any]:
    """Run a provider in another process; yield a model that asks it."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    with subprocess.Popen([sys.executable, "-c", PROVIDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield OpenAIChatModel(
                "gpt-4o", provider=OpenAIProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key="k")
            )
        finally:
            process.terminate()


async def main() -> None:
    say(f"{ROUNDS} rounds of {PER_ROUND} turns with records, and as many without")
    await measure("a turn of one word", FunctionModel(stream_function=word))
    await measure("a turn with a tool", FunctionModel(stream_function=word_after_a_tool))
    await measure(f"a turn after {HISTORY} messages", FunctionModel(stream_function=word), history=HISTORY)
    with provider() as model:
        await measure("a turn of one word over HTTP", model)
        await measure(f"a turn after {HISTORY} messages over HTTP", model, history=HISTORY)


if __name__ == "__main__":
    asyncio.run(main())
