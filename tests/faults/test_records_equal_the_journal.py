"""The records of a turn with sub-agents, retries, an approval and two `kill -9` equal a journal outside of sapwood.

The journal is a file outside the data folder. Tools and the model append a line to it when they begin and when they
end, and the process kills itself while it appends one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from tests.faults.reading import walk
from tests.faults.span_checker import Records, Span, read_records
from tests.machine import patience

from sapwood.address import Address

KILLS = 2
PROGRAM = '''
import asyncio, json, os, signal, sys, time
from pydantic_ai.exceptions import ModelOverloadedError
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from sapwood import App, ChatAgent, Settings, agent_tool, tool

data, path, life, die_at, workers, calls = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
journal = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
overloaded = {tuple(line[1:3]) for line in map(json.loads, open(path)) if line[0] == "overloaded"}
left = die_at
ROUNDS = 4

def note(*line):
    global left
    os.write(journal, json.dumps([*line, life, time.time()]).encode() + b"\\n")
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def called(who, step):
    """What the model answers: the names, arguments and ids of tools."""
    if who == "go":
        asked = [("worker", {"message": f"w{n}"}, f"go-{n}") for n in range(workers)]
        return {1: asked, 2: [("pay", {}, "pay")]}.get(step, [])
    if step > ROUNDS:
        return []
    keys = [f"{who}-{step}-{n}" for n in range(calls // ROUNDS)]
    return [("look", {"key": key}, key) for key in keys]

async def answer(messages, info):
    prompts = [part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"]
    who = str(prompts[0]).split()[-1]
    step = 1 + sum(message.kind == "response" for message in messages)
    note("asked", who, step)
    if step == 2 and who in ("w0", "w1", "go") and (who, step) not in overloaded:
        overloaded.add((who, step))
        note("overloaded", who, step)
        raise ModelOverloadedError("journalled", "busy")
    yield "Well."
    await asyncio.sleep(0.002)
    for at, (name, arguments, id) in enumerate(called(who, step)):
        yield {at: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=id)}
    note("answered", who, step)

MODEL = FunctionModel(stream_function=answer, model_name="journalled")

class Worker(ChatAgent):
    """Looks things up."""
    model = MODEL

    @tool(idempotent=True)
    async def look(self, key: str) -> str:
        """Look something up."""
        note("begun", key)
        await asyncio.sleep(0.001)
        note("ended", key)
        return key

class Boss(ChatAgent):
    model = MODEL
    tools = [agent_tool(Worker)]

    @tool(requires_approval=True, idempotent=True)
    async def pay(self) -> str:
        """Pay."""
        note("begun", "pay")
        note("ended", "pay")
        return "paid"

async def main():
    note("life", "")
    async with App(agents=[Boss], settings=Settings(data=data, slow_after=10.0)) as app:
        boss = await app.get_agent(Boss, "b")
        turn = await boss.turns.start("go", id="the-turn")
        ended = await boss.turns.wait(turn.id)
        if ended.status == "waiting":
            (question,) = await boss.questions.list()
            note("approved", "pay")
            await boss.questions.approve(question)
            ended = await boss.turns.wait(turn.id)
        print(ended.status, flush=True)

asyncio.run(main())
'''


class Line(NamedTuple):
    """One line of the journal."""

    what: str
    who: str
    step: int
    life: int
    at: float


def read(path: Path) -> list[Line]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [Line(one[0], str(one[1]), one[2] if len(one) == 5 else 0, *one[-2:]) for one in lines]


def run(folder: Path, life: int, die_at: int, *size: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder / "data"), str(folder / "journal")]
    arguments = [str(number) for number in (life, die_at, *size)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=patience(120), check=False)


def recorded(folder: Path) -> dict[str, Records]:
    """Return the records of all agents: that of the root as `go`, of a worker by what it was asked."""
    found: dict[str, Records] = {}

    def look(address: Address, stem: str, database: apsw.Connection | None) -> None:
        if database is None:
            return
        records = read_records(database)
        if address.parent is None:
            found["go"] = records
        elif records.spans:
            keys = [span.key for span in records.of("tool")]
            found[keys[0].partition("-")[0]] = records

    walk(folder / "data", Address.root_of("Boss", "b"), look)
    return found


class Judge:
    """Compares the records of one agent with the lines of the journal about it."""

    def __init__(self, who: str, records: Records, lines: list[Line]) -> None:
        self.records = records
        self.starts = [line.at for line in lines if line.what == "life"]
        self.ends = [max(line.at for line in lines if line.life == life) for life in range(1, len(self.starts) + 1)]
        self.mine = [line for line in lines if line.who == who or line.who.startswith(f"{who}-")]
        if who == "go":
            self.mine += [line for line in lines if line.who == "pay"]

    def life(self, span: Span) -> int:
        return sum(start <= span.began_at for start in self.starts)

    def lines(self, what: str) -> Counter[Any]:
        return Counter((line.who if not line.step else line.step, line.life) for line in self.mine if line.what == what)

    def check(self) -> None:
        assert self.records.problems() == []
        steps = [(span.step, self.life(span), span.status) for span in self.records.of("step")]
        tools = [(span.key, self.life(span), span.status) for span in self.records.of("tool")]
        self.compare(tools, self.lines("begun"), self.lines("ended"))
        asked, failed = self.lines("asked"), self.lines("overloaded")
        self.compare([one for one in steps if one[2] != "failed"], asked - failed, self.lines("answered"))
        recorded = Counter((step, life) for step, life, status in steps if status == "failed")
        assert not recorded - failed
        assert all(life < len(self.starts) for _, life in failed - recorded), "a failed request was not recorded"
        (turn,) = self.records.of("turn")
        assert turn.status == "completed"
        self.check_gaps()

    def compare(self, spans: list[tuple[Any, int, str]], begun: Counter[Any], ended: Counter[Any]) -> None:
        """Each line has its record. A record without one was cut off before it was more than recorded."""
        found = Counter((key, life) for key, life, _ in spans)
        assert not begun - found, f"not recorded: {begun - found}"
        extra = found - begun
        cut = Counter((key, life) for key, life, status in spans if status == "interrupted")
        assert not extra - cut, "what did not happen is recorded"
        completed = Counter((key, life) for key, life, status in spans if status == "completed")
        assert not completed - ended, "what did not end is recorded as completed"
        assert set(Counter(key for key, _ in completed.elements()).values()) <= {1}
        assert {key for key, _ in completed} == {key for key, _ in begun}
        assert {status for _, _, status in spans} <= {"completed", "interrupted"}
        assert all(life <= KILLS for _, life in cut), "a record is cut off in a life that was not killed"

    def check_gaps(self) -> None:
        """What was cut off began before the kill and has no end; its next attempt began in a later life."""
        by_name = defaultdict[tuple[str, int | None, str], list[Span]](list)
        for span in [*self.records.of("step"), *self.records.of("tool")]:
            by_name[span.kind, span.step if span.kind == "step" else None, span.key].append(span)
            if span.status == "interrupted":
                assert span.began_at <= self.ends[self.life(span) - 1]
                assert span.ended_at is None or span.ended_at >= self.starts[self.life(span)]
            else:
                assert span.ended_at is not None
        for spans in by_name.values():
            for before, after in pairwise(spans):
                assert after.attempt == before.attempt + 1
                assert before.status in ("failed", "interrupted")
                assert self.life(after) > self.life(before) or before.status == "failed"


@pytest.mark.parametrize(
    ("workers", "calls", "deaths"),
    [
        pytest.param(2, 8, (9, 17), marks=pytest.mark.nightly),
        *(
            pytest.param(5, 40, deaths, marks=pytest.mark.nightly)
            for deaths in ((3, 8), (40, 120), (101, 102), (250, 97), (333, 61))
        ),
    ],
)
def test_the_records_of_a_turn_that_is_killed_twice_equal_the_journal(
    tmp_path: Path, workers: int, calls: int, deaths: tuple[int, int]
) -> None:
    for life, die_at in enumerate(deaths, 1):
        killed = run(tmp_path, life, die_at, workers, calls)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = run(tmp_path, KILLS + 1, -1, workers, calls)
    assert (last.returncode, last.stdout) == (0, "completed\n"), last.stderr

    lines, found = read(tmp_path / "journal"), recorded(tmp_path)
    assert set(found) == {"go", *(f"w{number}" for number in range(workers))}
    for who, records in found.items():
        Judge(who, records, lines).check()
    boss = found["go"]
    assert [span.status for span in boss.of("run")] == ["completed"] * workers
    assert [(span.status, span.facts["decision"]) for span in boss.of("wait")] == [("completed", "approved")]
    assert sum(len(records.of("tool")) for records in found.values()) >= workers * calls + 1
    assert {span.status for records in found.values() for span in records.spans} >= {"failed", "interrupted"}
