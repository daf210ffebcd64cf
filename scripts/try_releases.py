"""Try upgrades, downgrades and mixed versions with three releases: this checkout, and two made from it.

`python scripts/try_releases.py [--only NAME]`. Each line says what was shown. The first failure ends the program.
`scripts/releases.py` builds the releases. The data and most checks are those of `tests/compat`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from scripts import releases
from scripts.releases import FIRST, LAST, NEXT, ROOT, Release

PATIENCE = 240.0
POLL = 0.1
PROGRAM = "tests.releases.served_office:app"
STALLING = "tests.compat.office_app:app"
"""The same agents, of which one waits for its model for ever."""
OFFICE, LEAD, WAITING = "CompatOffice:main", "CompatLead:asking", "CompatTalker:waiting"
BUYER = f"{LEAD}/CompatPlanner:agent-tool:t1/CompatBuyer:agent-tool:m1"
INTERRUPTED = "CompatTalker:interrupted"
ALONE: tuple[str, ...] = ()
WORKERS = ("--workers", "2")
ROLL_BACK = ROOT / "docs/how-to/deploy.md"


class Differs(Exception):
    """Something was not as expected: what, in a sentence."""


def expect(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise Differs(f"{what}: expected {expected!r}, got {found!r}.")


def run(
    release: Release,
    *command: str,
    data: Path | None = None,
    code: int = 0,
    folder: Path | None = None,
    **more: str,
) -> str:
    """Run a program of a release; return what it prints."""
    done = subprocess.run(
        [release.program(command[0]), *command[1:]],
        cwd=folder or release.source,
        env=environment(release, data, more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != code:
        words = " ".join(command)
        raise Differs(f"{words} of {release.version} exited with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def environment(release: Release, data: Path | None, more: Mapping[str, str]) -> dict[str, str]:
    folder = {} if data is None else {"SAPWOOD_DATA": str(data)}
    # A wide terminal, so that no line of a command is broken.
    return {**release.environment, "COLUMNS": "300", **folder, **more}


def step(release: Release, *arguments: str) -> None:
    run(release, "python", "-m", "tests.releases.steps", *arguments)


def unpack(release: Release, name: str, to: Path, *, of: str) -> Path:
    step(release, "unpack", of, name, str(to))
    return to


@dataclass
class Server:
    """A running server of a release."""

    release: Release
    data: Path
    url: str
    log: Path

    def says(self, words: str) -> None:
        """Fail unless its log has these words."""
        if words not in self.log.read_text():
            raise Differs(f"The log of {self.release.version} lacks {words!r}:\n{self.log.read_text()[-3000:]}")


@contextmanager
def serving(
    release: Release,
    data: Path,
    *options: str,
    port: str = "0",
    program: str = PROGRAM,
    is_killed: bool = False,
    **more: str,
) -> Iterator[Server]:
    """Serve a data folder with a release until the block ends; then the server is stopped, or killed."""
    number = len(list(data.parent.glob(f"{data.name}-*.log")))
    log = data.parent / f"{data.name}-{number}-{release.version}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [release.program("sapwood"), "serve", program, "--port", port, *options],
            cwd=release.source,
            env=environment(release, data, more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that it can be killed with its workers
        )
    try:
        yield Server(release, data, until_url(log, process), log)
        if is_killed:
            return
        process.send_signal(signal.SIGTERM)
        # One process ends by the signal itself, as a shell expects; the parent of workers exits with 0.
        if process.wait(60) not in {0, -signal.SIGTERM}:
            raise Differs(
                f"The server of {release.version} exited with {process.returncode}:\n{log.read_text()[-3000:]}"
            )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until_url(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"sapwood is running at (http://[\w.:]+)", log.read_text()):
            return found[1]
        time.sleep(POLL)
    raise Differs(f"The server did not start:\n{log.read_text()[-3000:]}")


def call(server: Server, address: str, method: str, *arguments: str, by: Release | None = None) -> Any:
    """Call a method with the command line of a release: by default that of the server."""
    said = run(by or server.release, "sapwood", "call", address, method, *arguments, data=server.data)
    return json.loads(said)


def until(what: Callable[[], Any], expected: Any, name: str) -> None:
    """Wait until something is as expected."""
    end = time.monotonic() + 60
    while (found := what()) != expected:
        if time.monotonic() > end:
            expect(found, expected, name)
        time.sleep(POLL)


# What agents have stored is written and finished on real servers, by the command line.


def begin(server: Server) -> None:
    """Store some of everything, and leave questions open and a turn in the middle of a request to its model."""
    call(server, OFFICE, "fill")
    until(lambda: call(server, OFFICE, "schedules_and_letters"), [3, 1], "a failed call is a dead letter")
    for address in ("CompatTalker:finished", WAITING, LEAD, INTERRUPTED):
        call(server, address, "turns.start", "go")
    until(lambda: texts(server, "CompatTalker:finished"), ["go", "It is wood."], "a finished conversation")
    until(lambda: len(open_questions(server, LEAD)), 1, "questions of three levels")
    until(lambda: len(open_questions(server, WAITING)), 1, "questions of a conversation")
    until(lambda: call(server, INTERRUPTED, "acts"), ["looked up bark"], "tool calls of the turn to interrupt")


def open_questions(server: Server, address: str) -> list[dict[str, Any]]:
    return json.loads(run(server.release, "sapwood", "questions", address, "--json", data=server.data))["questions"]


def finish_chats(server: Server) -> None:
    """Approve what waits, and see an interrupted turn to its end."""
    expect(call(server, WAITING, "questions.approve", "p1"), True, "approval of a waiting turn")
    until(lambda: call(server, WAITING, "acts"), ["paid 5"], "what the approved tool did")
    until(lambda: texts(server, INTERRUPTED), ["go", "It is a skin."], "the interrupted conversation")
    expect(call(server, INTERRUPTED, "acts"), ["looked up bark"], "tool calls of the interrupted turn")
    expect(texts(server, "CompatTalker:finished"), ["go", "It is wood."], "a finished conversation")


def finish_runs(server: Server) -> None:
    """Answer the question of the lowest of three levels, and see all of them end."""
    expect(call(server, BUYER, "questions.approve", "b1"), True, "approval at the lowest of three levels")
    until(lambda: texts(server, LEAD), ["go", "Done."], "the conversation of three levels")


def finish_office(server: Server) -> None:
    """Answer the question of a fiber."""
    (question,) = open_questions(server, OFFICE)
    expect(call(server, OFFICE, "questions.answer", str(question["id"]), "red"), True, "answer to a fiber")
    until(lambda: "answered red" in call(server, OFFICE, "notes"), True, "the fiber went on")
    use_office(server)


def use_office(server: Server) -> None:
    """Read all that a plain agent has stored."""
    notes = call(server, OFFICE, "notes")
    expect((notes[0], notes.count("drew north")), ("written", 1), "the rows of an agent")
    expect(call(server, OFFICE, "schedules_and_letters"), [3, 1], "schedules and dead letters")


def texts(server: Server, address: str) -> list[str]:
    messages = call(server, address, "conversation.messages")
    return ["".join(part["text"] for part in one["parts"] if part["type"] == "text") for one in messages]


def operate(server: Server, by: Release, to: Path) -> None:
    """Use the commands of an operator, of one release, on a server of another."""

    def said(*command: str) -> str:
        return run(by, "sapwood", *command, data=server.data)

    for words, command in (
        (OFFICE, ("tree",)),
        ("CompatShelf:a/b", ("tree", OFFICE)),
        ('"books"', ("state", OFFICE)),
        ("written", ("sql", OFFICE, "SELECT text FROM notes")),
        ("note", ("methods", OFFICE)),
        ("written", ("call", OFFICE, "notes")),
        ("CompatPlanner", ("runs", LEAD)),
        ("no paper", ("dead-letters",)),
        ("approved pay", ("decisions", "CompatTalker:approved")),
        ("", ("spending",)),
        ("intact", ("verify",)),
        ("Copied", ("backup", str(to))),
        ("Restored 1 tree", ("restore", str(to), "CompatTalker:finished")),
        ("in use by a running server", ("doctor",)),
    ):
        if words not in (found := said(*command)):
            raise Differs(f"sapwood {' '.join(command)} of {by.version} did not print {words!r}:\n{found[-2000:]}")
    expect("questions" in json.loads(said("questions", LEAD, "--json")), True, "questions as JSON")
    count = len(call(server, OFFICE, "notes"))
    run(by, "sapwood", "call", OFFICE, "note", f"by {by.version}", data=server.data)
    expect(len(call(server, OFFICE, "notes")), count + 1, "a note by the other command line")


class Client:
    """A program that uses `sapwood.client` of a release, connected while its server is replaced."""

    def __init__(self, release: Release, url: str) -> None:
        self.release = release
        self._process = subprocess.Popen(
            [str(release.python), "-m", "tests.releases.steps", "client", url],
            cwd=release.source,
            env=release.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if first != "connected\n":
            self._fail(first)

    def finish(self) -> None:
        """Use the server again, now that it is another one."""
        try:
            said, _ = self._process.communicate("\n", timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.close()
            raise
        if self._process.returncode:
            raise Differs(f"The client of {self.release.version} failed:\n{said[-3000:]}")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _fail(self, first: str) -> None:
        said, _ = self._process.communicate(timeout=PATIENCE)
        raise Differs(f"The client of {self.release.version} failed:\n{(first + said)[-3000:]}")


Built = Mapping[str, Release]


def record(built: Built, folder: Path) -> str:
    """Record the fixtures of two releases, as at their release, and give them to those after them."""
    folder.mkdir()

    def of(version: str) -> None:
        run(built[version], "python", "-m", "tests.compat.fixture_recorder", "--again")

    with ThreadPoolExecutor(2) as two:
        list(two.map(of, (FIRST, NEXT)))
    for version, to in ((FIRST, NEXT), (FIRST, LAST), (NEXT, LAST)):
        fixtures = "tests/compat/" + version
        shutil.rmtree(built[to].source / fixtures, ignore_errors=True)
        shutil.copytree(built[version].source / fixtures, built[to].source / fixtures)
    return f"{FIRST} and {NEXT} record their data, frames and messages"


def in_one_process(version: str, of: Sequence[str]) -> Callable[[Built, Path], str]:
    def shown(built: Built, folder: Path) -> str:
        tests = built[version].source / "tests/compat"
        for release in of:
            expect((tests / release / "manifest.json").exists(), True, f"fixtures of {release} for {version}")
        run(built[version], "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", str(tests))
        return f"{version} opens and finishes data, logs and archives of {' and '.join(of)}, and reads their frames"

    return shown


def one_after_the_other(built: Built, folder: Path) -> str:
    data = unpack(built[FIRST], "local", folder / "data", of=FIRST)
    step(built[NEXT], "chats", str(data))
    step(built[LAST], "rest", str(data))
    return f"{FIRST}, {NEXT} and {LAST} use one folder one after the other"


def served(options: tuple[str, ...]) -> Callable[[Built, Path], str]:
    def shown(built: Built, folder: Path) -> str:
        first, following, last = built[FIRST], built[NEXT], built[LAST]
        data = folder / "data"
        with serving(first, data, *options, program=STALLING, is_killed=True) as server:
            begin(server)
            port = server.url.rpartition(":")[2]
            older = Client(first, server.url)
        try:
            with serving(following, data, *options, port=port) as server:
                older.finish()
                use_office(server)
                finish_chats(server)
                newer = Client(following, server.url)
        finally:
            older.close()
        try:
            with serving(last, data, *options, port=port) as server:
                newer.finish()
                finish_office(server)
                finish_runs(server)
                expect(texts(server, WAITING), ["go", "Paid."], "a conversation that another release finished")
                run(last, "sapwood", "verify", data=data)
        finally:
            newer.close()
        run(last, "sapwood", "upgrade-check", PROGRAM, data=data)
        how = "with --workers 2" if options else "of one process"
        return f"servers {how}: killed, upgraded twice, all work finished; clients of the release before reconnect"

    return shown


def operators(built: Built, folder: Path) -> str:
    data = unpack(built[FIRST], "local", folder / "data", of=FIRST)
    for version, by in ((FIRST, NEXT), (NEXT, FIRST)):
        with serving(built[version], data) as server:
            operate(server, built[by], folder / f"backup-by-{by}")
    return f"commands of {FIRST} and {NEXT} operate servers of each other"


def remote(built: Built, folder: Path) -> str:
    for caller, other in ((FIRST, NEXT), (NEXT, FIRST)):
        with (
            serving(built[other], folder / f"at-{other}") as there,
            serving(built[caller], folder / f"of-{caller}", COMPAT_REMOTE=there.url) as here,
        ):
            answer = call(here, "CompatCaller:c", "ask", "there")
            expect(answer, ["completed", "there and back"], f"a run by {caller} at {other}")
    return f"agents of {FIRST} and {NEXT} execute runs for each other"


def roll_back(built: Built, folder: Path) -> str:
    first, following = built[FIRST], built[NEXT]
    data = folder / "sapwood-data"
    before, after = commands()
    with serving(first, data, program=STALLING, is_killed=True) as server:
        begin(server)
        call(server, OFFICE, "note", "before the upgrade")
        shell(first, folder, before)
    # It is killed in the middle of a turn again: that is due at once, also for a release that must not touch it.
    with serving(following, data, program=STALLING, is_killed=True) as server:
        call(server, OFFICE, "note", "after the upgrade")
        expect(call(server, WAITING, "questions.approve", "p1"), True, "approval of a waiting turn")
        until(lambda: texts(server, WAITING), ["go", "Paid."], "the approved turn")
        expect(call(server, INTERRUPTED, "acts"), ["looked up bark"], "tool calls of the interrupted turn")

    contents = dump(built[LAST], data)
    said = run(first, "sapwood", "upgrade-check", PROGRAM, data=data, code=1)
    lack = "written by a newer version of sapwood: it has calls 2, and this version knows 1"
    for expected in (lack, OFFICE, WAITING, INTERRUPTED):
        if expected not in said:
            raise Differs(f"upgrade-check of {FIRST} does not say {expected!r}:\n{said}")
    found = f"sapwood {NEXT} has opened it, with migrations that this version lacks"
    if found not in (said := run(first, "sapwood", "doctor", data=data)):
        raise Differs(f"doctor of {FIRST} does not say {found!r}:\n{said}")
    for options in (ALONE, WORKERS):
        with serving(first, data, *options) as server:
            server.says(f"data folder is newer than this server: {found}")
            until(lambda: INTERRUPTED in server.log.read_text(), True, "the alarm of a refused tree in the log")
            said = run(first, "sapwood", "call", OFFICE, "notes", data=data, code=1)
            if lack not in said:
                raise Differs(f"A refused call of {FIRST} does not say {lack!r}: {said}")
    expect(dump(built[LAST], data), contents, "the databases after they were refused")

    shell(first, folder, after)
    with serving(first, data) as server:
        if "newer than this server" in server.log.read_text():
            raise Differs(f"The restored folder is called newer:\n{server.log.read_text()}")
        notes = call(server, OFFICE, "notes")
        expect(("before the upgrade" in notes, "after the upgrade" in notes), (True, False), "notes of the backup")
        finish_chats(server)
        finish_runs(server)
        finish_office(server)
    with serving(following, folder / "sapwood-data-newer") as server:  # nothing of the newer data is lost
        expect("after the upgrade" in call(server, OFFICE, "notes"), True, "a note in the folder that was set aside")
        until(lambda: texts(server, INTERRUPTED), ["go", "It is a skin."], "the interrupted turn that was refused")
        finish_runs(server)
        finish_office(server)
    return f"{FIRST} refuses what {NEXT} has migrated, says so first, changes nothing, and returns by a backup"


def commands() -> tuple[str, str]:
    """Return the commands of the section about going back: those before an upgrade, and those to go back."""
    _, found, section = ROLL_BACK.read_text().partition("\n## Roll back\n")
    before_next_heading = re.split(r"\n##+ ", section)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", before_next_heading, re.MULTILINE | re.DOTALL)
    if not found or len(blocks) != 2:
        raise Differs(f"{ROLL_BACK.name} must have a section 'Roll back' with two blocks of commands.")
    return blocks[0], blocks[1].replace("app:app", PROGRAM)


def shell(release: Release, folder: Path, text: str) -> None:
    """Run commands of a page as they are, in the folder that has the data folder; the program is found from there."""
    environment = {**release.environment, "PYTHONPATH": str(release.source)}
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise Differs(
            f"The commands of {ROLL_BACK.name} exited with {done.returncode}:\n{text}{done.stdout}{done.stderr}"
        )


def dump(release: Release, data: Path) -> Any:
    """Return all rows of all databases of the trees, read from a copy."""
    with tempfile.TemporaryDirectory(prefix="sapwood-dump-") as name:
        copy = Path(name) / "data"
        shutil.copytree(data, copy)
        return json.loads(run(release, "python", "-m", "tests.releases.steps", "dump", str(copy)))


SHOWN: tuple[tuple[str, Callable[[Built, Path], str]], ...] = (
    ("fixtures", record),
    ("data", in_one_process(NEXT, (FIRST,))),
    ("two", in_one_process(LAST, (FIRST, NEXT))),
    ("chain", one_after_the_other),
    ("served", served(ALONE)),
    ("workers", served(WORKERS)),
    ("operators", operators),
    ("remote", remote),
    ("rollback", roll_back),
)
"""What is shown, in this order. The first is needed by those after it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=[name for name, _ in SHOWN[1:]], help="repeatable")
    parser.add_argument("--keep", type=Path, help="leave all that was built in this new folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sapwood-releases-") as name:
        folder: Path = options.keep or Path(name)
        began = time.monotonic()
        built = releases.build(folder / "releases")
        tell("build", f"wheels and environments of {', '.join(built)}", began)
        for number, (name, show) in enumerate(SHOWN):
            if number and options.only and name not in options.only:
                continue
            began = time.monotonic()
            place = folder / "shown" / name
            place.mkdir(parents=True) if show is not record else place.parent.mkdir(parents=True, exist_ok=True)
            try:
                said = show(built, place)
            except (Differs, subprocess.TimeoutExpired) as error:
                tell(name, "failed", began)
                sys.exit(str(error))
            tell(name, said, began)


def tell(name: str, text: str, began: float) -> None:
    print(f"{name:<16}{time.monotonic() - began:>6.0f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
