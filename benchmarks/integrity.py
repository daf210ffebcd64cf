"""What it costs to notice damage: page checksums and marks, beside the same program without them.

    python benchmarks/integrity.py [metric …]

Both sides are processes of their own, measured in turns by the processor time that they use. The side without
opens its files with SQLite's own VFS, and stores no marks.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import apsw
import served
import uvloop
from frame import at_most, say, scratch
from tree import BIG, Root

import chat
from sapwood import App, Settings

REPEATS = 15
TIMES = 1.05
WITHOUT = "--without"


def without_checks() -> None:
    """Have this process neither compute nor compare checksums, and store no marks."""
    from sapwood.kernel.trees import tree
    from sapwood.storage import database, files

    files.Files.vfs = apsw.vfs_names()[0]
    database.has_checksums = lambda connection: True  # type: ignore[assignment]
    tree.Marks = lambda folder, files: None  # type: ignore[assignment,misc]


async def work(metric: str, level: str) -> None:
    """Measure once for each line of the input; print the processor time of one step in µs."""
    settings = Settings(data=scratch("integrity"), durability=level, slow_after=10, limits=BIG)  # type: ignore[arg-type]
    async with App(agents=[Root], settings=settings) as app:
        root = await app.get_agent(Root, "r")
        first = 0
        for _ in iter(sys.stdin.readline, ""):
            before = time.process_time()
            if metric == "increment":
                n = 1000
                await root.increment(n, 16)
            elif metric == "spawn":
                n = 200
                await root.spawn(first, n, True)
                first += n
            else:
                n = 100
                for _ in range(n):
                    await root.first("one")
                    app.node.sleep()
            print((time.process_time() - before) / n * 1e6, flush=True)


@contextmanager
def side(*arguments: str) -> Generator[subprocess.Popen[str], None, None]:
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def once(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def tree(metric: str, level: str, name: str) -> None:
    with side("--work", metric, level) as ours, side("--work", metric, level, WITHOUT) as reference:
        figures = [(once(ours), once(reference)) for _ in range(REPEATS + 1)]
    mine, theirs = (statistics.median(column) for column in zip(*figures[1:], strict=True))
    at_most(
        f"CPU of {name} at {level}, beside the same without checks", mine, theirs, times=TIMES, unit="µs", n=REPEATS
    )


async def token() -> None:
    tokens = chat.TOKENS
    with ExitStack() as stack:
        servers: list[chat.Server] = []
        for file, option in ((chat.__file__, "--serve"), (__file__, "--serve-without")):
            port = stack.enter_context(served.process(file, option, str(scratch("chat")), served.PORT))
            servers.append(chat.Server(port))

        async def answer(server: chat.Server) -> float:
            clients = await server.listeners(1)
            taken = await server.answer(clients, f"{tokens} 0")
            clients[0].transport.abort()
            return taken / tokens * 1e6

        figures = [[await answer(server) for server in servers] for _ in range(REPEATS + 1)]
    mine, theirs = (statistics.median(column) for column in zip(*figures[1:], strict=True))
    name = "CPU of a chat token, stored and sent, beside the same without checks"
    at_most(name, mine, theirs, times=TIMES, unit="µs", n=REPEATS)


METRICS = {
    "increment": lambda: [tree("increment", level, "an increment") for level in ("process", "disk")],
    "spawn": lambda: [tree("spawn", level, "a new child that writes a row") for level in ("process", "disk")],
    "wake": lambda: [tree("wake", level, "a child that wakes, writes and sleeps") for level in ("process", "disk")],
    "token": lambda: asyncio.run(token()),
}


def main() -> None:
    match sys.argv[1:]:
        case ["--work", metric, level, *rest]:
            if WITHOUT in rest:
                without_checks()
            uvloop.run(work(metric, level))
        case ["--serve-without", folder, port]:
            without_checks()
            chat.serve(folder, int(port))
        case names:
            for name in names or METRICS:
                say(f"-- {name}")
                METRICS[name]()


if __name__ == "__main__":
    main()
