"""Whoever has installed sapwood alone, without any extra, can use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import patience

OPTIONAL = (
    "starlette",
    "uvicorn",
    "websockets",
    "cyclopts",
    "pydantic",
    "pydantic_ai",
    "pydantic_evals",
    "httpx2",
    "jwt",
    "pydantic_monty",
    "temporalio",
)


@pytest.mark.slow
def test_the_package_is_imported_and_an_agent_runs_without_any_extra(tmp_path: Path) -> None:
    program = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
import asyncio
from sapwood import Agent, App
class Alone(Agent):
    async def on_run(self, input):
        return input + 1
    async def add(self):
        return (await self.run_agent(Alone, 1)).output
async def main():
    async with App(agents=[Alone]) as app:
        print(await (await app.get_agent(Alone, "a")).add())
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(), check=False, cwd=tmp_path
    )

    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
