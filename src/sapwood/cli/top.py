"""The output of `sapwood top`: the processes of a server, their queues, the busiest trees, and what fails or blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from rich.console import Group, RenderableType
from rich.table import Table

from sapwood.cli.quantities import counted, lasted, size
from sapwood.cli.terminal import Text

WIDE = 90
POOL = 8
NUMBERS = 50
"""The width of all columns except the name of a tree, in a narrow terminal."""

Seen = dict[str, Any]


class Top:
    """Renders the load of a server; from the second call on, also the CPU usage of each process."""

    def __init__(self, trees: int, width: int = 80) -> None:
        self._trees = trees
        self._gap = 1 if width < WIDE else 2
        name = max(width - NUMBERS * self._gap, 16)
        self._widths = {
            "worker": 6,
            "node": 20,
            "pool": POOL,
            "waiting in": 12,
            "tree": name,
            "failing call": name,
            "blocked its process": name,
        }
        """How wide a text may be; all else are numbers."""
        self._before: dict[int, tuple[float, float]] = {}
        self._called = "worker"

    def __call__(self, seen: Seen) -> RenderableType:
        """Return it as tables, for 80 columns or more."""
        workers = sorted(seen["workers"], key=_place)
        who = self._called = seen.get("called", "worker")
        unanswered = seen.get("unanswered", [])
        return Group(
            _head(workers, len(workers) + len(unanswered), who),
            "",
            self._processes(workers, seen.get("silent", [])),
            *(_missing(f"{who} {name}") for name in unanswered),
            *(_unready(one, who) for one in workers if not one["ready"]),
            "",
            self._waiting(workers),
            "",
            self._busiest(seen["busiest"]),
            *self._failing(seen.get("failing", [])),
            *self._slow(seen["slow"]),
        )

    def _processes(self, workers: Iterable[Seen], silent: Iterable[Seen]) -> Table:
        """Return a row for each; what only a worker itself knows is left out if it does not answer."""
        now = time.monotonic()
        rows: list[dict[str, str]] = []
        for one in sorted([*workers, *silent], key=_place):
            runs = one["process"] is not None
            rows.append(
                {
                    self._called: one["worker"],
                    "pool": one["pool"],
                    "process": str(one["process"]) if runs else "",
                    "up": lasted(one["uptime"]) if runs else "",
                    "restarts": str(one.get("restarts", "")) if one["worker"] else "",
                    "core": self._core(one["process"], one["cpu_seconds"], now) if runs else "",
                    "memory": size(one["memory"]) if runs else "",
                    **{name: str(one.get(name, "")) for name in ("trees", "agents", "calls", "sockets")},
                }
            )
        return self._table(rows)

    def _core(self, process: int, used: float, now: float) -> str:
        before = self._before.get(process)
        self._before[process] = (used, now)
        return "" if before is None else f"{100 * (used - before[0]) / max(now - before[1], 1e-9):.0f} %"

    def _waiting(self, workers: Sequence[Seen]) -> RenderableType:
        if not any(number for one in workers for number in one["waiting"].values()):
            return Text("All queues are empty.", "dim")
        return self._table(
            [
                {
                    "waiting in": one["worker"] or "the process",
                    **{name: str(one["waiting"][name]) for name in ("due", "waking", "disk", "threads")},
                    "to clients": size(one["waiting"]["clients"]),
                    f"to {self._called}s": str(one["waiting"]["workers"]) if one["worker"] else "",
                }
                for one in workers
            ]
        )

    def _busiest(self, trees: Iterable[Seen]) -> RenderableType:
        busy = [one for one in trees if one["calls"] or one["per_second"] or one["queued"] or one["sockets"]]
        if not busy:
            return Text("No tree is busy.", "dim")
        busy.sort(key=lambda one: (-one["calls"] - (one["per_second"] or 0), -one["sockets"], one["address"]))
        return self._table(
            [
                {
                    "tree": unquote(one["address"]),
                    self._called: one["worker"],
                    "agents": str(one["agents"]),
                    "calls": str(one["calls"]),
                    "calls/s": _rate(one["per_second"]),
                    "queued": f"{one['queued']}{'+' if one['more'] else ''}",
                    "sockets": str(one["sockets"]),
                }
                for one in busy[: self._trees]
            ]
        )

    def _failing(self, calls: Iterable[Seen]) -> list[RenderableType]:
        worst = sorted(calls, key=lambda one: (-one["failures"], one["address"], one["method"]))[: self._trees]
        rows = [
            {
                "failing call": f"{unquote(one['address'])} {one['method']}",
                self._called: one["worker"],
                "failures": str(one["failures"]),
            }
            for one in worst
        ]
        return ["", self._table(rows)] if rows else []

    def _slow(self, methods: Iterable[Seen]) -> list[RenderableType]:
        slowest = sorted(methods, key=lambda one: (-one["times"], one["method"]))[: self._trees]
        rows = [
            {
                "blocked its process": one["method"],
                self._called: one["worker"],
                "times": str(one["times"]),
                "longest": f"{one['seconds']:.1f} s",
            }
            for one in slowest
        ]
        return ["", self._table(rows)] if rows else []

    def _table(self, rows: Sequence[Mapping[str, str]]) -> Table:
        """Return a table without the columns in which there is nothing."""
        table = Table(box=None, padding=(0, self._gap, 0, 0), pad_edge=False, header_style="cyan")
        headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
        for heading in headings:
            width = self._widths.get(heading)
            justify = "right" if width is None else "left"
            table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", max_width=width)
        for row in rows:
            table.add_row(*(Text(row[heading]) for heading in headings))
        return table


def _place(one: Seen) -> tuple[int, str]:
    return len(one["worker"]), one["worker"]


def _head(workers: Sequence[Seen], count: int, called: str) -> Text:
    what = counted(count, f"{called}s") if any(one["worker"] for one in workers) else "one process"
    trees, sockets = (sum(one[name] for one in workers) for name in ("trees", "sockets"))
    return Text(f"{what}, {counted(trees, 'trees')} awake, {counted(sockets, 'sockets')}", "bold")


def _missing(who: str) -> Text:
    return Text(f"{who} does not answer: it is busy or restarting", "bold red")


def _unready(one: Seen, called: str) -> Text:
    who = f"{called} {one['worker']}" if one["worker"] else "the process"
    why = one.get("unready") or "its event loop is blocked by an agent"  # those of another version do not say
    return Text(f"{who} is not ready: {why}", "bold red")


def _rate(per_second: float | None) -> str:
    return "" if per_second is None else f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}"
