"""The unmodified useAgentToolEvents and useAgent({sub}) work with sapwood: every tab shows what helpers have said."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.npm.running import MAJORS, SapwoodImpatient, SapwoodRuns, built, drive

from sapwood.runs.tables.executed_runs_table import PLACE

pytestmark = pytest.mark.nightly

PAGE = '<!doctype html><meta charset="utf-8"><title>runs</title><div id="root"></div><script src="runs.js"></script>'
NEWEST, *OLDER = sorted(MAJORS, reverse=True)
WAYS = [
    f"jsdom-{NEWEST}",
    *(pytest.param(f"jsdom-{major}", marks=pytest.mark.nightly) for major in OLDER),
    *(
        pytest.param(f"chromium-{major}", marks=[pytest.mark.needs("chromium"), pytest.mark.nightly])
        for major in sorted(MAJORS)
    ),
]
SCENARIOS = 25


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
        pages = work / "pages"
        pages.mkdir(exist_ok=True)
        (pages / "runs.html").write_text(PAGE)
        built(home, work, "runs-page.js", f"{pages}/runs.js", major, "--format=iife")
        script = ("runs-browser.mjs", str(shutil.which("chromium")), str(folder / "profile"))
    name, *more = script
    seen: dict[str, Any] = {}
    for kind, parts in ((SapwoodRuns, ("together", "alone")), (SapwoodImpatient, ("impatient",))):
        server = kind(work, folder / kind.__name__)
        try:
            for part in parts:
                seen |= drive(name, server, home, work, *more, part)
        finally:
            server.end(signal.SIGTERM)
    return Seen(seen, folder)


def check(seen: Seen, *names: str) -> None:
    """Hold scenarios to what they should be."""
    failures = [f"{name}: {what}" for name in names for what in seen.scenarios[name]["failures"]]
    assert not failures, "\n\n".join(failures)


@pytest.mark.promise("A-141")
def test_a_helper_is_shown_below_its_tool_call_with_all_it_says_as_it_says_it(seen: Seen) -> None:
    check(seen, "one", "inner_tool")


@pytest.mark.promise("A-149", "CF-118")
def test_helpers_of_one_turn_and_of_one_tool_call_are_told_apart_and_keep_their_order(seen: Seen) -> None:
    check(seen, "two_in_one_turn", "two_under_one_call", "many")


@pytest.mark.promise("CF-118")
def test_a_helper_that_fails_says_so_in_its_panel_and_its_siblings_go_on(seen: Seen) -> None:
    check(seen, "one_fails")


@pytest.mark.promise("A-139", "CF-117")
def test_whoever_comes_later_or_again_sees_what_those_see_who_stayed(seen: Seen) -> None:
    check(seen, "late_tab", "reloaded", "dropped")


def test_progress_passes_and_milestones_stay(seen: Seen) -> None:
    check(seen, "progress")


@pytest.mark.promise("CF-118")
def test_a_run_that_no_tool_call_asked_for_is_shown_by_itself(seen: Seen) -> None:
    check(seen, "errand")


@pytest.mark.promise("CF-118")
def test_stop_stops_the_helpers_at_every_level_and_every_tab_shows_it(seen: Seen) -> None:
    check(seen, "stopped", "stopped_deep")


def test_a_helper_that_is_stopped_from_inside_is_a_result_its_caller_goes_on_with(seen: Seen) -> None:
    check(seen, "stopped_inside")


def test_clear_in_one_tab_leaves_no_panel_and_nothing_opened_in_any(seen: Seen) -> None:
    check(seen, "cleared")


@pytest.mark.promise("A-152", "A-153")
def test_what_is_said_in_an_opened_helper_leaves_its_panel_as_it_is(seen: Seen) -> None:
    check(seen, "opened")


@pytest.mark.promise("A-154")
def test_the_panel_and_the_opened_helper_are_both_live(seen: Seen) -> None:
    check(seen, "opened_live")


@pytest.mark.promise("A-152", "A-155")
def test_a_helper_of_a_helper_is_seen_by_opening_twice(seen: Seen) -> None:
    check(seen, "opened_twice")


@pytest.mark.promise("A-157")
def test_what_was_opened_closes_with_its_socket(seen: Seen) -> None:
    check(seen, "closed")


@pytest.mark.promise("A-155", "A-156")
def test_only_runs_that_were_given_can_be_opened_and_the_page_says_so(seen: Seen) -> None:
    check(seen, "refused")


def test_a_panel_ends_as_if_nothing_had_happened_when_the_server_was_killed_meanwhile(seen: Seen) -> None:
    check(seen, "killed", "killed_between_steps", "killed_with_two_at_work", "killed_deep")


@pytest.mark.promise("CF-117", "CF-118")
def test_a_helper_that_was_given_up_is_shown_so_until_it_ends_after_all(seen: Seen) -> None:
    check(seen, "given_up")


@pytest.mark.promise("A-141")
def test_what_the_panels_show_is_what_the_helpers_have_stored(seen: Seen) -> None:
    stored = {id: run for path in seen.data.rglob("*.db") for id, run in runs_in(path)}
    held = {id: run for scenario in seen.scenarios.values() for id, run in scenario.get("stored", {}).items()}

    assert len(seen.scenarios) == SCENARIOS
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
                said.insert(milestone.pop(PLACE) - 1 + number, {"type": "data-agent-milestone", "data": milestone})
            shown = {"failed": "error", "cancelled": "aborted"}.get(status, status)  # as the npm client says it
            told = {"status": shown, "summary": summary if status == "completed" else None, "parts": message(said)}
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
