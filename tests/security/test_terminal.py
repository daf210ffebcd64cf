"""Names and texts of users and models: they control neither the terminal of an operator nor the lines of a log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console, RenderableType
from tests.machine import patience

from sapwood import Agent, App, Retry, Settings
from sapwood.cli import cluster, render
from sapwood.cli.commands import cli
from sapwood.cli.commands import run as run_command
from sapwood.cli.deployment_check import Report
from sapwood.cli.doctor import Finding
from sapwood.cli.terminal import error_line
from sapwood.cli.top import Top
from sapwood.escapes import LineFormatter, escape_controls
from sapwood.kernel.node.data_folder import OddEntry
from sapwood.kernel.node.upgrade_check import Misfit
from sapwood.runtimes.cluster.base.cluster_status import NodeStatus, Seen
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.ops.verification import VerificationReport
from sapwood.types import Address

HOSTILE = "x\x1b]0;OWNED\x07\x1b[2J\r\b\x7f\x9b31m\u202e\u2066 [red]y"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""All but the line break, which only the commands themselves may print."""


class TerminalVault(Agent[Any]):
    """Has a child, a state, a row, a fiber, a dead letter and a run, all with a hostile name or text."""

    initial_state = None
    migrations = ("CREATE TABLE notes (note TEXT) STRICT",)

    async def prepare(self) -> None:
        await self.sub_agent(TerminalVault, HOSTILE)
        self.set_state({HOSTILE: HOSTILE})
        self.sql("INSERT INTO notes VALUES (?)", HOSTILE)
        self.start_fiber(HOSTILE, self.given_up)
        await self.run_agent(TerminalVault, HOSTILE, run_id=f"run-{HOSTILE}")
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.fail, HOSTILE)

    async def given_up(self) -> int:
        return len(self.dead_letters.list())

    async def fail(self, text: str) -> None:
        raise ValueError(text)

    async def on_run(self, input: str) -> str:
        return input


