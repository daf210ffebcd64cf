"""The ledger joins the promises with the tests that are marked with them, and says what does not fit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts.ledger import Collector, Line, files_to_collect, join, report
from tests.needs import skip_where_missing

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from scripts import ledger
sys.exit(ledger.main(["--all"], Path(sys.argv[1]), sys.argv[2:]))
"""
CONFIGURATION = """
[pytest]
addopts = --import-mode=importlib
pythonpath = .
markers =
    promise: a line
    needs: a program
"""
CONFTEST = """
import pytest
from tests.needs import NEEDS, skip_where_missing

NEEDS |= {"horse": lambda: "", "unicorn": lambda: "needs unicorn"}

def pytest_collection_modifyitems(items):
    skip_where_missing(items)

@pytest.fixture
def server():
    pytest.skip("no server")

@pytest.fixture
def client(server):
    pass
"""
SKIPPED = {
    "@pytest.mark.skip('not now')\ndef test_it(): pass": "not now",
    "@pytest.mark.skipif(True, reason='no disk')\ndef test_it(): pass": "no disk",
    "@pytest.mark.needs('horse', 'unicorn')\ndef test_it(): pass": "needs unicorn",
    "@pytest.mark.xfail\ndef test_it(): pass": "expected to fail",
    "def test_it(): pytest.skip('never mind')": "test_it may skip it",
    "def test_it(server): pass": "server may skip it",
    "def test_it(client): pass": "server may skip it",
    "def test_it(): pass\npytest.importorskip('no_such_package')": "could not import 'no_such_package'",
}
RUNNING = [
    "def test_it(): pass",
    "class TestIt:\n    def test_it(self): pass",
    "@pytest.mark.skipif(False, reason='no disk')\ndef test_it(): pass",
    "@pytest.mark.needs('horse')\ndef test_it(): pass",
    "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.skip('no'))])\ndef test_it(n): pass",
]
Entries = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str]]:
    """The exit code of the ledger for a made-up folder, with CI=true, and what it prints of each line."""
    root = tmp_path_factory.mktemp("made-up")
    (root / "tests").mkdir()
    (root / "pytest.ini").write_text(CONFIGURATION)
    (root / "tests/conftest.py").write_text(CONFTEST)
    shutil.copy(ROOT / "tests/needs.py", root / "tests")
    tests = [*SKIPPED, *RUNNING]
    ids = [f"A-{number}" for number in range(1, len(tests) + 1)]
    for id, test in zip(ids, tests, strict=True):
        (root / f"tests/test_{id[2:]}.py").write_text(f"import pytest\n@pytest.mark.promise('{id}')\n{test}\n")
    (root / "tests/promises.toml").write_text("".join(f'[{id}]\ntext = "Text of {id}."\n' for id in ids))
    command = [sys.executable, "-c", RUN, str(root), *ids]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    *lines, counts = done.stdout.split("\n\n")
    return done.returncode, [*lines, counts.splitlines()[0]]


def test_a_test_that_skips_or_may_skip_even_in_a_fixture_shows_nothing(printed: tuple[int, list[str]]) -> None:
    code, lines = printed

    for line, reason in zip(lines, SKIPPED.values(), strict=False):
        status, text, test = line.split("\n    ")
        assert "skipped here" in status
        assert reason in status
        assert text.startswith("Text of A-")
        assert f"(skipped here: {status.partition('(')[2]}" in test
    assert (
        lines[-1] == f"A: {len(RUNNING)} shown, {len(SKIPPED)} skipped here, 0 instead, 0 not built, 0 not applicable"
    )
    assert code == 1, "CI=true, so what is skipped fails"


def test_a_test_that_runs_here_shows_its_line(printed: tuple[int, list[str]]) -> None:
    _, lines = printed

    shown = [line.split("\n    ") for line in lines[len(SKIPPED) : -1]]
    assert [(status.partition(": ")[2], test.rpartition("::")[2]) for status, _, test in shown] == [
        ("shown", "test_it")
    ] * len(RUNNING)


def line(id: str, **more: Any) -> Entries:
    return {id: {"text": f"Text of {id}.", **more}}


