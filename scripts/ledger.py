"""The ledger of promises: the lines of `tests/promises.toml`, joined with the tests that are marked with them.

    just ledger              check every line and count them
    just ledger --all        print every line with its status, its text and its tests
    just ledger A-27 CF-3    print these lines

A test shows a line if it has the mark and really runs: one that skips, or may skip, shows nothing here.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PARTS = {"A": 262, "B": 40, "CF": 195}
IDS = tuple(f"{part}-{number}" for part, count in PARTS.items() for number in range(1, count + 1))
ANSWERS = ("instead", "not_built", "not_applicable")
EXCEPT = "except"
MARK = "mark.promise("
SKIPS = {"skip", "xfail", "importorskip"}


@dataclass(frozen=True)
class Line:
    """One promise: its text, and either the tests that show it or the answer why none does."""

    id: str
    text: str
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    tests: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each test by its name, with the reason why it is skipped on this machine. Empty if it runs."""
    exception: str = ""
    """The part of the text that the tests do not show, in one sentence. Empty if they show all of it."""

    @property
    def status(self) -> str:
        """Return the answer's name, "shown", "skipped here" or "open"."""
        if self.tests:
            return "skipped here" if all(self.tests.values()) else "shown"
        return next(iter(self.answers), "open").replace("_", " ")

    @property
    def summary(self) -> str:
        """Return the status, with what is missing on this machine if the line's tests are skipped."""
        reasons = f" ({'; '.join(sorted(set(self.tests.values())))})" if self.status == "skipped here" else ""
        return f"{self.id}: {self.status}{reasons}"

    def __str__(self) -> str:
        tests = [f"{name} (skipped here: {reason})" if reason else name for name, reason in self.tests.items()]
        exception = [f"Except: {self.exception}"] if self.exception else []
        return "\n    ".join([self.summary, self.text, *self.answers.values(), *exception, *tests])


class Collector:
    """A pytest plugin that notes which lines each test shows, and why a test would be skipped."""

    def __init__(self, root: Path) -> None:
        self.marked: dict[str, dict[str, str]] = {}
        """For each line, the tests that are marked with it and why they are skipped. Empty if they run."""
        self.tests: dict[str, str] = {}
        """The same for every test that was collected."""
        self.problems: list[str] = []
        self._root = root

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # a whole module, by `importorskip`: nothing but its text tells the marks
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            for marks in re.findall(re.escape(MARK) + r"([^)]*)\)", (self._root / report.nodeid).read_text()):
                for id in re.findall(r"""["']([^"']*)["']""", marks):
                    note(self.marked.setdefault(id, {}), report.nodeid, reason)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name, reason = item.nodeid.partition("[")[0], why_skipped(item)
            note(self.tests, name, reason)
            for mark in item.iter_markers("promise"):
                if not mark.args or mark.kwargs or not all(isinstance(id, str) for id in mark.args):
                    self.problems.append(f"{name}: its mark takes the ids of lines, as promise('A-27', 'CF-3')")
                    continue
                for id in mark.args:
                    note(self.marked.setdefault(id, {}), name, reason)


def note(tests: dict[str, str], name: str, reason: str) -> None:
    """Note a test, or one more of its parameters: it runs if it runs with any of them."""
    tests[name] = reason if tests.get(name, reason) else ""


def why_skipped(item: pytest.Item) -> str:
    """Return why the test does not run on this machine, or may not. Empty if it runs."""
    for mark in item.iter_markers("skip"):
        return str(mark.kwargs.get("reason") or next(iter(mark.args), "skipped without a reason"))
    for mark in item.iter_markers("skipif"):
        if any(mark.args) or mark.kwargs.get("condition"):
            return str(mark.kwargs.get("reason") or "skipped without a reason")
    if item.get_closest_marker("xfail"):
        return "expected to fail"
    skipping = [name for name, code in codes(item) if may_skip(code)]
    return f"{', '.join(skipping)} may skip it: use `needs` of tests/needs.py" if skipping else ""


def codes(item: pytest.Item) -> Iterator[tuple[str, CodeType]]:
    """Yield the code of the test and of every fixture that it uses, directly or not."""
    info: Any = getattr(item, "_fixtureinfo", None)
    fixtures = [fixture.func for several in info.name2fixturedefs.values() for fixture in several] if info else []
    for function in [getattr(item, "function", None), *fixtures]:
        function = getattr(function, "__wrapped__", function)
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            yield code.co_name, code


def may_skip(code: CodeType) -> bool:
    """Return whether the code, or a function inside it, names `pytest.skip`, `xfail` or `importorskip`."""
    names = set(code.co_names)
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return ("pytest" in names and not SKIPS.isdisjoint(names)) or any(may_skip(one) for one in inner)


