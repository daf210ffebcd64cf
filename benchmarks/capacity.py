"""The page "Capacity": what so many agents need, from what was measured and what is assumed.

    python benchmarks/capacity.py                      write the tables of the page again from the last run
    python benchmarks/capacity.py --print              print them instead
    python benchmarks/capacity.py --print awake=0.05   the same with another assumption

It needs a checkout: the figures of the last run and the page lie beside it.
Whatever has not been measured is shown as a dash, and so is all that follows from it.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LAST = HERE / "last.jsonl"
PAGE = HERE.parent / "docs/explanation/capacity.md"
SIZES = (10_000, 1_000_000, 100_000_000)
NONE = "–"
MONTH = 30 * 86400
STREAMS = 8
SEGMENT, SEGMENT_SECONDS = 16e6, 10
"""What the archive is sent of a stream at once: so many bytes, or what came in so many seconds."""
SNAPSHOT = 1e6
"""Bytes in the log after which a small tree gets a snapshot."""
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6}

Line = dict[str, Any]

DISK = "durable increment on disk, 64 in flight, beside bare apsw"
COMMIT = "a replicated commit of 4 KiB of rows, beside a bare fenced publish of the same bytes"
COMMITS = "64 agents committing 4 KiB of rows, beside the bare engine with atomic batches"
CALL = "call to an agent on another node, beside a bare NATS request and a local call"
SUBJECT = "memory of a NATS server for a tree in the log"
WAKE = "the first call to a parked tree"
LIVE = "memory of a live sub-agent, database open"


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is different for everybody: change these."""

    awake: float = 0.01
    """share of the agents in use at peak"""
    commits: float = 1.0
    """commits per second of an agent in use"""
    mean: float = 0.3
    """average commit rate, as a share of the peak"""
    wakes: float = 1.0
    """times per day that a parked agent is used"""
    size: float = 30.0
    """KB per agent in the archive, compressed"""
    kept: float = 7.0
    """retention of the second copy of the log, in days"""
    full: float = 0.5
    """maximum utilization at peak"""
    node_memory: float = 2.0
    """GB of memory per node for agents"""
    node_price: float = 30.0
    """dollars a month for a node: one core, 4 GB"""
    server_price: float = 200.0
    """dollars a month for a NATS server: 4 cores, 16 GB, 500 GB of SSD"""
    gigabyte_price: float = 0.023
    """dollars a month for a GB in S3"""
    put_price: float = 5.0
    """dollars for a million objects written to S3"""
    get_price: float = 0.4
    """dollars for a million objects read from S3"""


