"""Run a tier of the gate, print how long each part took, and fail a part that is over its limit.

`check` comes before every commit, `ci` before a change lands, and `nightly` is everything. A limit is in seconds of
wall time on two idle cores of our machine. The time that other programs and the hypervisor took is subtracted first,
and the rest is divided by how many times slower than ours this machine is now: neither a busy machine nor a slow one
fails a part that is as fast as ever. The budget is the limit of the tier. That of a part is about twice what it takes:
it has to find the part that has grown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Part:
    """One command of a tier."""

    name: str
    command: str
    limit: float
    """Seconds of wall time on two idle cores of our machine."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cheap: bool = False
    """If it fails, nothing after it is worth its time."""

    def nice(self) -> Part:
        """Return the same part at low priority."""
        return replace(self, command=f"nice -n 15 {self.command}")


Stage = tuple[Part, ...]
"""Parts that run beside each other."""


def tests(name: str, arguments: str, limit: float, **env: str) -> Part:
    """Return a part that runs tests; `SAPWOOD_TIMINGS` names a file for what each of them costs."""
    timings = f" {shlex.quote(f'--timings={file}')}" if (file := os.environ.get("SAPWOOD_TIMINGS")) else ""
    return Part(name, f"pytest -q --inline-snapshot disable{timings} {arguments}", limit, env)


# The fast tests hardly wait: their time is virtual. Each process more imports all of them once more.
TWO = "-n 2 --dist worksteal"
# Lives and nodes wait for a process now and then.
THREE = "-n 3 --dist worksteal"
# Twice as many tests at once as a small machine has cores: most of the time they wait.
FOUR = "-n 4 --dist worksteal"
# Those share servers and browsers within a file, and wait for each other's processes most of the time.
FILES = "-n 3 --dist loadfile"
MOST_FILES = "-n 4 --dist loadfile"

FAST = "not slow and not alone and not disk and not nightly"
CHATS = "tests/conformance/test_{chat,runs,teams}_*.py"

CHEAP: list[Stage] = [
    (Part("format", "ruff format --check .", 10, cheap=True),),
    (Part("lint", "ruff check .", 10, cheap=True),),
    (Part("layers", "lint-imports --no-logo", 20, cheap=True),),
]
FAST_TESTS = tests("fast tests", f"{TWO} -m '{FAST}'", 280).nice()

# Half of the time of pyright goes to tests and scripts. Before a commit, only those that it changes are checked.
OURS = "'tests/*.py' 'scripts/*.py' ':!tests/typing'"
CHANGED = f"git diff --name-only --diff-filter=d HEAD -- {OURS}; git ls-files --others --exclude-standard -- {OURS}"
PROGRAMS = "bash tests/typing/check.sh"
CHANGED_TYPES = Part("types", f"pyright src examples $({CHANGED}) && {PROGRAMS}", 150)
TYPES = Part("types", f"pyright && {PROGRAMS}", 300)
# What only reads runs beside the tests, so that no core waits. pyright is a single process: the tests let it pass.
READ = (
    Part("docs", "zensical build --clean --strict", 60),
    Part("ledger", "python scripts/ledger.py", 60),
)

CHECK: list[Stage] = [*CHEAP, (FAST_TESTS, CHANGED_TYPES, *READ)]

CI: list[Stage] = [
    *CHEAP,
    # Fast and slow tests are collected once.
    (tests("tests", f"{FOUR} -m 'not alone and not nightly'", 750).nice(), TYPES, *READ),
    # Parts that wait for processes and disks run beside others, so that no core waits.
    (
        tests(
            "lives",
            f"{THREE} -m 'not alone and not mutant and not nightly' tests/faults",
            300,
            SAPWOOD_LIVES="16",
            SAPWOOD_FUZZ="20000",
        ),
        Part("wheel and templates", "bash .ci/wheel", 180),
    ),
    (
        tests("log and archive", f"{THREE} -m 'not alone and not nightly' tests/cluster", 220),
        tests("black box", f"{FILES} -m 'not nightly' tests/blackbox", 160),
    ),
    (tests("workers", f"{FOUR} --runtime workers --core -m 'not disk' tests/conformance", 90),),
    (tests("cluster", f"{FOUR} --runtime cluster --core -m 'not disk' tests/conformance", 120),),
    (tests("temporal", f"{FOUR} --driver temporal --core -m 'not disk' {CHATS}", 200),),
    (
        tests(
            "clients and servers",
            f"{MOST_FILES} -m 'not nightly' tests/npm tests/e2e tests/temporal tests/browser",
            480,
        ),
    ),
]

