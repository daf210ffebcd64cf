"""A server with `--log json` writes nothing but JSON lines, from its start to its end, also of its workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.command import serving

pytestmark = pytest.mark.slow

APP = """
import logging
import warnings

from sapwood import Agent, App, expose
from starlette.responses import PlainTextResponse


class Scribe(Agent):
    async def on_request(self, request):
        logging.getLogger("app").info("two\\nlines", extra={"order": 7})
        warnings.warn("careful", stacklevel=1)
        raise ValueError("broken\\nhere")


app = App(agents=[Scribe])
"""


def test_every_line_of_a_server_with_workers_is_a_json_object(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    options = ("serve", "app:app", "--workers", "2", "--access-log")
    with serving(tmp_path, *options, SAPWOOD_LOG="json") as server:
        for number in range(4):
            assert server.get(f"/agents/scribe/s{number}")[0] == 500
        server.stop()

        records = [json.loads(line) for line in server.said]

    notes = [record for record in records if record["message"] == "two\nlines"]
    assert len(notes) == 4
    assert all(note["order"] == 7 and note["address"].startswith("Scribe:s") for note in notes)
    assert {note["worker"] for note in notes} <= {0, 1}
    assert any("broken\nhere" in record.get("exception", "") for record in records)
    assert any(record["logger"] == "py.warnings" for record in records)
    assert any(record["logger"] == "sapwood.access" for record in records)
    assert all(record["time"].endswith("Z") and record["level"] for record in records)
