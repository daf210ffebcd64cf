"""Kills one process after the other, and checks what each left.

    python -m tests.faults.lives --level process --lives 200 --seed 7

A life is a fork of this process that runs the workload on a data folder until it dies:
by SIGKILL at some moment, or by its own hand at a crash point. Under `disk` it may take
the power with it. A checker then opens a copy, so that the next life has to recover by
itself, and may be killed while it does. A folder lives through several lives.

Prints one line of JSON. What went wrong is told sentence by sentence on standard error,
with the seed, and the folder is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from select import select

import msgspec
from tests.faults import mutants
from tests.faults.checker import Complaints, examine
from tests.faults.disk import Disk
from tests.faults.journal import Journal, read
from tests.faults.model import Model, Report
from tests.faults.workload import WORLD, Root, work
from tests.machine import SPARE, slowness

from sapwood import App, Settings
from sapwood.clock import Clock
from sapwood.kernel.ports.durability import Gate
from sapwood.runtimes.local import LocalRuntime
from sapwood.storage.files import Files
from sapwood.storage.image import empty_image
from sapwood.testing.faults import POINTS, CountingFiles, CountingGate, CrashPoints
from sapwood.timings import DEFAULTS, Timings

LIVES_PER_FOLDER = 5
LONGEST = 0.06
"""Seconds from the first reply to a death at some moment."""
PATIENCE = 0.4
"""Seconds a life may take on an idle machine to reach its crash point; then it dies where it is."""
HUNG = 30.0
"""Seconds after which a process that should have died counts as hung."""
NUMBERS_PER_LIFE = 1_000_000

NTH = {"committed": 250, "create": 40, "remove": 30, "sync": 250, "make_folder": 3, "rename": 3}
"""At which pass of a crash point to die, at most."""
FAVOUR = {"make_folder": "fell", "rename": "fell", "remove": "remove"}
"""What to do more often, so that the point is reached."""


@dataclass(frozen=True, slots=True)
class Death:
    """How one life is to end."""

    point: str | None
    """A crash point; None: at some moment after the first reply."""
    nth: int
    after: float
    power: bool
    """Whether the power goes too."""

    @property
    def favour(self) -> str | None:
        return FAVOUR.get(self.point.rpartition(" ")[2]) if self.point is not None else None


def points_of(level: str) -> list[str]:
    """Return the crash points that are passed at this level: `process` never syncs."""
    return [point for point in POINTS if level == "disk" or not point.endswith("sync")]


class Runtime(LocalRuntime):
    """A node that dies on command."""

    def __init__(self, settings: Settings, how: Mortal, clock: Clock | None = None) -> None:
        super().__init__(settings, clock=clock, files=CountingFiles(how.points, how.below), timings=how.timings)
        self._points = how.points

    def make_gate(self) -> Gate:
        return CountingGate(self._points, super().make_gate())


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one folder's lives."""

    home: Path
    level: str

    def data(self, image: int) -> Path:
        return self.home / f"data-{image}"

    @property
    def memory(self) -> Path:
        """What a life under `disk` leaves to the next when the power stayed."""
        return self.home / "memory"

    def journal(self, life: int) -> Path:
        return self.home / f"journal-{life}.jsonl"

    def note(self, life: int) -> Path:
        """How the life ended, in its own words."""
        return self.home / f"death-{life}"


@dataclass(frozen=True, slots=True)
class Mortal:
    """What a life needs to die as it should."""

    points: CrashPoints
    below: Files
    """The file layer, on a disk that can lose power."""
    replied: Callable[[], None]
    """To be called at the first reply."""
    die: Callable[[], None]
    """Dies at once, as if at a crash point."""
    timings: Timings = DEFAULTS


