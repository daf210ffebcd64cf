"""Releases of sapwood that do not exist yet, each in an environment of its own, to try upgrades and downgrades.

`build(folder)` builds the checkout as it is, and from it the next two minor releases. Each of these adds what a release
may add: migrations, frames and fields. `CHANGES` lists them, and they are written for this checkout: if the number of a
migration is taken, or a line that they change has changed, `build` fails and names it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements/dev.txt"
FIRST: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
"""The version of the checkout."""
MAJOR, MINOR, *_ = FIRST.split(".")
NEXT, LAST = (f"{MAJOR}.{int(MINOR) + more}.0.dev0" for more in (1, 2))
EXTRAS = "auth,chat,cluster,mcp,metrics,otel,remote,sandbox,server,temporal"
TEST_TOOLS = ("dirty-equals", "hypothesis", "inline-snapshot", "packaging", "pytest", "pytest-xdist")
"""What the programs in `tests/compat` import, besides sapwood."""
PATIENCE = 600.0


@dataclass(frozen=True)
class Added:
    """A migration that a release adds: a file whose number must be the next of its owner."""

    path: str
    sql: str

    def apply(self, source: Path) -> None:
        """Write the file into the source of the release."""
        path = source / self.path
        owner, _, number = path.stem.rpartition("_")
        last = len(list(path.parent.glob(f"{owner}_[0-9]*.sql")))
        if int(number) != last + 1:
            raise SystemExit(f"{self.path} must have the number {last + 1:04}: correct it in {Path(__file__).name}.")
        path.write_text(self.sql)


@dataclass(frozen=True)
class Changed:
    """A line of code that a release changes."""

    path: str
    old: str
    new: str

    def apply(self, source: Path) -> None:
        """Change the line in the source of the release."""
        path = source / self.path
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise SystemExit(f"{self.path} has {self.old!r} {found} times, expected 1: correct {Path(__file__).name}.")
        path.write_text(text.replace(self.old, self.new))


CHANGES: dict[str, tuple[Added | Changed, ...]] = {
    FIRST: (),
    NEXT: (
        # A column with a default, and rows that are written again.
        Added(
            "src/sapwood/kernel/schema/children_0002.sql",
            "ALTER TABLE sapwood_children ADD COLUMN label TEXT NOT NULL DEFAULT '';\n"
            "UPDATE sapwood_children SET label = type || ':' || name;\n",
        ),
        Added(
            "src/sapwood/capabilities/schema/fibers_0002.sql",
            "ALTER TABLE sapwood_fibers ADD COLUMN priority INTEGER NOT NULL DEFAULT 5;\n",
        ),
        Added(
            "src/sapwood/capabilities/schema/calls_0002.sql",
            "ALTER TABLE sapwood_calls ADD COLUMN priority INTEGER NOT NULL DEFAULT 5;\n"
            "CREATE INDEX sapwood_calls_by_priority ON sapwood_calls (priority, number);\n",
        ),
        Added(
            "src/sapwood/runs/schema/runs_0002.sql",
            "ALTER TABLE sapwood_runs ADD COLUMN region TEXT NOT NULL DEFAULT 'here';\n",
        ),
        # Two steps at once: each file has to see both.
        Added("src/sapwood/chat/schema/chat_0004.sql", "ALTER TABLE sapwood_turns ADD COLUMN language TEXT;\n"),
        Added(
            "src/sapwood/chat/schema/chat_0005.sql",
            "CREATE TABLE sapwood_reactions (message TEXT NOT NULL, reaction TEXT NOT NULL) STRICT;\n"
            "INSERT INTO sapwood_reactions SELECT id, 'seen' FROM sapwood_messages;\n"
            "CREATE TRIGGER sapwood_react AFTER INSERT ON sapwood_messages\n"
            "BEGIN INSERT INTO sapwood_reactions (message, reaction) VALUES (new.id, 'seen'); END;\n",
        ),
        # The index of the node, and a new owner of tables.
        Added(
            "src/sapwood/kernel/schema/node_0002.sql",
            "ALTER TABLE sapwood_node_alarms ADD COLUMN region TEXT NOT NULL DEFAULT 'here';\n",
        ),
        Changed(
            "src/sapwood/kernel/alarms/node_index.py",
            'self.database.execute("INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)", *row)',
            'self.database.execute("INSERT INTO sapwood_node_alarms (root, due_at, dead) VALUES (?, ?, ?)", *row)',
        ),
        Changed(
            "src/sapwood/kernel/alarms/node_index.py",
            '"INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)"\n',
            '"INSERT INTO sapwood_node_alarms (root, due_at, dead) VALUES (?, ?, ?)"\n',
        ),
        Added(
            "src/sapwood/kernel/schema/labels_0001.sql",
            "CREATE TABLE sapwood_labels (label TEXT NOT NULL) STRICT;\n"
            "CREATE TRIGGER sapwood_label AFTER INSERT ON sapwood_children\n"
            "BEGIN INSERT INTO sapwood_labels (label) VALUES (new.name); END;\n",
        ),
        Changed(
            "src/sapwood/kernel/actors/children_table.py",
            "        self._db.ensure(CHILDREN)\n",
            '        self._db.ensure(CHILDREN)\n        self._db.ensure(Schema("sapwood.kernel", "labels"))\n',
        ),
        # A client ignores fields and frames that it does not know.
        Changed(
            "src/sapwood/wire/frames.py",
            '{"type": "cf_agent_identity", "name": name, "agent": agent}',
            '{"type": "cf_agent_identity", "name": name, "agent": agent, "edition": 2}',
        ),
        Changed(
            "src/sapwood/capabilities/connections.py",
            "            if agent.send_identity:\n",
            '            self._outbox.put(socket, \'{"type":"sapwood_edition","edition":2}\')\n'
            "            if agent.send_identity:\n",
        ),
        Changed("src/sapwood/admin/session.py", '"name": access.name,', '"name": access.name,\n        "edition": 2,'),
    ),
    LAST: (
        Added(
            "src/sapwood/kernel/schema/children_0003.sql",
            "CREATE INDEX sapwood_children_by_label ON sapwood_children (label);\n",
        ),
        Added(
            "src/sapwood/capabilities/schema/fibers_0003.sql",
            "CREATE INDEX sapwood_fibers_by_priority ON sapwood_fibers (priority);\n",
        ),
        Added(
            "src/sapwood/runs/schema/served_0002.sql",
            "ALTER TABLE sapwood_served_runs ADD COLUMN region TEXT NOT NULL DEFAULT 'here';\n",
        ),
        Added(
            "src/sapwood/chat/schema/chat_0006.sql",
            "ALTER TABLE sapwood_reactions ADD COLUMN at REAL;\n",
        ),
    ),
}
"""What each release adds to the one before it. Column additions only to tables whose rows are written by name."""


@dataclass(frozen=True)
class Release:
    """A release in an environment of its own."""

    version: str
    source: Path
    """Its checkout, with the tests: the wheel was built from it."""
    wheel: Path
    python: Path
    """The Python of its environment. The programs beside it, such as `sapwood`, are those of the release."""

    def program(self, name: str) -> str:
        """Return the path of a program of its environment."""
        return str(self.python.with_name(name))

    @property
    def environment(self) -> dict[str, str]:
        """The variables for its programs: nothing of ours may lead them to another release."""
        ours = ("PYTHON", "SAPWOOD", "VIRTUAL_", "PYTEST")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}


def build(folder: Path, versions: Sequence[str] = (FIRST, NEXT, LAST)) -> dict[str, Release]:
    """Build releases into a folder, each from a copy of the checkout; return them by their versions."""
    folder = folder.resolve()
    sources = {version: folder / version / "source" for version in versions}
    for version, source in sources.items():
        write_source(version, source)
    with ThreadPoolExecutor(2) as two:
        built = two.map(lambda version: _install(version, sources[version]), versions)
        return {release.version: release for release in built}


def write_source(version: str, to: Path) -> None:
    """Copy the checkout, with all changes up to this release."""
    changes = list(_changes(version))
    listed = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    for change in changes:
        change.apply(to)
    project = to / "pyproject.toml"
    text, found = re.subn(r'^version = ".+"$', f'version = "{version}"', project.read_text(), flags=re.MULTILINE)
    if found != 1:
        raise SystemExit(f"pyproject.toml has {found} lines with a version, expected 1.")
    project.write_text(text)


def _changes(version: str) -> Iterator[Added | Changed]:
    for release, changes in CHANGES.items():
        yield from changes
        if release == version:
            return
    raise SystemExit(f"{version!r} is none of the releases {', '.join(CHANGES)}.")


def _install(version: str, source: Path) -> Release:
    built, environment = source.with_name("built"), source.with_name("environment")
    build_command = ["-m", "build", "--no-isolation", "--wheel", "--outdir", str(built), str(source)]
    _run([sys.executable, *build_command], source)
    (wheel,) = built.glob("*.whl")
    python = environment / "bin/python"
    uv = _uv()
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], source)
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(LOCK)]
    _run([*install, f"{wheel}[{EXTRAS}]", *TEST_TOOLS], source)
    release = Release(version, source, wheel, python)
    said = _run([release.program("sapwood"), "--version"], source, release.environment).strip()
    if said != version:
        raise SystemExit(f"The environment of {version} has sapwood {said}.")
    return release


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