NIGHTLY: list[Stage] = [
    *CHEAP,
    (FAST_TESTS, TYPES, *READ),
    (Part("wheel and templates", "bash .ci/wheel", 120),),
    (Part("package", "python scripts/check_package.py", 180),),
    (Part("newcomer", "python scripts/try_wheel.py --python 3.11 --if-found 3.13", 900),),
    (Part("releases", "python scripts/try_releases.py", 600),),
    (Part("upgrade under load", "python scripts/try_upgrade.py", 240),),
    (tests("slow tests", f"{FOUR} -m '(slow or disk or nightly) and not alone'", 600),),
    (tests("lives", f"{THREE} -m 'not alone and not mutant' tests/faults", 600, SAPWOOD_LIVES="80"),),
    (tests("black box", f"{FILES} tests/blackbox", 900),),
    # The steady loads take two hours of wall time and a fifth of a core each, so the programs run beside them.
    (
        Part("black-box programs", 'python -m tests.blackbox.suite --results "$(mktemp)"', 10400),
        Part("steady load", "python -m tests.blackbox.steady --minutes 120", 7500),
        Part("steady load with runs", "python -m tests.blackbox.steady --minutes 120 --runs", 7500),
    ),
    (tests("workers", f"{FOUR} --runtime workers -m 'not disk' tests/conformance", 600),),
    # What does not apply there is in tests/conformance/exclusions.toml, with why.
    (tests("cluster", f"{FOUR} --runtime cluster -m 'not disk' tests/conformance", 1200),),
    (tests("temporal", f"{FOUR} --driver temporal -m 'not disk' {CHATS}", 600),),
    (tests("log and archive", f"{THREE} -m 'not alone' tests/cluster", 600),),
    (tests("clients and servers", f"{FILES} tests/npm tests/e2e tests/temporal tests/browser", 1800),),
    # Most of the time, clients wait for the server to come back.
    (
        Part("kills", "python -m tests.e2e.kills.run --kills 200", 1200),
        Part("kills of workers", "python -m tests.e2e.kills.run --kills 200 --workers 2", 2400),
    ),
    (tests("faults that need the machine", "-m 'alone and not mutant' tests/faults tests/cluster", 1200),),
    (tests("mutants", f"{THREE} -m 'mutant and not alone' tests/faults", 1200),),
    (tests("mutants that run alone", "-m 'mutant and alone' tests/faults", 1800),),
]

TIERS = {"check": CHECK, "ci": CI, "nightly": NIGHTLY}
TOTALS = {"check": 180.0, "ci": 1200.0, "nightly": 5.5 * 3600.0}


@dataclass(frozen=True)
class Reading:
    """The clocks of the machine, and of the processes that were started here and have ended."""

    wall: float
    busy: float
    """Seconds of all cores that any program used or the hypervisor took."""
    own: float

    @classmethod
    def now(cls) -> Reading:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.monotonic(), _busy(), usage.ru_utime + usage.ru_stime)

    def taken_since(self, began: Reading, cores: int) -> float:
        """Return the seconds of wall time that other programs took of the machine.

        The CPU time of processes that were not waited for counts as other programs': it makes the gate lenient.
        """
        return max(0.0, self.busy - began.busy - (self.own - began.own)) / cores


def _busy() -> float:
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:  # not Linux
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in first.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


PROBE_EVERY = 1.0
PROBE_REFERENCE = 0.0065
"""Seconds of CPU time that a probe takes on our machine at its full speed."""
SLOWEST = 4.0
"""Slower than this is a fault of the gate, not of the machine."""


