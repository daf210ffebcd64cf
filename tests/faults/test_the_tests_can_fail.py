"""The tests of a promise fail when the promise is broken: each bug of `source_mutants` is found by those it names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.source_mutants import CONFORMANCE, MUTANTS, ROOT, Mutant
from tests.machine import patience

pytestmark = pytest.mark.mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{one.promise} {one.name}" for one in MUTANTS])
def test_a_bug_that_a_promise_forbids_is_found_by_its_tests(mutant: Mutant, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mutant.edits:
        path = tmp_path / "src/sapwood" / edit.file
        path.write_text(path.read_text().replace(edit.old, edit.new))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    found = subprocess.check_output(
        [sys.executable, "-c", "import sapwood; print(sapwood.__file__)"], env=environment, text=True
    )
    assert found.startswith(str(tmp_path))
    tests = [CONFORMANCE + one for one in mutant.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--inline-snapshot", "disable"]
    try:
        ended = subprocess.run(
            [*command, *mutant.options, *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # it hangs, and is noticed

    assert ended.returncode == 1, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert " failed" in ended.stdout.splitlines()[-1]
