"""The unmodified useAgentToolEvents and useAgent({sub}) work with sapwood: every tab shows what helpers have said."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.npm.running import MAJORS, SapwoodRuns, built, drive

PAGE = '<!doctype html><meta charset="utf-8"><title>runs</title><div id="root"></div><script src="runs.js"></script>'
WAYS = [*(f"jsdom-{major}" for major in sorted(MAJORS)), *(f"chromium-{major}" for major in sorted(MAJORS))]
SCENARIOS = 22


class Seen(NamedTuple):
    """What the tabs saw, scenario by scenario, and the folder the server kept it in."""

    scenarios: dict[str, Any]
    data: Path


@pytest.fixture(scope="module", params=WAYS)
def seen(request: pytest.FixtureRequest, home: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Everything that is tried, in one kind of tab, with one major of the AI SDK."""
    kind, _, major = request.param.partition("-")
    folder = tmp_path_factory.mktemp("runs")
    if kind == "jsdom":
        built(home, work, "runs-page.js", f"made/runs-{major}.mjs", major, "--format=esm")
        script = ("runs.mjs", major)
    else:
        chromium = shutil.which("chromium")
        if chromium is None:
            pytest.skip("needs Chromium")
        pages = work / "pages"
        pages.mkdir(exist_ok=True)
        (pages / "runs.html").write_text(PAGE)
        built(home, work, "runs-page.js", f"{pages}/runs.js", major, "--format=iife")
        script = ("runs-browser.mjs", chromium, str(folder / "profile"))
    server = SapwoodRuns(work, folder / "data")
    try:
        name, *more = script
        parts = [drive(name, server, home, work, *more, which) for which in ("together", "alone")]
        return Seen(parts[0] | parts[1], folder / "data")
    finally:
        server.end(signal.SIGTERM)


def test_panels_show_every_helper_the_same_in_every_tab_live_and_replayed(seen: Seen) -> None:
    failures = [f"{name}: {what}" for name, scenario in seen.scenarios.items() for what in scenario["failures"]]

    assert not failures, "\n\n".join(failures)
    assert len(seen.scenarios) == SCENARIOS


def test_what_the_panels_show_is_what_the_helpers_have_stored(seen: Seen) -> None:
    stored = {id: run for path in seen.data.rglob("*.db") for id, run in runs_in(path)}
    held = {id: run for scenario in seen.scenarios.values() for id, run in scenario.get("stored", {}).items()}

    assert len(held) > SCENARIOS
    assert held == {id: stored[id] for id in held}


def runs_in(path: Path) -> list[tuple[str, Any]]:
    """Return the runs that an agent has done, with the message that the chunks it stored make up."""
    with sqlite3.connect(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "sapwood_served_runs" not in tables:
            return []
        query = "SELECT id, status, summary, stream, length, milestones FROM sapwood_served_runs"
        found: list[tuple[str, Any]] = []
        for id, status, summary, stream, length, milestones in database.execute(query).fetchall():
            said = chunks(database, stream)[:length]
            for number, milestone in enumerate(json.loads(milestones)):
                said.insert(milestone.pop("before") + number, {"type": "data-agent-milestone", "data": milestone})
            told = {"status": status, "summary": summary if status == "completed" else None, "parts": message(said)}
            found.append((id, told))
        return found


def chunks(database: sqlite3.Connection, stream: int) -> list[dict[str, Any]]:
    segments = database.execute("SELECT body FROM sapwood_chunks WHERE stream = ? ORDER BY first", [stream])
    return [chunk for (body,) in segments for chunk in json.loads(body)]


def message(chunks: list[dict[str, Any]]) -> list[Any]:
    """Return the parts that chunks make up: what it is, what it says, and how a tool call stands."""
    parts: list[Any] = []
    tools: dict[str, Any] = {}
    for chunk in chunks:
        kind, _, what = chunk["type"].rpartition("-")
        if kind in ("text", "reasoning") and what == "start":
            parts.append([kind, "", None])
        elif kind in ("text", "reasoning") and what == "delta":
            next(part for part in reversed(parts) if part[0] == kind)[1] += chunk["delta"]
        elif chunk["type"] == "data-agent-milestone":
            parts.append([chunk["type"], chunk["data"], None])
        elif chunk["type"] == "start-step":
            parts.append(["step-start", None, None])
        elif chunk["type"] == "tool-input-start":
            parts.append(tools.setdefault(chunk["toolCallId"], [f"tool-{chunk['toolName']}", None, "input-streaming"]))
        elif chunk["type"] == "tool-input-available":
            tools[chunk["toolCallId"]][2] = "input-available"
        elif chunk["type"] == "tool-output-available":
            tools[chunk["toolCallId"]][1:] = [chunk["output"], "output-available"]
        elif chunk["type"] == "tool-output-error":
            tools[chunk["toolCallId"]][1:] = [chunk["errorText"], "output-error"]
    return parts
