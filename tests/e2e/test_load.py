"""What a server promises a crowd. `SAPWOOD_LOAD=full` makes it 10,000 idle sockets and 1,000 talking clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

pytestmark = pytest.mark.nightly  # its tests share one run with hundreds of clients

PROGRAM = Path(__file__).parents[2] / "benchmarks/load.py"
PATIENCE = patience(600)
OUTGOING_MIB = 4
GRACE = 10.0

# These tell a server that hangs from one that does not, on a machine that is as busy as this one.
CALM_MS, HUNG_MS, RETURNING_MS = patience(250), patience(500), patience(2000)


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Return what the crowd saw; it comes, and goes, once for all tests."""
    size = [] if os.environ.get("SAPWOOD_LOAD") == "full" else ["--small"]
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--facts", *size], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if ended.returncode:
        raise AssertionError(ended.stderr)
    print(ended.stdout)
    return json.loads(ended.stdout)


def test_idle_sockets_let_their_agents_sleep(seen: dict[str, Any]) -> None:
    assert seen["awake"] == 0


def test_an_idle_socket_costs_little_memory(seen: dict[str, Any]) -> None:
    assert seen["idle_kib"] < 40


def test_calls_are_answered_promptly_beside_many_idle_sockets(seen: dict[str, Any]) -> None:
    _, p99 = seen["calm_ms"]

    assert p99 < CALM_MS


def test_a_client_that_never_reads_holds_up_nobody(seen: dict[str, Any]) -> None:
    _, p99 = seen["hung_ms"]

    assert p99 < HUNG_MS
    assert seen["hung_heard"] == seen["hung_listeners"] > 0


def test_a_client_that_never_reads_takes_no_more_memory_than_it_may(seen: dict[str, Any]) -> None:
    assert seen["hung_grown_mib"] < 4 * OUTGOING_MIB  # the others' frames are on their way meanwhile


def test_a_client_that_never_reads_loses_its_connection(seen: dict[str, Any]) -> None:
    assert 0 < seen["hung_closed_s"] < patience(30)


def test_many_can_come_back_at_once(seen: dict[str, Any]) -> None:
    _, p99 = seen["returning_ms"]

    assert seen["returning_s"] < patience(10)
    assert p99 < RETURNING_MS


def test_nobody_loses_a_socket_to_what_others_do(seen: dict[str, Any]) -> None:
    assert seen["dropped"] == 0


def test_at_sigterm_every_client_is_told_to_come_back(seen: dict[str, Any]) -> None:
    assert list(seen["codes"]) == ["1012"]
    assert seen["exit_s"] < GRACE + patience(2)
    assert seen["exit_code"] == -signal.SIGTERM


def test_after_a_restart_everybody_and_every_acknowledged_write_is_there(seen: dict[str, Any]) -> None:
    assert seen["back_s"] < patience(60)
    assert seen["missing"] == 0 < seen["acknowledged"]
