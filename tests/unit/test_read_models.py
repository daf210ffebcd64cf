from __future__ import annotations

import re
from pathlib import Path

WEB = Path(__file__).parents[2] / "src" / "sapwood" / "web"


def test_the_web_reads_no_table_of_another_package() -> None:
    found = {
        f"{file.name}: {sql}"
        for file in WEB.glob("*.py")
        for sql in re.findall(r"(?:FROM|JOIN|INTO|UPDATE)\s+sapwood_\w+", file.read_text())
    }
    assert found == set()
