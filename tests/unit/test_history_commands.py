"""The commands about the history of a tree, on a folder without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests import loops
from tests.unit.histories import Node

from sapwood import App, Settings
from sapwood.cli.commands import cli
from sapwood.errors import NotFound

LONG = "a mark whose name is longer than what a terminal of eighty columns shows of it, by far"


def fill(data: Path, *marks: str, history: float) -> None:
    """Mark moments of `Node:a`."""

    async def work() -> None:
        async with App(agents=[Node], settings=Settings(data=data, history=history)) as running:
            node = await running.get_agent(Node, "a")
            for mark in marks:
                await node.add(mark, mark)

    with asyncio.Runner(loop_factory=loops.factory) as runner:
        runner.run(work())


def listed(data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    cli(["moments", "Node:a", "--json", "--data", str(data)])
    return json.loads(capsys.readouterr().out)


def test_what_moments_prints_can_be_passed_to_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fill(tmp_path, "first", LONG, "last", history=86400)

    cli(["moments", "Node:a", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    moments = listed(tmp_path, capsys)

    for count, one in enumerate(moments, 1):
        assert one["at"].endswith("Z")
        assert all(one[name] in printed for name in ("at", "label", "place"))
        cli(["fork", "Node:a", f"by-time{count}", "--at", one["at"], "--data", str(tmp_path)])
        cli(["fork", "Node:a", f"by-place{count}", "--at", f"place:{one['place']}", "--data", str(tmp_path)])
        assert f"as it was at {one['at'].removesuffix('Z')}" in capsys.readouterr().out
        for name in ("by-time", "by-place"):
            cli(["sql", f"Node:{name}{count}", "SELECT count(*) AS n FROM item", "--json", "--data", str(tmp_path)])
            assert json.loads(capsys.readouterr().out) == [{"n": count}]


def test_a_folder_has_its_history_though_the_app_keeps_none_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "first", history=86400)
    fill(tmp_path, "second", history=0)

    (first,) = listed(tmp_path, capsys)
    cli(["rewind", "Node:a", "--at", "first", "--data", str(tmp_path)])

    printed = capsys.readouterr().out
    assert f"Node:a is as it was at {first['at'].removesuffix('Z')}" in printed
    undo = printed.partition("To undo this: sapwood ")[2].split()
    cli(undo)
    capsys.readouterr()
    cli(["sql", "Node:a", "SELECT count(*) AS n FROM item", "--json", "--data", str(tmp_path)])
    assert json.loads(capsys.readouterr().out) == [{"n": 2}]
    with pytest.raises(NotFound, match="does not have a moment 'second'"):
        cli(["fork", "Node:a", "copy", "--at", "second", "--data", str(tmp_path)])
    assert listed(tmp_path, capsys) == [first]  # nothing was removed


def test_moments_fit_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "first", history=86400)
    (first,) = listed(tmp_path, capsys)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    cli(["moments", "Node:a", "--data", str(tmp_path)])

    assert capsys.readouterr().out == f"{first['at']}  mark  first\n    Node:a\n    {first['place']}\n"