def collected(*names: str, **marked: str) -> Collector:
    """Return what was collected: tests that run, and for each line the test that is marked with it."""
    collector = Collector(Path())
    collector.tests = dict.fromkeys((*names, *marked.values()), "")
    collector.marked = {id.replace("_", "-"): {name: ""} for id, name in marked.items()}
    return collector


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (line("A-2"), "A-2: no test is marked with it, and it has none of instead, not_built, not_applicable"),
        (line("A-1", instead="So.") | line("A-2", instead="So."), "A-1: has tests and also instead: test_one"),
        (line("A-2", instead="So.", not_built="No."), "A-2: has more than one answer: instead, not_built"),
        (line("A-2", instead=""), "A-2: instead must say why, in one sentence"),
        (line("A-2", instead="So.", **{"except": "This."}), "A-2: has `except`, but no test is marked with it"),
        (line("A-1", **{"except": ""}) | line("A-2", instead="So."), "A-1: except must say why, in one sentence"),
        (line("A-2", instead="So.", later="chat"), "A-2: unknown later"),
        (line("A-2", instead="So.") | {"A-1": {}}, "A-1: has no text"),
        ({}, "A-2: missing in tests/promises.toml"),
        (line("A-2", instead="So.") | line("A-3", instead="So."), "A-3: unknown id in tests/promises.toml"),
        (line("A-2", examples=["examples/test_b.py::test_gone"]), "A-2: examples/test_b.py::test_gone does not exist"),
        (line("A-2", examples=["tests/test_c.py::test_c"]), "A-2: tests/test_c.py::test_c is not in examples/"),
    ],
)
def test_a_line_that_is_not_answered_exactly_once_is_a_problem(entries: Entries, problem: str) -> None:
    collector = collected("tests/test_c.py::test_c", A_1="test_one")

    _, problems = join(line("A-1") | entries, collector, ["A-1", "A-2"])

    assert any(one.startswith(problem) for one in problems), problems


def test_a_mark_with_an_unknown_id_is_a_problem() -> None:
    _, problems = join(line("A-1"), collected(A_1="test_one", A_9="test_nine"), ["A-1"])

    assert problems == ["A-9: unknown id, in the mark of test_nine"]


def test_a_line_may_be_shown_by_a_test_of_an_example_or_be_answered() -> None:
    example = "examples/test_b.py::test_b"
    entries = line("A-1") | line("A-2", examples=[example]) | line("B-1", not_built="No.")

    lines, problems = join(entries, collected(example, A_1="test_one"), ["A-1", "A-2", "B-1"])

    assert problems == []
    assert [str(one) for one in lines] == [
        "A-1: shown\n    Text of A-1.\n    test_one",
        f"A-2: shown\n    Text of A-2.\n    {example}",
        "B-1: not built\n    Text of B-1.\n    No.",
    ]


def test_a_line_that_is_shown_except_for_a_part_names_this_part(capsys: pytest.CaptureFixture[str]) -> None:
    lines, problems = join(line("A-1", **{"except": "Not this."}), collected(A_1="test_one"), ["A-1"])

    assert report(lines, problems, ["A-1"], strict=True) == 0
    said = capsys.readouterr().out
    assert "A-1: shown\n    Text of A-1.\n    Except: Not this.\n    test_one\n" in said
    assert "A: 1 shown (1 with an exception), 0 skipped here" in said


def test_examples_are_never_marked_because_users_copy_them(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/test_a.py").write_text("@pytest.mark.promise('A-1')\ndef test_a(): pass")
    (tmp_path / "examples/test_b.py").write_text("def test_b(): pass")
    names = ["examples/test_b.py::test_b", "examples/test_c.py::test_c"]

    files, problems = files_to_collect(tmp_path, line("A-1", examples=names))

    assert files == ["examples/test_b.py"]
    assert [problem.partition(":")[0] for problem in problems] == ["examples/test_a.py", "examples/test_c.py"]


def test_what_is_skipped_is_reported_and_fails_only_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        Line("A-1", "One.", tests={"test_one": "needs npm", "test_two": "needs chromium"}),
        Line("A-2", "Two.", tests={"test_one": "needs npm", "test_three": ""}),
    ]

    assert report(lines, [], [], strict=False) == 0
    assert report(lines, [], [], strict=True) == 1
    assert report(lines[1:], [], [], strict=True) == 0
    assert report(lines[1:], ["a problem"], [], strict=False) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        "A-1: skipped here (needs chromium; needs npm)",
        "A: 1 shown, 1 skipped here, 0 instead, 0 not built, 0 not applicable",
    ]


def test_an_unknown_need_is_refused_with_the_known_ones(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.needs("unicorn"))

    with pytest.raises(pytest.UsageError, match=r"unknown need 'unicorn'\. Known: browser, bubblewrap"):
        skip_where_missing([request.node])
