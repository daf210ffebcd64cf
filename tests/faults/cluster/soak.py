"""Breaks a cluster for an hour or more, and writes down what came of it.

python -m tests.faults.cluster.soak --minutes 60 --faults 500 --report docs/explanation/cluster-faults.md
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.faults.running import CHECKOUT

WHAT = {
    "kill_node": "a node is killed, and restarted on its disk",
    "lose_machine": "a node is killed, and restarted with an empty disk",
    "pause_node": "a node is paused for 5 to 20 s",
    "cut_node_off_the_log": "a node cannot reach any NATS server",
    "cut_node_off_the_log_one_way": "a node can send to NATS but not receive, or the reverse",
    "cut_node_off_one_server": "a node cannot reach one of the NATS servers",
    "cut_node_off_all": "a node can reach only its clients",
    "cut_node_off_s3": "a node cannot reach S3",
    "flicker_node": "the network of a node drops all packets in short bursts",
    "slow_node_down": "the network of a node is limited to 128 to 2048 kbit/s",
    "fill_node_s_disk": "the disk of a node is full",
    "restart_node": "a node shuts down cleanly, and is restarted",
    "join_and_leave": "another node joins, and leaves cleanly",
    "pause_log_and_kill_node": "all NATS servers are paused, and a node is killed",
    "kill_server": "a NATS server is killed",
    "kill_leader": "the NATS server that leads most streams is killed",
    "pause_server": "a NATS server is paused for 5 to 20 s",
    "pause_leader": "the NATS server that leads most streams is paused for 5 to 20 s",
    "pause_all_servers": "all NATS servers are paused for 3 to 8 s",
    "cut_server_off_the_others": "a NATS server cannot reach the others; nodes can reach it",
    "cut_server_off_the_others_one_way": "a NATS server can receive from the others, but not send to them",
    "cut_server_off_all": "a NATS server is isolated",
    "flicker_server": "the network of a NATS server drops all packets in short bursts",
    "slow_server_down": "the network of a NATS server is limited to 128 to 2048 kbit/s",
    "fill_server_s_disk": "the disk of a NATS server is full; later space is freed, and it is restarted",
    "restart_server": "a NATS server shuts down cleanly, and is restarted",
    "s3_fails": "S3 answers 503 to a third of the requests or to all, but carries out half of them",
    "s3_is_gone": "S3 does not respond",
    "s3_is_slow": "S3 adds up to 3 s to each request",
    "s3_is_cut_off": "no node can reach S3",
}


ASKED = {
    "append": "append an item to a list",
    "read": "read a list",
    "plan": "set an alarm",
    "dig": "start a fiber of several steps",
    "carry": "start a run, or get its result",
}

PAGE = """\
# Cluster fault test: {minutes:.0f} minutes

The program `python -m tests.faults.cluster.soak` wrote this page. It reports one long run.
Every full run of the tests injects the same faults, but fewer of them.

- {date}, sapwood {version}, seed `{seed}`. Three NATS servers, S3 simulated by moto, {nodes} nodes and
  another one that joins and leaves, {clients} clients. All run on one machine with two cores, each process in its own
  network namespace and on its own disk.
- {faults} faults in {minutes:.0f} minutes, up to four at once, in {rounds} rounds. After each round all faults
  were healed and the data was checked. At the end the lists of all rounds were read and checked again.
- **{found}.**

## Workload

| | |
|---|---|
| calls | {asked:,} |
| answered | {answered:,} |
{by_kind}
| median latency | {p50:.1f} ms |
| 99th percentile | {p99:.2f} s |
| longest latency | {longest:.1f} s |
| seconds with at least one answer | {answering:,} of {seconds:,} |
| longest time without any answer | {silence:.0f} s |

A client has a timeout of 20 s. A call without an answer counts as unknown: its effect may exist, once.
Each round creates new trees, and a new tree waits for S3, because only the archive can tell that it is new. So
no call is answered while S3 is unavailable at the beginning of a round.

## Checks

- Every acknowledged item is in its list exactly once, at the position that its writer received.
  Any other item is in it at most once.
- All appends and reads of a list are linearizable: no read misses a write that was acknowledged before the read
  started, whichever node it went through.
- No owner wrote after a newer owner had written. Each ownership had one process.
- Alarms fired once and never early. Fibers finished, and no completed step ran again. Each run has one output.
- Every tree's chain in the log is complete on every server, and so is the second copy in the archive.
- No node exited on its own, and no node logged an unexpected error.

## Injected faults

| fault | count | description |
|---|---|---|
{kinds}

Other faults active when a fault started: {beside}.
"""


def report(result: dict[str, Any], options: argparse.Namespace) -> str:
    """Return what came of it, as a page of the documentation."""
    found = result["violations"]
    page = PAGE.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        version=version("sapwood"),
        minutes=result["seconds"] / 60,
        found=f"{len(found)} violations were found" if found else "No violations were found",
        by_kind="\n".join(f"| of which {ASKED[kind]} | {count:,} |" for kind, count in result["by kind"].items()),
        p50=1000 * (result["p50"] or 0.0),
        longest=result["longest answer"] or 0.0,
        answering=result["seconds in which somebody was answered"],
        seconds=result["of seconds"],
        silence=result["longest time in which nobody was answered"],
        kinds="\n".join(f"| `{kind}` | {count} | {WHAT.get(kind, '')} |" for kind, count in result["kinds"].items()),
        beside=", ".join(f"{others}: {count} times" for others, count in result["at once"].items()),
        nodes=options.nodes,
        clients=options.clients,
        **{name: result[name] for name in ("seed", "faults", "rounds", "asked", "answered", "p99")},
    )
    for title, lines in (("Notes", result["notes"]), ("Violations", found)):
        if lines:
            page += "\n".join(["", f"## {title}", "", *(f"- {line}" for line in lines[:20]), ""])
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--report", help="where to write a page about it")
    options = parser.parse_args()
    command = [sys.executable, "-m", "tests.faults.cluster.lives", "--keep"]
    for name in ("minutes", "faults", "per_round", "nodes", "clients", "seed"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    ended = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    if not ended.stdout:
        return 2
    result = json.loads(ended.stdout)
    print(json.dumps(result), flush=True)
    if options.report:
        Path(options.report).write_text(report(result, options))
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
