"""Processes that are killed at any point: their past is right up to a second before, and their present is whole."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.faults.history_life import DAY, ROOT, digest_of
from tests.unit.histories import Node, rows_of

from sapwood import App, Settings
from sapwood.kernel.history.moments import TreePast
from sapwood.kernel.history.segments import history_folder
from sapwood.kernel.node.backup import verify

PROGRAM = Path(__file__).with_name("history_life.py")
ROOT_FOLDER = Path(__file__).parents[2]
LAG = 1.5
"""Seconds before its death that a process may not have recorded: one, and what a busy machine adds."""


def kill_one(data: Path, recording: Path, seed: int, after: float) -> float:
    """Let a process live for a while, and return when it was killed."""
    command = [sys.executable, str(PROGRAM), str(data), str(recording), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT_FOLDER)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "lives\n"
        time.sleep(after)
        process.kill()
        process.wait()
    return time.time()


async def check(data: Path, recording: str, deaths: list[float]) -> tuple[int, int]:
    """Compare each recorded moment; return how many there are, and how many are in the history."""
    lines = [json.loads(line) for line in recording.splitlines() if line.endswith("}")]
    async with App(agents=[Node], settings=Settings(data=data, history=DAY)) as app:
        found = {one.label: one for one in await app.moments(Node, "a", limit=1_000_000) if one.kind == "mark"}
        past = TreePast(history_folder(data, ROOT), ROOT)
        known = 0
        for line in lines:
            moment = found.get(line["name"])
            if moment is None:
                death = min(at for at in deaths if at >= line["at"])
                assert line["at"] > death - LAG, f"{line['name']} is missing, {death - line['at']:.2f} s before a death"
                continue
            known += 1
            held = rows_of(past.read(past.find(moment)).files)
            assert digest_of(held) == line["digest"], line["name"]
        assert (await verify(app.node, ROOT)).is_whole
    return len(lines), known


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_the_past_of_killed_processes_is_as_it_was(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    deaths = [
        kill_one(tmp_path / "data", tmp_path / "recording", seed * 100 + life, chance.uniform(0.0, 3.0))
        for life in range(8)
    ]
    lines, known = asyncio.run(check(tmp_path / "data", (tmp_path / "recording").read_text(), deaths))
    assert known > lines * 0.5, (known, lines)
