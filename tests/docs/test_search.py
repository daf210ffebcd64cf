"""The search of the documentation finds the right page first, for the words that people search for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.machine import patience

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
SOURCES = ("zensical.toml", "docs/**/*.md", "src/**/*.py")

RIGHT_PAGES = {
    "authentication": "how-to/authentication/",
    "timeout": "how-to/call-options/",
    "retry": "how-to/dead-letters/",
    "retries": "how-to/dead-letters/",
    "idempotency": "how-to/call-options/",
    "lease": "explanation/cluster/",
    "replica": "how-to/cluster/",
    "rate limit": "how-to/budgets/",
    "webhook": "how-to/serve-clients/",
    "MCP": "how-to/tools/",
    "migration": "how-to/keep-data/",
    "backup": "how-to/keep-data/",
    "API key": "how-to/authentication/",
    "JWT": "how-to/authentication/",
    "tenant": "how-to/authentication/",
    "cron": "how-to/cron/",
    "cancel": "how-to/cancel/",
    "dead letter": "how-to/dead-letters/",
    "deploy": "how-to/deploy/",
    "kubernetes": "how-to/cluster/",
    "workers": "how-to/use-all-cores/",
    "metrics": "reference/metrics/",
    "tracing": "how-to/tracing/",
    "cost": "how-to/cost/",
    "budget": "how-to/budgets/",
    "websocket": "how-to/serve-clients/",
    "FastAPI": "how-to/serve-clients/",
    "React": "how-to/chat-page/",
    "OpenAI": "how-to/models/",
    "image": "how-to/models/",
    "structured output": "how-to/structured-output/",
}
"""For each query, the page that must be the first result."""


def is_current() -> bool:
    """Return whether the site was built after the last change of its sources."""
    index = SITE / "search.json"
    changed = max(file.stat().st_mtime for pattern in SOURCES for file in ROOT.glob(pattern))
    return index.exists() and index.stat().st_mtime > changed


@pytest.mark.slow
@pytest.mark.needs("npm")
def test_a_search_finds_the_right_page_first() -> None:
    if not is_current():  # `just check` has just built it before `.ci/run` comes here
        build = ["zensical", "build", "--clean", "--strict"]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=patience(300))
    command = ["node", Path(__file__).with_name("search.mjs"), SITE, *RIGHT_PAGES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience(60))
    found: dict[str, list[str]] = json.loads(done.stdout)

    first = {query: locations[0].partition("#")[0] if locations else None for query, locations in found.items()}

    assert first == RIGHT_PAGES
