"""useAgent in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.machine import patience
from tests.packages import environment
from tests.servers import Server

PAGE = '<!doctype html><meta charset="utf-8"><title>sapwood</title><div id="root"></div><script src="page.js"></script>'


@pytest.mark.needs("chromium")
def test_two_tabs_share_the_state_of_a_sub_agent(sapwood: Server, home: Path, work: Path, tmp_path: Path) -> None:
    pages = work / "pages"
    pages.mkdir(exist_ok=True)
    (pages / "page.html").write_text(PAGE)
    flags = ["--bundle", "--format=iife", "--define:process.env.NODE_ENV='production'", f"--outfile={pages}/page.js"]
    run(home, work, "node_modules/.bin/esbuild", "page.js", "--log-level=warning", *flags)

    seen = json.loads(
        run(home, work, "node", "browser.mjs", sapwood.host, str(shutil.which("chromium")), str(tmp_path / "profile"))
    )

    assert seen == {
        "one at first": ["0", "é 50%"],
        "two after one": "1",
        "one after two": "2",
        "two again": "2",
        "a refused one": "4404",
        "from another origin": "4403",
    }


def run(home: Path, work: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=work, env=environment(home), check=True, timeout=patience(120), stdout=subprocess.PIPE, text=True
    )
    return done.stdout
