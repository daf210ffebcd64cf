"""Forks, exports and imports by command: on a server with workers, and on a folder that no server uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.command import said_by, serving

pytestmark = pytest.mark.slow

APP = """
from datetime import timedelta

from sapwood import Agent, App


class Leaf(Agent):
    async def keep(self, text: str) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        self.sql("INSERT INTO notes VALUES (?)", text)


class Tree(Agent):
    async def keep(self, text: str) -> None:
        self.schedule(timedelta(days=1), self.keep, "later")
        await (await self.sub_agent(Leaf, "n")).keep(text)

    async def kept(self) -> int:
        leaf = await self.sub_agent(Leaf, "n")
        return len(self.children.list(Leaf))


app = App(agents=[Tree, Leaf])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def test_trees_of_all_workers_are_forked_exported_and_imported(folder: Path) -> None:
    with serving(folder, "serve", "app:app", "--workers", "2"):
        for number in range(3):
            said_by(folder, "call", f"Tree:t{number}", "keep", "note")
            made = said_by(folder, "fork", f"Tree:t{number}", f"f{number}")
            assert f"Made Tree:f{number}, a copy of Tree:t{number} with 2 agents." in made
            assert "Held: 1 stored call." in made
            file = f"t{number}.tree"
            assert "Wrote 2 agents" in said_by(folder, "export", f"Tree:f{number}", file)
            assert f"Made Tree:i{number}" in said_by(folder, "import", file, "--name", f"i{number}")
            assert said_by(folder, "call", f"Tree:i{number}", "kept").strip() == "1"
        assert "held since" in said_by(folder, "dead-letters", "Tree:f0")
    said_by(folder, "fork", "Tree:t0/Leaf:n", "alone")
    assert "Leaf:alone" in said_by(folder, "tree")
