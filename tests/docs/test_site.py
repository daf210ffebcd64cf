"""The built site: its links lead somewhere, and its search finds the right page first."""

from __future__ import annotations

import fcntl
import html
import json
import re
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
    "MCP": "how-to/mcp/",
    "migration": "how-to/keep-data/",
    "backup": "how-to/keep-data/",
    "API key": "how-to/authentication/",
    "JWT": "how-to/authentication/",
    "tenant": "how-to/authentication/",
    "cron": "how-to/cron/",
    "cancel": "how-to/cancel/",
    "cancel a run": "how-to/cancel/",
    "hooks": "reference/api/hooks/",
    "login": "how-to/authentication/",
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
    "OpenAI": "how-to/openai/",
    "image": "how-to/files-in-chat/",
    "structured output": "how-to/structured-output/",
}
"""For each query, the page that must be the first result."""


def is_current() -> bool:
    """Return whether the site was built after the last change of its sources."""
    index = SITE / "search.json"
    changed = max(file.stat().st_mtime for pattern in SOURCES for file in ROOT.glob(pattern))
    return index.exists() and index.stat().st_mtime > changed


def build_site() -> Path:
    """Return the folder of the site, which is built unless it is current. In `.ci/run`, `just check` has built it."""
    with (ROOT / "zensical.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes, one builds
        if not is_current():
            build = ["zensical", "build", "--clean", "--strict"]
            subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=patience(300))
    return SITE


@pytest.fixture(scope="module")
def site() -> Path:
    return build_site()


@pytest.mark.slow
@pytest.mark.needs("npm")
def test_a_search_finds_the_right_page_first(site: Path) -> None:
    command = ["node", Path(__file__).with_name("search.mjs"), site, *RIGHT_PAGES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patience(60))
    found: dict[str, list[str]] = json.loads(done.stdout)

    first = {query: locations[0].partition("#")[0] if locations else None for query, locations in found.items()}

    assert first == RIGHT_PAGES


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_a_heading(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("index.html")}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    broken: set[str] = set()
    for page, text in pages.items():
        article = text.partition("<article")[2].partition("</article>")[0]
        for link in map(html.unescape, re.findall(r'href="([^":]+)"', article)):
            path, _, place = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and place not in places[target]):
                broken.add(f"{page.parent.relative_to(site)}: {link}")

    assert len(pages) > 100
    assert broken == set()