def controls(text: str) -> list[str]:
    return CONTROLS.findall(text)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder in which an agent with hostile names has worked."""
    folder = tmp_path_factory.mktemp("terminal") / "data"

    async def work() -> None:
        async with App(agents=[TerminalVault], settings=Settings(data=folder)) as app:
            vault = await app.get_agent(TerminalVault, HOSTILE)
            await vault.prepare()
            async with asyncio.timeout(patience()):
                while not await vault.given_up():  # noqa: ASYNC110 - nothing tells when a call was given up
                    await asyncio.sleep(0.01)

    asyncio.run(work())
    return str(folder)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("command", ["tree", "dead-letters", "runs", "sql", "state", "explain"])
def test_no_command_prints_control_characters(
    data: str, command: str, as_json: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    address = str(Address.root_of("TerminalVault", HOSTILE))
    more = {"tree": [], "dead-letters": [], "runs": [address], "sql": [address, "SELECT * FROM notes"]}
    more["explain"] = [address]
    if command == "state":
        cli(["state", address, "--data", data])
    else:
        cli([command, *more[command], *as_json, "--data", data])

    said = capsys.readouterr()
    assert "OWNED" in said.out
    assert controls(said.out + said.err) == []
    if command == "state":
        assert json.loads(said.out) == {HOSTILE: HOSTILE}
    elif as_json:
        assert json.loads(said.out)


def rendered(shown: RenderableType) -> str:
    console = Console(file=StringIO(), width=400, color_system=None)
    console.print(shown)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def top() -> RenderableType:
    waiting = dict.fromkeys(("due", "waking", "disk", "threads", "clients", "workers"), 1)
    process = {"process": 1, "uptime": 1.0, "cpu_seconds": 1.0, "memory": 1, "waiting": waiting, "ready": False}
    worker = {"worker": HOSTILE, "pool": HOSTILE, "unready": HOSTILE, **process}
    worker |= dict.fromkeys(("trees", "agents", "calls", "sockets", "restarts"), 1)
    tree = {"address": HOSTILE, "worker": HOSTILE, "agents": 1, "calls": 1, "per_second": 1.0, "queued": 1}
    slow = {"method": HOSTILE, "worker": HOSTILE, "times": 1, "seconds": 1.0}
    busiest = [{**tree, "more": False, "sockets": 1}]
    return Top(20, 400)({"workers": [worker], "unanswered": [HOSTILE], "busiest": busiest, "slow": [slow]})


def many() -> list[RenderableType]:
    branch: dict[str, Any] = {"address": HOSTILE, "status": HOSTILE, "calls": 0, "sockets": 0, "bytes": 0}
    branch |= {"children": 0, "last_error": HOSTILE.replace("\r", ""), "below": []}
    branch |= {"queued_calls": 1, "runs": 1, "fibers": 1, "next_schedule_at": HOSTILE}
    tree = {"count": 1, "sockets": 0, "ready": True, "roots": [branch], "unanswered": [HOSTILE]}
    letter = {"agent": HOSTILE, "id": HOSTILE, "method": HOSTILE, "arguments": {HOSTILE: HOSTILE}, "code": HOSTILE}
    letter |= {"error": HOSTILE, "attempts": 1, "occurrences": 1, "failed_at": "2026-01-01T00:00:00+00:00"}
    unread = {"address": HOSTILE, "error": HOSTILE}
    run = {"id": HOSTILE, "agent": f"{HOSTILE}:a", "status": HOSTILE, "ended_at": None, "bytes": 1, "pinned": False}
    parameters = {"properties": {HOSTILE: {"title": HOSTILE}}, "required": []}
    method = {"name": HOSTILE, "doc": HOSTILE, "parameters": parameters, "variadic": False, "streams": True}
    method |= {"result": {"$ref": f"#/$defs/{HOSTILE}"}}
    odd = OddEntry(HOSTILE, HOSTILE, HOSTILE, has_data=True)
    misfit = Misfit(agent="Vault:v", id=HOSTILE, what=HOSTILE, why=HOSTILE, remedy=HOSTILE)
    node = NodeStatus(HOSTILE, 1.0, is_alive=True, is_leaving=False, shards=1, version="1")
    seen = Seen(HOSTILE, Layout(), [node], unowned=0, orphaned=0, streams=[], servers=[], troubles=[HOSTILE])
    return [
        render.picture(tree),
        *render.letters({"letters": [letter], "unread": [unread]}),
        render.runs({"runs": [run]}),
        *render.methods({"methods": [method]}),
        render.rows({"columns": [HOSTILE], "rows": [[HOSTILE]]}),
        render.finding(Finding(HOSTILE, HOSTILE, HOSTILE)),
        *render.report(Report(HOSTILE, {}, [misfit], [odd]), HOSTILE),
        top(),
        cluster.shown(seen),
        *cluster.told(VerificationReport(mended=[HOSTILE], unrepaired=[HOSTILE], offline=[HOSTILE])),
    ]


def test_no_table_tree_or_line_shows_control_characters() -> None:
    texts = [rendered(shown) for shown in many()]

    assert sum("OWNED" in text for text in texts) >= 14
    for text in texts:
        assert controls(text) == [], text


@pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
def test_errors_of_commands_have_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["sapwood", "state", f"Vault:{HOSTILE}", "--data", data])

    with pytest.raises(SystemExit) as ended:
        run_command()

    assert "OWNED" in str(ended.value.code)
    assert controls(str(ended.value.code)) == []
    assert error_line("two\nlines\x1b") == "error: two\nlines\\u001b"


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\n", "\x7f", "\x85", "\x9b", "\u2028", "\u202e", "\u2069", "\ud800"]
)
def test_each_control_character_becomes_its_json_escape(character: str) -> None:
    escaped = escape_controls(f"a{character}b")

    assert escaped == f"a\\u{ord(character):04x}b"
    assert json.loads(f'"{escaped}"') == f"a{character}b"
    assert escape_controls(f"a{character}b", keep=character) == f"a{character}b"


def test_ordinary_text_stays_as_it_is() -> None:
    assert escape_controls("Zoë 子 🌲 שלום \\u001b") == "Zoë 子 🌲 שלום \\u001b"


def formatted(message: str, error: Exception | None = None) -> list[str]:
    formatter = LineFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    raised = None if error is None else (type(error), error, None)
    record = logging.LogRecord("sapwood", logging.ERROR, "", 0, "%s", (message,), raised)
    return formatter.format(record).split("\n")


@pytest.mark.parametrize("error", [None, ValueError(f"{HOSTILE}\n00:00:00 ERROR forged")])
def test_a_log_record_forges_no_other(error: Exception | None) -> None:
    first, *more = formatted(f"{HOSTILE}\n00:00:00 ERROR forged\r00:00:00 ERROR forged", error)

    assert controls(first) == []
    assert more
    assert all(line.startswith("    ") and not controls(line) for line in more)


async def test_the_access_log_of_pages_and_agents_has_no_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sapwood.access")
    (tmp_path / "page").mkdir()
    app = App(agents=[TerminalVault], pages=tmp_path / "page", settings=Settings(data=tmp_path / "data"))
    async with app, httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://a") as client:
        for path in ("/x%0aINJECTED%1b]0;", "/agents/terminal-vault/x%0aINJECTED%1b]0;%e2%80%ae", "/x%C2%9b31m"):
            await client.get(path)

    messages = [record.getMessage() for record in caplog.records if record.name == "sapwood.access"]
    assert len(messages) == 3
    assert controls("\n".join(messages).replace("\n", "")) == []
    assert all("\n" not in message for message in messages)
