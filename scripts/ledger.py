"""Check the ledger of promises against the tests that exist.

Every line of `tests/conformance/ledger.toml` is shown by tests, does not apply, or waits for
an area of work. A named test must exist and must really run: one that is skipped or expected
to fail shows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEDGER = ROOT / "tests/conformance/ledger.toml"
ROOMS = [
    "tests/unit",
    "tests/conformance",
    "tests/docs",
    "tests/faults",
    "tests/npm",
    "tests/e2e",
    "tests/cluster",
    "tests/temporal",
    "tests/browser",
    "examples",
]
PARTS = {"A": 262, "B": 40, "CF": 195}
ANSWERS = ("tests", "later", "not_applicable")
AREAS = ("tree", "door", "time", "chat", "runs", "apps", "teams", "temporal", "workers", "cluster")

Entry = dict[str, object]


class Collector:
    """A pytest plugin that notes each test, and whether it really runs."""

    def __init__(self) -> None:
        self.runs: dict[str, bool] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name = item.nodeid.partition("[")[0]
            self.runs[name] = self.runs.get(name, True) and really_runs(item)


def really_runs(item: pytest.Item) -> bool:
    """Return whether nothing on or in the test skips it or expects it to fail."""
    if any(item.get_closest_marker(mark) for mark in ("skip", "skipif", "xfail")):
        return False
    function = getattr(item, "function", None)
    return function is None or not skips_itself(inspect.unwrap(function))


@functools.cache  # with other parameters it is the same function
def skips_itself(function: Callable[..., object]) -> bool:
    """Return whether the test may call itself skipped or expected to fail while it runs."""
    return bool(re.search(r"\bpytest\.(skip|xfail|importorskip)\(", inspect.getsource(function)))


def collect() -> dict[str, bool]:
    """Return every test by its bare name, and whether it really runs."""
    rooms = [room for room in ROOMS if (ROOT / room).is_dir()]
    collector = Collector()
    output = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider", *rooms], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{output.getvalue()}The tests could not be collected.")
    return collector.runs


def problems_of_keys(text: str) -> list[str]:
    """Return what is missing, doubled or unknown among the numbers."""
    found = Counter(re.findall(r"^\[([^\]]+)\]", text, flags=re.MULTILINE))
    expected = [f"{part}-{number}" for part, count in PARTS.items() for number in range(1, count + 1)]
    return [
        *(f"{key}: missing" for key in expected if key not in found),
        *(f"{key}: doubled" for key, times in found.items() if times > 1),
        *(f"{key}: unknown number" for key in found if key not in expected),
    ]


def problems_of_entry(key: str, entry: Entry, runs: dict[str, bool]) -> list[str]:
    """Return what is wrong with one entry."""
    if not isinstance(entry.get("text"), str):
        return [f"{key}: has no text"]
    if unknown := set(entry) - {"text", *ANSWERS}:
        return [f"{key}: unknown {', '.join(sorted(unknown))}"]
    match [answer for answer in ANSWERS if answer in entry]:
        case ["tests"]:
            return problems_of_tests(key, entry["tests"], runs)
        case ["later"] if entry["later"] not in AREAS:
            return [f"{key}: no such area: {entry['later']!r}"]
        case ["not_applicable"] if not entry["not_applicable"]:
            return [f"{key}: does not say why it does not apply"]
        case [_]:
            return []
        case _:
            return [f"{key}: needs exactly one of {', '.join(ANSWERS)}"]


def problems_of_tests(key: str, names: object, runs: dict[str, bool]) -> list[str]:
    """Return which of the named tests show nothing."""
    if not isinstance(names, list) or not names:
        return [f"{key}: names no test"]
    return [
        f"{key}: {name} {'does not exist' if name not in runs else 'is skipped or expected to fail'}"
        for name in names
        if not runs.get(name, False)
    ]


def summary(entries: dict[str, Entry]) -> list[str]:
    """Return one line for each part: how much is shown, to come, not applicable."""
    lines: list[str] = []
    for part in PARTS:
        mine = [entry for key, entry in entries.items() if key.rpartition("-")[0] == part]
        later = Counter(str(entry["later"]) for entry in mine if "later" in entry)
        areas = ", ".join(f"{area} {later[area]}" for area in AREAS if later[area])
        shown = sum("tests" in entry for entry in mine)
        outside = sum("not_applicable" in entry for entry in mine)
        lines.append(f"{part}: {shown} shown, {later.total()} later ({areas}), {outside} not applicable")
    return lines


def main() -> int:
    text = LEDGER.read_text()
    if problems := problems_of_keys(text):
        print(*problems, sep="\n")
        return 1
    entries: dict[str, Entry] = tomllib.loads(text)
    runs = collect()
    problems = [problem for key, entry in entries.items() for problem in problems_of_entry(key, entry, runs)]
    print(*problems, *summary(entries), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