class MachineSpeed:
    """How fast this machine is now, beside the one that the limits were measured on.

    A shared machine is slower at one hour than at another, also when no other program is seen to run on it: cores
    share caches, memory and clock rate with other guests. We have seen one machine take 6.5 and 17.5 ms of CPU time
    for the same probe within an hour. The same small piece of work, done every second beside the tests, takes as much
    longer as they do.
    """

    def __init__(self) -> None:
        self._probes: list[float] = []
        self._next = 0.0

    def look(self) -> None:
        """Take a probe if the last one is a second old."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROBE_EVERY
            self._probes.append(probe())

    @property
    def slowness(self) -> float:
        """How many times slower than our machine this one was: at least 1, so that no limit becomes stricter."""
        if not self._probes:
            return 1.0
        # Not the median: a machine that is slow for a third of the time makes a third of the work slow.
        return max(1.0, statistics.mean(min(SLOWEST, one / PROBE_REFERENCE) for one in self._probes))


def probe() -> float:
    """Return the CPU time that a fixed piece of work takes: a loop, objects, memory, text."""
    began = time.thread_time()
    for _ in range(50_000):
        pass
    rows = [{"number": number, "text": str(number) * 3} for number in range(2_000)]
    json.loads(json.dumps(rows))
    sorted(rows, key=lambda row: str(row["text"]))
    return time.thread_time() - began


@dataclass(frozen=True)
class Result:
    """How a part, or a tier, ended."""

    name: str
    ok: bool
    wall: float
    cpu: float
    taken: float
    """Seconds of wall time that other programs took of the machine."""
    slowness: float
    """How many times slower than our machine this one was."""
    limit: float

    @property
    def own(self) -> float:
        """The seconds that it would have taken on our machine, alone."""
        return (self.wall - self.taken) / self.slowness

    @property
    def is_over(self) -> bool:
        return self.own > self.limit

    def __str__(self) -> str:
        word = "failed" if not self.ok else "over its limit" if self.is_over else "ok"
        return (
            f"{self.name:<24}{self.wall:>8.0f}{self.cpu:>8.0f}{self.taken:>8.0f}{self.slowness:>8.2f}"
            f"{self.own:>8.0f}{self.limit:>8.0f}  {word}"
        )


HEAD = f"{'part':<24}{'wall s':>8}{'cpu s':>8}{'others':>8}{'slower':>8}{'own s':>8}{'limit':>8}"
HANGS = 10
"""A part that takes ten times its limit, and ten minutes at least, is killed."""
POLL = 0.1


def _heed_signals() -> None:
    """Undo what `nohup` and shells do to background jobs: a program that ignores SIGINT passes that on to all tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Run:
    """A part that has begun."""

    def __init__(self, part: Part, *, is_shown: bool) -> None:
        self.part = part
        self.wall = self.cpu = 0.0
        self.code: int | None = None
        self._output: IO[bytes] | None = None if is_shown else tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_show`
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", part.command],
            cwd=ROOT,
            env={**os.environ, **part.env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=None if self._output is None else subprocess.STDOUT,
            start_new_session=True,  # so that it can be killed with all that it started
            preexec_fn=_heed_signals,  # noqa: PLW1509 - there are no threads here
        )

    def poll(self) -> bool:
        """Return whether it has ended."""
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        self.wall = time.monotonic() - self._began
        if not pid:
            if self.wall > HANGS * max(self.part.limit, 60):
                print(f"[{self.part.name}] hangs: killed after {self.wall:.0f} s", flush=True)
                self.kill()
            return False
        self.cpu = usage.ru_utime + usage.ru_stime
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._show()
        return True

    def kill(self) -> None:
        """End it with all that it started."""
        if self.code is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _show(self) -> None:
        """Print what it has written: all of it if it failed, or else its last line."""
        if self._output is not None:
            self._output.seek(0)
            text = self._output.read().decode(errors="replace").strip()
            self._output.close()
            print(f"[{self.part.name}]", text if self.code else text.rpartition("\n")[2], flush=True)


def run_stage(stage: Stage, cores: int, tier_speed: MachineSpeed) -> list[Result]:
    """Run the parts of a stage beside each other; the output of the first is shown as it is written."""
    began, speed = Reading.now(), MachineSpeed()
    runs = [Run(part, is_shown=number == 0) for number, part in enumerate(stage)]
    try:
        running = list(runs)
        while running:
            running = [run for run in running if not run.poll()]
            speed.look()
            tier_speed.look()
            time.sleep(POLL)
    finally:
        for run in runs:
            run.kill()
    now = Reading.now()
    # Each part has lost the same share of the machine: what its neighbours used can only be told when all have ended.
    share = min(1.0, now.taken_since(began, cores) / (now.wall - began.wall))
    slowness = speed.slowness
    return [
        Result(run.part.name, run.code == 0, run.wall, run.cpu, run.wall * share, slowness, run.part.limit)
        for run in runs
    ]


def run_tier(name: str, stages: list[Stage]) -> list[Result]:
    """Run a tier; return the results of its parts, and its own at the end."""
    cores = os.cpu_count() or 1
    began, speed, results = Reading.now(), MachineSpeed(), list[Result]()
    for stage in stages:
        print("==", ", ".join(part.name for part in stage), flush=True)
        results += run_stage(stage, cores, speed)
        if any(part.cheap for part in stage) and not all(result.ok for result in results):
            break
    now = Reading.now()
    ok, taken = all(result.ok for result in results), now.taken_since(began, cores)
    total = Result(name, ok, now.wall - began.wall, now.own - began.own, taken, speed.slowness, TOTALS[name])
    return [*results, total]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", choices=sorted(TIERS))
    parser.add_argument("--only", action="append", help="run the part of this name only; repeatable")
    parser.add_argument("--list", action="store_true", help="print the parts and their limits, and run nothing")
    options = parser.parse_args()
    parts = [part for stage in TIERS[options.tier] for part in stage]
    if unknown := set(options.only or ()) - {part.name for part in parts}:
        parser.error(f"{options.tier} has no part {', '.join(sorted(unknown))}; see --list")
    if options.list:
        for part in parts:
            print(f"{part.name:<24}{part.limit:>6.0f} s  {part.command}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends what runs
    stages = [
        tuple(part for part in stage if not options.only or part.name in options.only) for stage in TIERS[options.tier]
    ]
    results = run_tier(options.tier, [stage for stage in stages if stage])
    print(HEAD, *results, sep="\n")
    return 0 if all(result.ok and not result.is_over for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