def collect(root: Path, files: Sequence[str]) -> Collector:
    """Return what the marks in these files say."""
    collector, output = Collector(root), io.StringIO()
    # Nothing is run, so assertions stay as they are. Rewriting them would take most of the time.
    options = ["--collect-only", "--quiet", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:inline_snapshot"]
    if files:
        with contextlib.chdir(root), contextlib.redirect_stdout(output):
            code = pytest.main([*options, *files], plugins=[collector])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.exit(f"{output.getvalue()}The tests could not be collected.")
    return collector


def files_to_collect(root: Path, entries: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the files with marks and with named examples, and what is wrong with where they are.

    The other files need not be imported. If a mark were missed, its line would have neither tests nor an answer.
    """
    named = {name.partition("::")[0] for entry in entries.values() for name in entry.get("examples", ())}
    marked = {
        str(path.relative_to(root))
        for room in ("tests", "examples")
        for path in (root / room).rglob("test_*.py")
        if MARK in path.read_text()
    }
    copied = sorted(file for file in marked if file.startswith("examples/"))
    missing = sorted(file for file in named if not (root / file).is_file())
    problems = [
        *(f"{file}: users copy it, so its tests are named under `examples` in tests/promises.toml" for file in copied),
        *(f"{file}: named in tests/promises.toml, but does not exist" for file in missing),
    ]
    return sorted({*marked, *named} - {*copied, *missing}), problems


def problems_of_entry(id: str, entry: Mapping[str, Any], tests: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with one entry of `tests/promises.toml`."""
    if not isinstance(entry.get("text"), str) or not entry["text"]:
        yield f"{id}: has no text"
    if unknown := sorted(set(entry) - {"text", "examples", EXCEPT, *ANSWERS}):
        yield f"{id}: unknown {', '.join(unknown)}"
    for name in entry.get("examples", ()):
        if not name.startswith("examples/"):
            yield f"{id}: {name} is not in examples/, so it carries a mark"
        elif name not in tests:
            yield f"{id}: {name} does not exist"
    for answer in (EXCEPT, *ANSWERS):
        if answer in entry and (not isinstance(entry[answer], str) or not entry[answer]):
            yield f"{id}: {answer} must say why, in one sentence"


def problems_of_line(line: Line) -> Iterator[str]:
    """Yield why a line is not answered exactly once."""
    answers = ", ".join(line.answers)
    if line.tests and line.answers:
        yield f"{line.id}: has tests and also {answers}: {', '.join(line.tests)}"
    elif line.exception and not line.tests:
        yield f"{line.id}: has `{EXCEPT}`, but no test is marked with it"
    elif len(line.answers) > 1:
        yield f"{line.id}: has more than one answer: {answers}"
    elif line.status == "open":
        yield f"{line.id}: no test is marked with it, and it has none of {', '.join(ANSWERS)}"


def join(
    entries: Mapping[str, Mapping[str, Any]], collector: Collector, ids: Sequence[str] = IDS
) -> tuple[list[Line], list[str]]:
    """Return every line with the tests that are marked with it, and what does not fit."""
    marked, tests = collector.marked, collector.tests
    problems = [
        *collector.problems,
        *(f"{id}: missing in tests/promises.toml" for id in ids if id not in entries),
        *(f"{id}: unknown id in tests/promises.toml" for id in entries if id not in ids),
        *(f"{id}: unknown id, in the mark of {', '.join(marked[id])}" for id in marked if id not in ids),
    ]
    lines: list[Line] = []
    for id, entry in entries.items():
        examples = {name: tests[name] for name in entry.get("examples", ()) if name in tests}
        answers = {answer: str(entry[answer]) for answer in ANSWERS if answer in entry}
        shown = {**marked.get(id, {}), **examples}
        line = Line(id, str(entry.get("text", "")), answers, shown, str(entry.get(EXCEPT, "")))
        problems += [*problems_of_entry(id, entry, tests), *problems_of_line(line)]
        lines.append(line)
    return lines, problems


def counts(lines: Sequence[Line]) -> Iterator[str]:
    """Yield, for each part, how many lines have which status."""
    for part in PARTS:
        those = [line for line in lines if line.id.rpartition("-")[0] == part]
        found = Counter(line.status for line in those)
        statuses = ["skipped here", *(answer.replace("_", " ") for answer in ANSWERS)]
        partly = sum(1 for line in those if line.exception)
        shown = f"{found['shown']} shown" + (f" ({partly} with an exception)" if partly else "")
        yield f"{part}: {', '.join([shown, *(f'{found[status]} {status}' for status in statuses)])}"


def report(lines: Sequence[Line], problems: Sequence[str], chosen: Sequence[str], *, strict: bool) -> int:
    """Print the chosen lines, or those that are skipped here, then problems and counts. Return the exit code."""
    skipped = [line for line in lines if line.status == "skipped here"]
    if chosen:
        print(*(line for line in lines if line.id in chosen), sep="\n\n", end="\n\n")
    elif skipped:
        print(*(line.summary for line in skipped), sep="\n")
    print(*problems, *counts(lines), sep="\n")
    return 1 if problems or (skipped and strict) else 0


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, ids: Sequence[str] = IDS) -> int:
    parser = argparse.ArgumentParser(prog="just ledger", description="Check which promises are shown by a test.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="print these lines, such as A-27")
    parser.add_argument("--all", action="store_true", help="print every line with its status, text and tests")
    strict = "fail if all tests of a line are skipped on this machine (the default where CI=true)"
    parser.add_argument("--strict", action="store_true", default=os.environ.get("CI") == "true", help=strict)
    options = parser.parse_args(arguments)
    if unknown := [id for id in options.ids if id not in ids]:
        parser.error(f"unknown id: {', '.join(unknown)}")

    entries: dict[str, dict[str, Any]] = tomllib.loads((root / "tests/promises.toml").read_text())
    files, misplaced = files_to_collect(root, entries)
    lines, problems = join(entries, collect(root, files), ids)
    return report(lines, [*misplaced, *problems], ids if options.all else options.ids, strict=options.strict)


if __name__ == "__main__":
    sys.exit(main())
