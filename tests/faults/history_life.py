"""A process that changes a tree, names moments and records what the tree holds at each, until it is killed.

    python history_life.py DATA RECORDING SEED

The recording has a line for each moment: its name, when it was, and a digest of all rows. It is written before the
moment is named, so a moment in the history is always in the recording.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

from tests.unit.histories import Gardener, Node, Rows, rows_now

from sapwood import App, Settings
from sapwood.testing import World
from sapwood.types import Address

ROOT = Address.parse("Node:a")
DAY = 86400.0


def digest_of(rows: Rows) -> str:
    """Return a digest of all rows of a tree."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


async def live(data: str, recording: str, seed: int) -> None:
    app = App(agents=[Node], settings=Settings(data=data, history=DAY, slow_after=10.0))
    async with app:
        world = cast(World, _Running(app))
        gardener = Gardener(world, "a", seed, agents=12)
        await gardener.find()
        print("lives", flush=True)
        with Path(recording).open("a") as file:  # noqa: ASYNC230 - this process has nothing else to do
            for number in range(1_000_000):
                await gardener.change()
                name = f"{seed}-{number}"
                root = await gardener.agent(())
                await root.flush_now()
                line = {"name": name, "at": time.time(), "digest": digest_of(rows_now(world, ROOT))}
                file.write(json.dumps(line) + "\n")
                file.flush()
                await root.mark(name)


class _Running:
    """What the tree is changed through."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.node = app.node

    async def get_agent(self, *args: Any, **kwargs: Any) -> Any:
        return await self.app.get_agent(*args, **kwargs)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], int(sys.argv[3])))
