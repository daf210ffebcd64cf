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
    "kill_node": "a node is killed, and started again on its disk",
    "lose_machine": "a node is killed, and started again with an empty disk",
    "pause_node": "a node stands still for 5 to 20 s",
    "cut_node_off_the_log": "a node reaches no NATS server",
    "cut_node_off_the_log_one_way": "a node reaches NATS and does not hear it, or the other way round",
    "cut_node_off_one_server": "a node does not reach one of the NATS servers",
    "cut_node_off_all": "a node reaches nobody but its clients",
    "cut_node_off_s3": "a node does not reach S3",
    "flicker_node": "the network of a node loses everything again and again for moments",
    "slow_node_down": "the network of a node carries 128 to 2048 kbit/s",
    "fill_node_s_disk": "the disk of a node is full",
    "restart_node": "a node is stopped in good order, and started again",
    "join_and_leave": "one more node joins, and leaves in good order",
    "pause_log_and_kill_node": "all NATS servers stand still, and a node is killed meanwhile",
    "kill_server": "a NATS server is killed",
    "kill_leader": "the NATS server that leads most streams is killed",
    "pause_server": "a NATS server stands still for 5 to 20 s",
    "pause_leader": "the NATS server that leads most streams stands still for 5 to 20 s",
    "pause_all_servers": "all NATS servers stand still for 3 to 8 s",
    "cut_server_off_the_others": "a NATS server does not reach the others; nodes reach it",
    "cut_server_off_the_others_one_way": "a NATS server hears the others, and they do not hear it",
    "cut_server_off_all": "a NATS server reaches nobody",
    "flicker_server": "the network of a NATS server loses everything again and again for moments",
    "slow_server_down": "the network of a NATS server carries 128 to 2048 kbit/s",
    "fill_server_s_disk": "the disk of a NATS server is full; later there is room, and it is started again",
    "restart_server": "a NATS server is stopped in good order, and started again",
    "s3_fails": "S3 answers 503 to a third or to all requests, half of which it does nevertheless",
    "s3_is_gone": "S3 says nothing",
    "s3_is_slow": "S3 takes up to 3 s longer for each request",
    "s3_is_cut_off": "no node reaches S3",
}


ASKED = {
    "append": "append an item to a list",
    "read": "read a list",
    "plan": "set an alarm",
    "dig": "start a fiber of several steps",
    "carry": "have a sub-agent do a run, or ask how it ended",
}

PAGE = """\
# A cluster that was broken for {minutes:.0f} minutes

What this page tells was written by a program, `python -m tests.faults.cluster.soak`, and is what one long run gave.
The same faults, fewer of them, are done in every full run of the tests.

- {date}, sapwood {version}, seed `{seed}`. Three NATS servers, S3 as moto has it, {nodes} nodes and a further
  one that joins and leaves, {clients} clients; all on one machine with two cores, each process in a network
  namespace and on a disk of its own.
- {faults} faults in {minutes:.0f} minutes, up to four at once, in {rounds} rounds. At the end of each round everything
  was healed and checked; at the end of all, the lists of every round were read and checked once more.
- **{found} found that must not be.**

## What was asked

| | |
|---|---|
| calls | {asked:,} |
| answered | {answered:,} |
{by_kind}
| half of them within | {p50:.1f} ms |
| 99 of 100 within | {p99:.2f} s |
| longest answer | {longest:.1f} s |
| seconds in which somebody was answered | {answering:,} of {seconds:,} |
| longest time in which nobody was answered | {silence:.0f} s |

A client waits 20 s for an answer, and what it did not get counts as unknown: it may be there, once.
Each round begins with new trees, and a new tree waits for S3: only the archive knows that it is not an old one. So
while S3 is away at the beginning of a round, nobody is answered.

## What was checked

- Every acknowledged item is in its list exactly once, at the place its writer was told; any other at most once.
- All appends and reads of a list fit into one order, which is that of real time: no read is older than what
  was acknowledged before it was asked for, whichever node it went through.
- No item was written by an ownership older than one that had written before; each ownership had one process.
- Alarms rang once and never early; fibers finished, and no completed step ran again; a run has one output.
- Every tree's chain in the log is whole, at every server, and so is the second copy in the archive.
- No node ended by itself, and none wrote of an error that nobody expected.

## What was broken

| fault | times | what it is |
|---|---|---|
{kinds}

How many others were under way when one began: {beside}.
"""


def report(result: dict[str, Any], options: argparse.Namespace) -> str:
    """Return what came of it, as a page of the documentation."""
    found = result["violations"]
    page = PAGE.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        version=version("sapwood"),
        minutes=result["seconds"] / 60,
        found=f"{len(found)} things were" if found else "Nothing was",
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
    for title, lines in (("What happened by itself", result["notes"]), ("What was found", found)):
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