def mortal(place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> Mortal:
    """Have this process die as `death` says."""
    data = place.data(image)
    points = CrashPoints()
    below = Files()
    disk: Disk | None = None
    if place.level == "disk":
        disk = Disk(data, place.memory, slowness=0.002)
        below = mutants.files(disk)

    def die(how: str) -> None:
        if disk is None:
            place.note(life).write_text(how)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            disk.freeze()
            if death.power:
                disk.image(place.data(image + 1), random, random.choice((0.0, 0.0, 0.3, 0.6, 0.9, 1.0)))
                place.memory.unlink(missing_ok=True)
            else:
                disk.remember(place.memory)
        place.note(life).write_text(how)
        os._exit(0)

    def at_some_moment(*_: object) -> None:
        disk.interrupt(lambda: die("moment")) if disk is not None else die("moment")

    def replied() -> None:
        os.write(first_reply, b"!")
        if death.point is None and disk is not None:
            signal.setitimer(signal.ITIMER_REAL, max(death.after, 0.0001))

    signal.signal(signal.SIGALRM, at_some_moment)
    if death.point is not None:
        points.arm(death.point, death.nth, lambda: die("point"))
        signal.setitimer(signal.ITIMER_REAL, death.after)
    timings = Timings(checkpoint_frames=random.randint(12, 60)) if random.random() < 0.3 else DEFAULTS
    return Mortal(points, below, replied, lambda: die("point"), timings)


def settings_of(place: Place, image: int, random: Random) -> Settings:
    """Return what a life runs with: sometimes hardly anything fits into memory."""
    return Settings(
        data=place.data(image),
        durability=place.level,
        slow_after=10.0,
        open_databases=random.choice((None, None, 4)),
        sleep_after=random.choice((120.0, 0.01)),
    )


def complain(note: Callable[..., None]) -> None:
    """Have the journal say what sapwood reports to operators as an error."""
    complaints = Complaints()
    logging.getLogger("sapwood").addHandler(complaints)
    complaints.emit = lambda record: note("e", record.getMessage() + _trouble(record))


def live(place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
    """Run the workload until death. Never returns."""
    how = mortal(place, life, image, death, random, first_reply)
    settings = settings_of(place, image, random)
    complain(WORLD.note)
    WORLD.journal = Journal(place.journal(life), how.replied)
    WORLD.numbers = itertools.count(life * NUMBERS_PER_LIFE + 1)

    async def main() -> None:
        app = App(agents=[Root], settings=settings, runtime=Runtime(settings, how))
        async with app:
            await work(app, random, death.favour)

    asyncio.run(main())


def _trouble(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return ": " + "".join(traceback.format_exception(record.exc_info[1]))


class Runner:
    """Runs lives and counts."""

    longest = LONGEST
    patience = PATIENCE
    nth = NTH

    def __init__(self, level: str, seed: str, where: Path, mutant: str | None, only: str | None) -> None:
        self._level = level
        self._seed = seed
        self._where = where
        self._mutant = mutant
        self._only = only
        self.points: Counter[str] = Counter()
        self.replies = 0
        self.violations: list[str] = []
        self.kept: list[str] = []

    def run(self, lives: int, seconds: float, stop_after: int, sentence: str) -> int:
        """Run so many lives; stop early after so many violations with this sentence in them, or when time is up."""
        end = time.monotonic() + seconds
        done = 0
        while done < lives and time.monotonic() < end:
            if sum(sentence in violation for violation in self.violations) >= stop_after:
                break
            done += self._folder(done, min(LIVES_PER_FOLDER, lives - done))
        return done

    def _folder(self, first: int, count: int) -> int:
        place = Place(Path(tempfile.mkdtemp(prefix=f"{self._level}-{first}-", dir=self._where)), self._level)
        place.data(0).mkdir()
        self.begin(place)
        image = 0
        for life in range(first, first + count):
            random = Random(f"{self._seed} {self._level} {life}")
            death = self._death(life, random)
            problems = self._one(place, life, image, death, random)
            if self._level == "disk" and place.data(image + 1).exists():
                image += 1
            replies, found = self.check(place, life, image, death)
            self.replies += replies
            problems += found
            if not problems and life == first + count - 1:
                problems += self.end(place, image)
            if problems:
                self._tell(place, life, death, problems)
                return life + 1 - first
        shutil.rmtree(place.home)
        return count

    def points_of(self, level: str) -> list[str]:
        """Return the crash points at which lives of this kind die, one after the other."""
        return points_of(level)

    def _death(self, life: int, random: Random) -> Death:
        """Return how this life ends: every third at some moment, the others at one crash point after the other."""
        power = self._level == "disk" and random.random() < 0.7
        if life % 3 == 2 and self._only is None:
            return Death(None, 0, random.random() * self.longest, power)
        points = self.points_of(self._level) if self._only is None else [self._only]
        turn = life // 3 * 2 + life % 3
        point = points[turn % len(points)]
        nth = 1 + turn // len(points) * 11 % self.nth[point.rpartition(" ")[2]]
        return Death(point, nth, self.patience * slowness() / SPARE, power)

    def begin(self, place: Place) -> None:
        """A new folder: nothing is known of it."""
        self._model = Model(ordered=self._level == "process")

    def live(self, place: Place, life: int, image: int, death: Death, random: Random, first_reply: int) -> None:
        """Run one life, in a process of its own."""
        live(place, life, image, death, random, first_reply)

    def end(self, place: Place, image: int) -> list[str]:
        """Return what is wrong with a folder after its last life."""
        return []

    def _one(self, place: Place, life: int, image: int, death: Death, random: Random) -> list[str]:
        """Run one life to its end; return what was wrong with the way it ended."""
        reading, writing = os.pipe()

        def run() -> None:
            mutants.apply(self._mutant)
            self.live(place, life, image, death, random, writing)

        pid = fork(run, place.home / f"stderr-{life}")
        os.close(writing)
        if self._level == "process" and death.point is None and select([reading], [], [], HUNG)[0]:
            time.sleep(death.after)
            os.kill(pid, signal.SIGKILL)
        status = wait(pid)
        os.close(reading)
        note = place.note(life)
        how = note.read_text() if note.exists() else ""
        if how == "point":
            self.points[str(death.point)] += 1
        elif status is not None and (how == "moment" or (death.point is None and os.WIFSIGNALED(status))):
            self.points["a moment"] += 1
        else:
            stderr = (place.home / f"stderr-{life}").read_text()
            return [
                f"the process hung and had to be killed: {stderr}" if status is None else f"it ended early: {stderr}"
            ]
        return []

    def check(self, place: Place, life: int, image: int, death: Death) -> tuple[int, list[str]]:
        """Return how many replies a life gave, and what is wrong with what it left."""
        copy, answer = place.home / "copy", place.home / "report"
        shutil.copytree(place.data(image), copy)
        answer.unlink(missing_ok=True)

        def check() -> None:
            answer.write_bytes(msgspec.json.encode(asyncio.run(examine(copy, self._level))))

        status = wait(fork(check, place.home / f"checker-stderr-{life}"))
        replies = self._model.add(life, read(place.journal(life)))
        if status != 0 or not answer.exists():
            return replies, [f"the checker died: {(place.home / f'checker-stderr-{life}').read_text()}"]
        problems = self._model.check(msgspec.json.decode(answer.read_bytes(), type=Report))
        if not problems:
            shutil.rmtree(copy)
        return replies, problems

    def _tell(self, place: Place, life: int, death: Death, problems: list[str]) -> None:
        self.kept.append(str(place.home))
        for problem in problems:
            self.violations.append(problem)
            print(f"seed {self._seed} life {life} ({death}): {problem}", file=sys.stderr)
        print(f"  the folder is kept: {place.home}", file=sys.stderr, flush=True)


def fork(run: Callable[[], None], stderr: Path) -> int:
    """Run this in a process of its own, which ends with it; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(stderr, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644), 2)
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float = HUNG) -> int | None:
    """Return the status of a process when it has ended; None if it had to be ended."""
    end = time.monotonic() + seconds
    pause = 0.0005
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(pause * 1.5, 0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main(kind: type[Runner], about: str | None) -> int:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--level", choices=["process", "disk"], default="process")
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument("--mutant", choices=sorted(mutants.MUTANTS), help="break sapwood in this way")
    parser.add_argument("--stop-after", type=int, default=1, help="stop after this many violations")
    parser.add_argument("--only", choices=POINTS, help="die at this crash point only")
    parser.add_argument("--until", default="", help="count only violations with this in them")
    parser.add_argument("--folder", help="where the data folders are made")
    parser.add_argument("--forget", action="store_true", help="keep no folder, whatever was found")
    options = parser.parse_args()
    empty_image()
    began = time.monotonic()
    memory = Path("/dev/shm")  # nothing here needs a real disk: a killed process leaves its pages, a lost disk is ours
    parent = options.folder or (memory if memory.is_dir() else None)
    where = Path(tempfile.mkdtemp(prefix="sapwood-lives-", dir=parent))
    runner = kind(options.level, options.seed, where, options.mutant, options.only)
    lives = runner.run(options.lives, options.seconds, options.stop_after, options.until)
    if options.forget or not runner.kept:
        shutil.rmtree(where)
    result = {
        "level": options.level,
        "seed": options.seed,
        "mutant": options.mutant,
        "lives": lives,
        "replies": runner.replies,
        "seconds": round(time.monotonic() - began, 1),
        "points": dict(sorted(runner.points.items())),
        "violations": runner.violations,
        "kept": runner.kept,
    }
    print(json.dumps(result), flush=True)
    return 1 if runner.violations else 0


if __name__ == "__main__":
    sys.exit(main(Runner, __doc__))
