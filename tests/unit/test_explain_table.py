"""`sapwood explain` never shortens what users copy: ids and costs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from sapwood.cli import explain, remote

TURN = "turn-0123456789abcdef0123456789abcdef0123456789abcdef"
LONG = "look_up_" + "x" * 60


def span(kind: str, name: str, **more: Any) -> dict[str, Any]:
    facts = {"turn": TURN, "input_tokens": 123456, "output_tokens": 7890, "nanodollars": 1_234_567_890}
    times = {"began_at": 1.0, "ended_at": 2.0, "first_at": 1.5}
    whose = {"status": "completed", "step": 1, "attempt": 1, "incarnation": 1}
    return {"kind": kind, "name": name, "facts": facts, **times, **whose, **more}


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str, spans: Any) -> str:
    monkeypatch.setattr(remote, "ask_or_open", lambda *_, **__: {"spans": spans, "more": False, "incarnations": []})
    explain.explain("Desk:main", *arguments)
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.fixture(params=["pipe", "terminal"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if request.param == "terminal":
        monkeypatch.setattr(Console, "is_terminal", True)


@pytest.mark.usefixtures("width")
def test_ids_and_costs_are_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spans = [span("turn", ""), span("call", LONG)]
    assert printed(monkeypatch, capsys, spans=spans).count(TURN) == 2

    told = printed(monkeypatch, capsys, TURN, spans=[span("step", LONG), span("tool", "look", incarnation=2)])

    assert told.count("$1.234568") == 2
    assert told.count("123456 in, 7890 out") == 2
    assert "\nthe process ended, or the agent slept\n" in told
    assert len({len(line) for line in told.splitlines() if line.startswith(("│", "┃"))}) == 1


def test_what_is_not_for_a_terminal_has_no_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LONG in printed(monkeypatch, capsys, TURN, spans=[span("step", LONG)])
