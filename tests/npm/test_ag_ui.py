"""The unmodified clients of AG-UI, with their verifiers, work with sapwood, also if the server dies in the middle."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.npm.running import HERE, Sapwood, drive

CLIENTS = {"1.0.0": "@ag-ui/client", "0.0.59": "ag-ui-0"}


class SapwoodAgUi(Sapwood):
    app = HERE / "ag_ui_server.py"

    def command(self) -> list[str]:
        return [one.replace(":site", ":app") for one in super().command()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["calm", pytest.param("killed", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("client", ["1.0.0", pytest.param("0.0.59", marks=pytest.mark.nightly)])
def test_a_page_has_the_whole_conversation_and_nothing_is_done_twice(
    home: Path, work: Path, tmp_path: Path, client: str, how: str
) -> None:
    counts = tmp_path / "counts"
    server = SapwoodAgUi(work, tmp_path / "data", AG_UI_COUNTS=str(counts))
    try:
        seen = drive("ag-ui.mjs", server, home, work, CLIENTS[client], how)
    finally:
        server.end(signal.SIGTERM)

    failures = [f"{name}: {what}" for name, scenario in seen.items() for what in scenario["failures"]]
    assert not failures, "\n\n".join(failures)
    assert len(seen) == 6
    done = Counter(line for line in counts.read_text().splitlines() if not line.startswith("reached"))
    assert done == {"tool looked": 1, "tool lingered": 1, "paid 3": 1, "choice chose blue": 1}