class Figures:
    """What was measured, by name."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = {line["name"]: line for line in lines if "name" in line}

    def __getitem__(self, name: str) -> float | None:
        line = self._lines.get(name)
        return None if line is None else line["ours"] * SECONDS.get(line["unit"], 1.0)

    def bytes_of(self, name: str) -> float | None:
        """Return how large a message was, as the note of a line says."""
        found = re.search(r"(\d+) bytes a message", self._lines.get(name, {}).get("note") or "")
        return None if found is None else float(found[1])

    def shown(self, name: str) -> str:
        line = self._lines.get(name)
        return NONE if line is None else f"{number(line['ours'])} {line['unit'].replace('us', 'µs')}"


@dataclass(frozen=True, slots=True)
class Need:
    """What so many agents need; None: it follows from something that was not measured."""

    awake: float
    commits: float
    cells: int | None
    """Each is that of a cluster of its own."""
    nodes: int | None
    """Those of all clusters."""
    trees: float
    """GB that trees take in S3."""
    history: float | None
    """GB that the second copy of the log takes there."""
    written: float | None
    """Objects written to S3 in a month."""
    read: float
    dollars: float | None


def need(agents: int, figures: Figures, assumed: Assumed) -> Need:
    """Return what so many agents need."""
    awake = agents * assumed.awake
    commits = awake * assumed.commits
    memory, rate, size = figures[LIVE], figures[COMMITS], figures.bytes_of(COMMITS)
    nodes = cells = history = written = dollars = None
    if memory is not None and rate is not None:
        cells = max(1, math.ceil(commits / (rate * assumed.full)))
        by_memory = awake * memory * 1024 / (assumed.node_memory * 1e9)
        # Each cell is that of a cluster. It has one node more than it needs, and never fewer than three: one may be
        # lost, or be restarted.
        nodes = cells * max(3, 1 + math.ceil(max(by_memory, commits / rate) / assumed.full / cells))
    trees = agents * assumed.size * 1e3 / 1e9
    # To be parked takes a snapshot and a mark; to be woken, both.
    parked = agents * assumed.wakes * 30
    read = 2 * parked
    if size is not None and cells is not None:
        bytes_a_second = commits * assumed.mean * size
        history = bytes_a_second * assumed.kept * 86400 / 1e9
        segments = max(cells * STREAMS * MONTH / SEGMENT_SECONDS, bytes_a_second * MONTH / SEGMENT)
        written = 2 * parked + segments + bytes_a_second * MONTH / SNAPSHOT
    if nodes is not None and cells is not None and history is not None and written is not None:
        dollars = nodes * assumed.node_price + 3 * cells * assumed.server_price
        dollars += (trees + history) * assumed.gigabyte_price
        dollars += written / 1e6 * assumed.put_price + read / 1e6 * assumed.get_price
    return Need(awake, commits, cells, nodes, trees, history, written, read, dollars)


def alone(figures: Figures) -> str:
    """Return what one process on one machine does, as a table."""
    rows: list[tuple[str, str]] = []

    def rate(what: str, name: str) -> None:
        seconds = figures[name]
        rows.append((what, NONE if seconds is None else f"{number(1 / seconds)} a second"))

    rate("client calls, over WebSockets", "call over a socket to a sub-agent, 64 in flight")
    rate("durable writes, level `disk`", DISK)
    rate("scheduled calls due at once, level `disk`", "100,000 calls due at once, in 1,000 trees, on disk, each")
    rows.append(("memory of an agent in use", figures.shown(LIVE)))
    rows.append(("memory of an idle agent", figures.shown("memory of a live sub-agent, database closed")))
    rows.append(("memory of an idle client connection", figures.shown("memory of an idle socket, agent asleep")))
    restart = "restart with 100,000 trees and 1,000,000 schedules, 1 % due, first call"
    rows.append(("restart with 100,000 agents and 1,000,000 schedules", figures.shown(restart)))
    return rows_of(("one process, on one core", "measured"), rows)


def fall(figures: Figures) -> str:
    """Return how many fewer durable writes a cluster does than one machine, as a paragraph."""
    seconds, rate = figures[DISK], figures[COMMITS]
    on_disk, in_cluster = NONE if seconds is None else number(1 / seconds), NONE if rate is None else number(rate)
    return (
        f"A cluster does fewer durable writes. One process on one machine does {on_disk} per second (table above). "
        f"One node with one cell of three NATS servers does {in_cluster} (table below). On one machine a write waits "
        "for the local disk. In a cluster it travels to three servers, and waits for two of their disks. The two "
        "benchmarks also differ: the first writes a counter, the second 4 KiB of rows."
    )


def costs(figures: Figures) -> str:
    """Return what the parts of a cluster cost, as a table."""
    rows = [
        ("latency of a commit of 4 KiB of rows", COMMIT),
        ("commits of one node and one cell, 64 agents in parallel", COMMITS),
        ("a call to an agent on another node", CALL),
        ("memory of a node for an agent in use", LIVE),
        ("memory of a NATS server for a tree that is not parked", SUBJECT),
        ("the first call to a parked tree", WAKE),
    ]
    size = figures.bytes_of(COMMITS)
    room = ("log size of a commit of 4 KiB of rows", NONE if size is None else f"{number(size)} bytes")
    return rows_of(("what", "measured"), [*((what, figures.shown(name)) for what, name in rows), room])


def assumptions(assumed: Assumed) -> str:
    """Return what is assumed, as a table."""
    docs = dict(re.findall(r'^    (\w+): float = .*\n    """(.*)"""', Path(__file__).read_text(), re.MULTILINE))
    rows = [(f"`{one.name}`", docs[one.name], number(getattr(assumed, one.name))) for one in fields(Assumed)]
    return rows_of(("name", "what", "assumed"), rows, texts=2)


def needs(figures: Figures, assumed: Assumed) -> str:
    """Return what the sizes need, as a table."""
    wanted = [need(size, figures, assumed) for size in SIZES]
    shown: list[tuple[str, Callable[[Need], float | None], str]] = [
        ("agents in use at peak", lambda one: one.awake, ""),
        ("commits a second", lambda one: one.commits, ""),
        ("cells of three NATS servers, one per cluster", lambda one: one.cells, ""),
        ("nodes of all clusters, one core each", lambda one: one.nodes, ""),
        ("trees in S3", lambda one: one.trees, " GB"),
        ("history of the log in S3", lambda one: one.history, " GB"),
        ("objects written to S3 in a month", lambda one: one.written, ""),
        ("objects read from S3 in a month", lambda one: one.read, ""),
        ("dollars a month", lambda one: one.dollars, ""),
    ]
    rows = [(what, *(_cell(get(one), unit) for one in wanted)) for what, get, unit in shown]
    return rows_of(("", *(f"{size:,} agents" for size in SIZES)), rows)


def _cell(value: float | None, unit: str) -> str:
    """Return a value as the table has it: what is counted in whole pieces is exact."""
    if value is None:
        return NONE
    return f"{value:,}{unit}" if isinstance(value, int) else f"{number(value)}{unit}"


def rows_of(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Return a table in Markdown: first so many columns of text, then numbers, on the right."""
    lines = [f"| {' | '.join(head)} |", "|" + "|".join(["---"] * texts + ["--:"] * (len(head) - texts)) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float) -> str:
    """Return a number as it is read best: three digits that count."""
    if value >= 1000:
        digits = 2 - math.floor(math.log10(value))
        return f"{round(value, digits):,.0f}"
    return f"{value:.3g}"


def page(text: str, lines: Iterable[Line], assumed: Assumed) -> str:
    """Return the page with its tables made anew."""
    figures = Figures(lines)
    tables = {
        "alone": alone(figures),
        "fall": fall(figures),
        "costs": costs(figures),
        "assumptions": assumptions(assumed),
        "needs": needs(figures, assumed),
    }
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = mark.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text)
    return text


def read() -> list[Line]:
    """Return the lines of the last run."""
    return [json.loads(text) for text in LAST.read_text().splitlines()]


def main(arguments: Sequence[str]) -> None:
    changed = dict(one.split("=", 1) for one in arguments if "=" in one)
    assumed = replace(Assumed(), **{name: float(value) for name, value in changed.items()})
    if "--print" in arguments:
        print(needs(Figures(read()), assumed))
    elif changed:
        sys.exit("The page has the assumptions that stand here. Say --print to see others.")
    else:
        PAGE.write_text(page(PAGE.read_text(), read(), assumed))


if __name__ == "__main__":
    main(sys.argv[1:])
