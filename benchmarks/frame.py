"""Times ours and a reference alternately in one run, and prints one JSON line per metric.

The machine is shared and noisy, so a figure means little and a ratio of two medians
taken side by side means something.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One measured line."""

    name: str
    ours: float | None
    reference: float | None
    ratio: float | None
    """How many times the reference ours is; for "at least" bars, how many times better ours is."""
    unit: str
    n: int
    bar: str
    holds: bool | None
    note: str = ""


def emit(result: Result) -> Result:
    """Print a result as one line of JSON."""
    print(json.dumps({key: _short(value) for key, value in asdict(result).items() if value != ""}), flush=True)
    return result


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def at_most(name: str, ours: float, reference: float, *, times: float, unit: str, n: int, note: str = "") -> Result:
    """Ours may cost at most `times` the reference."""
    ratio = ours / reference
    return emit(Result(name, ours, reference, ratio, unit, n, f"<= {times:g}x", ratio <= times, note))


def at_least(name: str, ours: float, reference: float, *, times: float, unit: str, n: int, note: str = "") -> Result:
    """Ours has to be at least `times` as fast: both are costs, so smaller is better."""
    ratio = reference / ours
    return emit(Result(name, ours, reference, ratio, unit, n, f">= {times:g}x as fast", ratio >= times, note))


def more(name: str, ours: float, reference: float, *, times: float, unit: str, n: int, note: str = "") -> Result:
    """Ours has to be at least `times` the reference: both are rates, so larger is better."""
    ratio = ours / reference
    return emit(Result(name, ours, reference, ratio, unit, n, f">= {times:g}x", ratio >= times, note))


def below(name: str, ours: float, limit: float, *, unit: str, n: int, note: str = "") -> Result:
    """Ours has to stay below a fixed figure."""
    return emit(Result(name, ours, limit, ours / limit, unit, n, f"<= {limit:g} {unit}", ours <= limit, note))


def none(name: str, ours: float, *, unit: str, n: int, note: str = "") -> Result:
    """There has to be nothing of it."""
    return emit(Result(name, ours, 0.0, None, unit, n, f"<= 0 {unit}", ours <= 0, note))


def works(name: str, ours: float, *, unit: str, n: int, bar: str = "works", note: str = "") -> Result:
    """It has to work; the figure is for information."""
    return emit(Result(name, ours, None, None, unit, n, bar, True, note))


async def alternately(
    ours: Callable[[], Awaitable[float]], reference: Callable[[], Awaitable[float]], repeats: int = 7
) -> tuple[float, float]:
    """Return the medians of both, measured in turns after one round to warm up."""
    await ours()
    await reference()
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats):
        mine.append(await ours())
        theirs.append(await reference())
    return statistics.median(mine), statistics.median(theirs)


def cache() -> Path:
    """Return the folder both sides keep their files in: what creating a file costs differs from folder to folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sapwood-bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_scratch: list[Path] = []


def scratch(name: str) -> Path:
    """Return a new folder for one measurement.

    All go together when the process ends: ext4 is slow to create files for a minute
    after many were removed, and whoever is measured next would pay for it.
    """
    if not _scratch:
        _scratch.append(Path(tempfile.mkdtemp(prefix="run-", dir=cache())))
        atexit.register(shutil.rmtree, _scratch[0], ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_scratch[0]))


def say(text: str) -> None:
    """Tell a person what goes on, beside the results."""
    print(text, file=sys.stderr, flush=True)
