"""How long a fork, an export and an import take, beside a plain copy of the same files; and what agents notice of it.

`reference` is `cp -r` of the tree's folder with a sync. `slice` is the longest time in which the event loop served
nothing else during the fork; its reference is the bar, in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from sapwood import Agent, App, Settings
from sapwood.kernel.node.data_folder import roots_in, tree_folder


class Leaf(Agent):
    migrations = ("CREATE TABLE t (b BLOB) STRICT",)

    async def fill(self, size: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", os.urandom(size))

    async def ping(self) -> int:
        return 1


class Branch(Leaf):
    async def grow(self, leaves: int, size: int) -> None:
        for number in range(leaves):
            await (await self.sub_agent(Leaf, str(number))).fill(size)


class Root(Leaf):
    async def grow(self, branches: int, leaves: int, size: int) -> None:
        for number in range(branches):
            branch = await self.sub_agent(Branch, str(number))
            await branch.fill(size)
            await branch.grow(leaves, size)


async def longest_slice(done: asyncio.Event) -> float:
    longest, last = 0.0, time.perf_counter()
    while not done.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        await asyncio.sleep(0.001)
        last = time.perf_counter()
    return longest * 1000


def copied(folder: Path, target: Path) -> float:
    began = time.perf_counter()
    shutil.copytree(folder, target)
    for path in target.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - began


def told(name: str, ours: float, reference: float, unit: str, n: int, bar: float, *, absolute: bool = False) -> None:
    value = ours if absolute else ours / reference
    line = {"name": name, "ours": round(ours, 3), "reference": round(reference, 3), "ratio": round(ours / reference, 2)}
    print(json.dumps(line | {"unit": unit, "n": n, "bar": bar, "holds": value <= bar}))


async def main(branches: int, leaves: int, size: int) -> None:
    agents = 1 + branches * (leaves + 1)
    with tempfile.TemporaryDirectory() as data:
        async with App(agents=[Root], settings=Settings(data=f"{data}/data")) as app:
            root = await app.get_agent(Root, "a")
            await root.grow(branches, leaves, size)
            (address,) = roots_in(Path(data, "data"))
            plain = copied(tree_folder(Path(data, "data"), address), Path(data, "copy"))
            done, calls = asyncio.Event(), 0

            async def call() -> int:
                count = 0
                while not done.is_set():
                    await root.ping()
                    count += 1
                    await asyncio.sleep(0.001)
                return count

            watching, calling = asyncio.create_task(longest_slice(done)), asyncio.create_task(call())
            began = time.perf_counter()
            await app.fork(Root, "a", to="b")
            took = time.perf_counter() - began
            done.set()
            slice_ms, calls = await watching, await calling
            told("fork", took, plain, "s", agents, 2.0, absolute=True)
            told("fork longest slice", slice_ms, 20.0, "ms", calls, 20.0, absolute=True)
            began = time.perf_counter()
            await app.export(Root, "a", Path(data, "a.tree"))
            told("export", time.perf_counter() - began, plain, "s", agents, 4.0, absolute=True)
            began = time.perf_counter()
            await app.import_(Path(data, "a.tree"), as_name="c")
            told("import", time.perf_counter() - began, plain, "s", agents, 4.0, absolute=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=27)
    parser.add_argument("--leaves", type=int, default=36)
    parser.add_argument("--size", type=int, default=100_000)
    asked = parser.parse_args()
    asyncio.run(main(asked.branches, asked.leaves, asked.size))
