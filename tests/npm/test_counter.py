"""The program of the guide for users of Cloudflare Agents runs on the original, and ours prints the same."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.machine import patience
from tests.npm.running import HERE, Original
from tests.packages import environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs/how-to/coming-from-cloudflare.md"


class OriginalCounter(Original):
    config = "counter.capnp"


@pytest.mark.nightly
def test_the_counter_says_the_same_in_both(home: Path, tmp_path: Path) -> None:
    for file in ("counter.ts", "wrangler.jsonc"):
        shutil.copy(EXAMPLES / "migration/cloudflare" / file, tmp_path)
    shutil.copy(HERE / "counter.capnp", tmp_path)
    (tmp_path / "node_modules").symlink_to(home / "node_modules")
    bundle = ["node", "node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--outdir", "dist"]
    subprocess.run(bundle, cwd=tmp_path, check=True, stdout=sys.stderr, env=environment(home), timeout=patience(120))

    server = OriginalCounter(tmp_path, tmp_path / "data")
    try:
        theirs = [get(f"http://{server.host}/") for _ in range(2)]
    finally:
        server.end(signal.SIGKILL)
    ours = [said(sys.executable, str(EXAMPLES / "counter.py"), str(tmp_path / "ours")) for _ in range(2)]

    assert theirs == ours == ["count 2, lines in the log 1", "count 4, lines in the log 2"]


def test_the_guide_names_the_version_that_its_program_runs_with() -> None:
    (version,) = re.findall(r'"agents": "([\d.]+)"', (HERE / "package.json").read_text())

    assert f"version {version.removesuffix('.0')} of the npm package `agents`" in PAGE.read_text()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=patience()) as response:
        return response.read().decode()


def said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience())
    return done.stdout.strip()
