"""The bugs that `just test-mutants` injects into the source still fit it."""

from __future__ import annotations

import re

import pytest
from tests.faults.mutants import MUTANTS as LIFE_MUTANTS
from tests.faults.source_mutants import CONFORMANCE, MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_every_change_fits_the_source_and_every_test_exists(mutant: Mutant) -> None:
    for edit in mutant.edits:
        count = (ROOT / "src/sapwood" / edit.file).read_text().count(edit.old)
        assert count == 1, (
            f"{edit.file} has this text {count} times: {edit.old!r}. Change tests/faults/source_mutants.py."
        )
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / CONFORMANCE / file).read_text(), test


def test_every_mutant_of_the_lives_is_looked_for_by_its_name() -> None:
    text = (ROOT / "tests/faults/test_the_lives_can_fail.py").read_text()

    assert set(re.findall(r'\("(?:process|disk)", "([a-z-]+)"', text)) == set(LIFE_MUTANTS)
