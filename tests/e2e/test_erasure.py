"""An erasure on a server with workers, by command: no byte is left in the data folder, in any worker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, serving

from sapwood.cli import remote
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.types import Address, ErasureReceipt

pytestmark = pytest.mark.slow

APP = """
import logging

from sapwood import Agent, App


class Note(Agent):
    async def keep(self, text: str) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        self.sql("INSERT INTO notes VALUES (?)", text)


class Person(Agent):
    async def keep(self, text: str) -> None:
        logging.getLogger("app").warning("keeping %s", text)
        await (await self.sub_agent(Note, "n")).keep(text)


app = App(agents=[Person])
"""
NAMES = [f"p{number}" for number in range(20)]
BOTH = [
    next(name for name in NAMES if WorkerPart(part, ShardPlan(2)).is_here(Address.root_of("Person", name)))
    for part in (0, 1)
]
SECRET = "5eC3e7" * 12


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--workers", "2", "--grace", "5") as server:
        yield server


def keep(data: Path, name: str) -> None:
    list(remote.ask_lines(str(data), "call", address=f"Person:{name}", method="keep", arguments=[SECRET]))


def hits(data: Path) -> list[Path]:
    return [path for path in data.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_agents_of_all_workers_are_erased_and_their_receipts_verify(two: Server, tmp_path: Path) -> None:
    data = tmp_path / "sapwood-data"
    for name in BOTH:
        keep(data, name)
    assert len(hits(data)) >= 2

    for name in BOTH:
        text = said_by(tmp_path, "erase", f"Person:{name}", "--yes")
        receipt = ErasureReceipt.verify(text)
        assert receipt.is_about(f"Person:{name}")
        assert {place.node for place in receipt.places if place.place == "memory"} == {"0", "1"}
        (tmp_path / "receipt.json").write_text(text)
        said = said_by(tmp_path, "receipt", "verify", "receipt.json", "--address", f"Person:{name}")
        assert "The signature is valid" in said
    assert hits(data) == []
    lines = [json.loads(line) for line in (data / "operator.jsonl").read_text().splitlines()]
    assert [(one["endpoint"], one["result"]) for one in lines if one["endpoint"] == "erase"] == [
        ("erase", "begun"),
        ("erase", "done"),
    ] * 2
    token = said_by(tmp_path, "token", "--name", "bob", "--may", "act,call,sql,write,admin").strip()
    assert "'erase' needs a token with the scope 'erase'" in refusal(data, token)


def refusal(data: Path, token: str) -> str:
    """Return why a request with this token is refused."""
    url = json.loads((data / "operator.json").read_text())["url"]
    body = json.dumps({"address": f"Person:{BOTH[0]}", "name": BOTH[0]}).encode()
    request = urllib.request.Request(f"{url}/_sapwood/erase", body, {"authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE)
    assert refused.value.code == 403
    with refused.value as answer:
        return json.loads(answer.read())["error"]
