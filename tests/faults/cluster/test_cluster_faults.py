"""Promises 1 to 4 where nodes, servers of the log, networks, disks and S3 are broken, several at once, under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.faults.cluster import network
from tests.faults.running import CHECKOUT

FAULTS = int(os.environ.get("SAPWOOD_CLUSTER_FAULTS", "44"))
PATIENCE = 1800.0
ATTEMPTS = 3
"""How often a mutant is run until it is found out: who is cut off tells something old only if it is asked in time."""

pytestmark = [
    pytest.mark.alone,  # leases are seconds: whoever is not given a core in time loses them
    pytest.mark.skipif(bool(network.missing()), reason=network.missing()),
]


def run(**options: Any) -> dict[str, Any]:
    """Break a cluster; return what the runner printed."""
    command = [sys.executable, "-m", "tests.faults.cluster.lives"]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if not ended.stdout:
        raise AssertionError(ended.stderr)
    return json.loads(ended.stdout)


def test_whatever_is_broken_nothing_acknowledged_is_lost_and_nothing_is_done_twice() -> None:
    seed = os.environ.get("SAPWOOD_SEED") or os.urandom(4).hex()
    result = run(faults=FAULTS, seed=seed)
    print(json.dumps(result, indent=1))

    assert result["violations"] == [], f"seed {seed}, kept in {result.get('kept')}"
    assert result["faults"] >= FAULTS
    assert result["answered"] > 20 * FAULTS
    assert result["by kind"].keys() == {"append", "read", "plan", "dig", "carry"}


def test_a_node_that_is_struck_where_it_owns_most_tells_nobody_what_is_not_so() -> None:
    result = run(nodes=3, aimed="cut,pause,kill", seed=os.environ.get("SAPWOOD_SEED", "aimed"))

    assert result["violations"] == [], f"kept in {result.get('kept')}"
    assert result["answered"] > 300


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "aimed", "sentence"),
    [
        ("no-fence", "cut", "does not follow the one before it"),
        ("replied-first", "kill", "was acknowledged"),
        ("lease-for-ever", "cut", "is older than"),
    ],
)
def test_a_cluster_broken_on_purpose_is_found_out(mutant: str, aimed: str, sentence: str) -> None:
    told: list[str] = []
    for attempt in range(ATTEMPTS):
        told += run(mutant=mutant, nodes=3, aimed=aimed, seed=f"{mutant}-{attempt}")["violations"]
        if any(sentence in one for one in told):
            return
    raise AssertionError("\n".join(told)[:2000])
