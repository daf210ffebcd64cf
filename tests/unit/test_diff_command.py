"""`sapwood diff` shows what differs between two agents, and reads a data folder without a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests import loops
from tests.unit.stored_folder import deepest, fold, folder_of, make_folder

from sapwood import App, ChatAgent, Settings
from sapwood.cli.commands import cli
from sapwood.cli.diff_command import lines
from sapwood.errors import NotFound, StoredDataError
from sapwood.testing import ScriptedModel, text

pytestmark = pytest.mark.slow  # each diff starts a process that copies


class DiffDesk(ChatAgent):
    """Answers a question."""

    model = ScriptedModel(text("It is in the drawer."), each=True)


def fill(data: Path, *names: str) -> None:
    async def work() -> None:
        async with App(agents=[DiffDesk], settings=Settings(data=data)) as running:
            for name in names:
                await (await running.get_agent(DiffDesk, name)).send(f"Where is the key, {name}?")

    with asyncio.Runner(loop_factory=loops.factory) as runner:
        runner.run(work())


def test_equal_trees_have_no_differences_and_a_damaged_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    make_folder(data)
    fold(data)
    cli(["diff", "StoredBox:good", "StoredBox:other", "--data", str(data)])
    assert capsys.readouterr().out == "- StoredBox:good\n+ StoredBox:other\nNo differences in 4 agents.\n"
    found = {"a": "A:a", "b": "A:a", "both": 1, "changed": 0, "only_a": 0, "only_b": 0}
    assert [str(line) for line in lines(found, "first")][:2] == ["- A:a at first", "+ A:a now"]

    cli(["diff", "StoredBox:good/StoredBox:in", "StoredBox:good/StoredBox:in/StoredBox:in", "--data", str(data)])
    assert "1 only in -, 0 only in +.\n- StoredBox:in/StoredBox:in\n" in capsys.readouterr().out

    with pytest.raises(NotFound, match="StoredBox:none has no data"):
        cli(["diff", "StoredBox:good", "StoredBox:none", "--data", str(data)])

    path = deepest(folder_of(data, "bad"))
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 4096)
    with pytest.raises(
        StoredDataError, match=r"^The trees cannot be compared\. StoredBox:bad is damaged\. .* is damaged"
    ):
        cli(["diff", "StoredBox:good", "StoredBox:bad", "--data", str(data)])
    assert list((data / "trees").glob("*.copying")) == []


def test_a_message_is_shown_by_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "data", "a", "b")
    words = ["diff", "DiffDesk:a", "DiffDesk:b", "--data", str(tmp_path / "data")]
    cli(words)
    out = capsys.readouterr().out
    assert "1 of 1 agent differs. 0 only in -, 0 only in +." in out
    assert "  messages: -2 +2\n" in out
    assert "    - user: Where is the key, a?\n" in out
    assert "    + user: Where is the key, b?\n" in out

    cli([*words, "--json", "--limit", "1"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    (part,) = found["agents_changed"][0]["parts"]
    assert (part["kind"], part["only_a"], part["only_b"], len(part["changes"])) == ("messages", 2, 2, 1)
    shown = [str(line) for line in lines(found)]
    assert "    … and 3 more changes" in shown
