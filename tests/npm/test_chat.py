"""The unmodified useAgentChat works with sapwood: whatever happens, every tab ends up with what is stored."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.npm.running import MAJORS, SapwoodChat, built, drive

PAGE = '<!doctype html><meta charset="utf-8"><title>chat</title><div id="root"></div><script src="chat.js"></script>'


class Talks(NamedTuple):
    """What the tabs saw, scenario by scenario, and the folder the server kept it in."""

    scenarios: dict[str, Any]
    data: Path


NEWEST, *OLDER = sorted(MAJORS, reverse=True)
EACH = [
    pytest.param(NEWEST, id=f"ai-{NEWEST}"),
    *(pytest.param(major, id=f"ai-{major}", marks=pytest.mark.nightly) for major in OLDER),
]


@pytest.fixture(scope="module", params=EACH)
def talks(request: pytest.FixtureRequest, home: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Talks:
    """Everything that is tried in jsdom, with one major of the AI SDK."""
    built(home, work, "hooks.js", f"made/hooks-{request.param}.mjs", request.param, "--format=esm", "--minify")
    data = tmp_path_factory.mktemp("chats") / "data"
    server = SapwoodChat(work, data)
    try:
        side_by_side = drive("chat.mjs", server, home, work, request.param, "together")
        return Talks(side_by_side | drive("chat.mjs", server, home, work, request.param, "alone"), data)
    finally:
        server.end(signal.SIGTERM)


SHOWN = "SELECT body FROM sapwood_messages WHERE is_active = 1 ORDER BY position"


def test_every_tab_shows_what_is_stored_and_nothing_twice(talks: Talks) -> None:
    failures = failures_of(talks.scenarios)

    assert not failures, "\n\n".join(failures)


def test_what_the_tabs_were_told_is_what_is_in_the_database(talks: Talks) -> None:
    databases = {path.parent.joinpath("address").read_text().strip(): path for path in talks.data.rglob("root.db")}

    for scenario in talks.scenarios.values():
        told = scenario["stored"]
        kept = rows(databases[f"{told['agent']}:{told['name']}"], SHOWN)
        assert [json.loads(body) for (body,) in kept] == told["messages"]


def test_the_model_remembers_the_same_text_as_the_tabs_show(talks: Talks) -> None:
    databases = {path.parent.joinpath("address").read_text().strip(): path for path in talks.data.rglob("root.db")}
    query = (
        "SELECT message, body FROM sapwood_model_messages WHERE kind = 'response' AND is_active = 1 ORDER BY position"
    )

    for scenario in talks.scenarios.values():
        told = scenario["stored"]
        remembered: dict[str, str] = {}
        for id, body in rows(databases[f"{told['agent']}:{told['name']}"], query):
            texts = [part["content"] for part in json.loads(body)["parts"] if part["part_kind"] == "text"]
            remembered[id] = remembered.get(id, "") + "".join(texts)
        shown = {message["id"]: text_of(message) for message in told["messages"] if message["role"] == "assistant"}
        assert {id: text for id, text in remembered.items() if text} == {id: text for id, text in shown.items() if text}


@pytest.mark.needs("chromium")
@pytest.mark.nightly
@pytest.mark.parametrize("major", sorted(MAJORS))
def test_tabs_of_a_real_browser_show_what_is_stored(home: Path, work: Path, tmp_path: Path, major: str) -> None:
    pages = work / "pages"
    pages.mkdir(exist_ok=True)
    (pages / "chat.html").write_text(PAGE)
    built(home, work, "chat-page.js", f"{pages}/chat.js", major, "--format=iife")
    server = SapwoodChat(work, tmp_path / "data")
    try:
        browser = ("chat-browser.mjs", server, home, work, str(shutil.which("chromium")), str(tmp_path / "profile"))
        seen = drive(*browser, "together") | drive(*browser, "alone")
    finally:
        server.end(signal.SIGTERM)

    failures = failures_of(seen)
    assert not failures, "\n\n".join(failures)
    assert len(seen) == 17


@pytest.mark.needs("chromium")
@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["pictures", pytest.param("large_pictures", marks=pytest.mark.nightly)], ids=["1-mb", "20-mb"]
)
def test_a_picture_gets_to_the_model_and_to_every_tab_once(home: Path, work: Path, tmp_path: Path, what: str) -> None:
    pages = work / "pages"
    pages.mkdir(exist_ok=True)
    (pages / "chat.html").write_text(PAGE)
    built(home, work, "chat-page.js", f"{pages}/chat.js", NEWEST, "--format=iife")
    server = SapwoodChat(work, tmp_path / "data")
    try:
        browser = ("chat-browser.mjs", server, home, work, str(shutil.which("chromium")), str(tmp_path / "profile"))
        seen = drive(*browser, what)
    finally:
        server.end(signal.SIGTERM)

    failures = failures_of(seen)
    assert not failures, "\n\n".join(failures)
    assert len(seen) == 1


def failures_of(scenarios: dict[str, Any]) -> list[str]:
    return [f"{name}: {what}" for name, scenario in scenarios.items() for what in scenario["failures"]]


def rows(path: Path, query: str) -> list[Any]:
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
