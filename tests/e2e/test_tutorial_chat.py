"""The tutorial's bakery is killed in the middle of a sentence, and says the whole of it in its next life."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

BAKERY = Path(__file__).parents[2] / "examples/bakery.py"
SHOP = "/agents/bakery/corner"
RUNNING = re.compile(r"running at http://[^:]+:(\d+)")
PATIENCE = patience()
RYE = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Any rye?"}]}]}


@contextmanager
def serving(data: Path, pause: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve the bakery as the page says; yield its process and its port. At the end it is killed."""
    command = [sys.executable, "-m", "sapwood", "serve", str(BAKERY), "--port", "0", "--data", str(data)]
    environment = {**os.environ, "PAUSE": str(pause)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            port = next(found[1] for line in server.stderr if (found := RUNNING.search(line)))
            yield server, int(port)
        finally:
            server.kill()


def messages(port: int) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", f"{SHOP}/get-messages")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.nightly
def test_an_answer_that_was_cut_off_by_a_kill_is_finished_and_its_tool_not_called_again(tmp_path: Path) -> None:
    with serving(tmp_path / "shop", pause=0.2) as (server, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", f"{SHOP}/chat", body=json.dumps(RYE))
        answer = connection.getresponse()
        lines = (line.decode() for line in iter(answer.readline, b""))
        heard = [json.loads(line.removeprefix("data: ")) for line in until_it_speaks(lines)]
        server.kill()
        connection.close()
    (called,) = [chunk["toolCallId"] for chunk in heard if chunk["type"] == "tool-output-available"]

    with serving(tmp_path / "shop", pause=0) as (_, port):
        end = time.monotonic() + PATIENCE
        while len(found := messages(port)) < 2 and time.monotonic() < end:
            time.sleep(0.05)

    said, answered = found
    assert said["parts"] == RYE["messages"][0]["parts"]
    assert answered["id"] == heard[0]["messageId"]
    assert [part["toolCallId"] for part in answered["parts"] if "toolCallId" in part] == [called]
    assert answered["parts"][-1]["text"] == "There are 12 loaves of rye. How many may I give you?"


def until_it_speaks(lines: Iterator[str]) -> Iterator[str]:
    """Yield the events of a stream until some words have come."""
    words = 0
    for line in lines:
        if line.startswith("data: "):
            yield line
            words += '"text-delta"' in line
        if words == 2:
            return
    raise AssertionError("It has said everything, and was to be killed before.")
