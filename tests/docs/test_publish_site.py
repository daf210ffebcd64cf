"""Published versions of the documentation: each keeps its pages, `latest` leads to the newest, readers can switch."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from scripts.publish_site import publish
from tests.browser.tabs import PATIENCE, launch
from tests.docs.test_site import build_site

LEFT = "net::ERR_ABORTED"
"""What Chromium says of a request whose page was left."""
URL = "https://docs.example.com/sapwood/"


def site_of(folder: Path, *pages: str) -> Path:
    """Return a built site with these pages."""
    for page in ("", *pages):
        (folder / page).mkdir(parents=True, exist_ok=True)
        (folder / page / "index.html").write_text(f"{folder.name} {page}")
    (folder / "llms.txt").write_text(folder.name)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_each_version_keeps_its_pages_and_latest_leads_to_the_newest(tmp_path: Path) -> None:
    published = tmp_path / "published"

    publish(site_of(tmp_path / "ninth", "cron", "old"), published, "0.9.0", URL)
    publish(site_of(tmp_path / "tenth", "cron"), published, "0.10.0", URL)

    files = contents(published)
    assert json.loads(files["versions.json"]) == [
        {"version": "0.10", "title": "0.10.0", "aliases": ["latest"]},
        {"version": "0.9", "title": "0.9.0", "aliases": []},
    ]
    assert (files["0.9/old/index.html"], files["0.10/cron/index.html"]) == ("ninth old", "tenth cron")
    assert 'location.replace("../../0.10/cron/" + location.hash)' in files["latest/cron/index.html"]
    assert 'location.replace("../0.10/" + location.hash)' in files["latest/index.html"]
    assert 'location.replace("latest/" + location.hash)' in files["index.html"]
    assert "latest/old/index.html" not in files
    assert files["latest/llms.txt"] == "tenth"
    assert re.findall("<loc>(.+)</loc>", files["0.10/sitemap.xml"]) == [f"{URL}0.10/", f"{URL}0.10/cron/"]


def test_a_patch_replaces_its_version_only(tmp_path: Path) -> None:
    published = tmp_path / "published"
    publish(site_of(tmp_path / "first", "gone"), published, "0.1.0", URL)
    publish(site_of(tmp_path / "second"), published, "0.2.0", URL)

    publish(site_of(tmp_path / "patch"), published, "0.1.1", URL)

    files = contents(published)
    assert [(one["title"], one["aliases"]) for one in json.loads(files["versions.json"])] == [
        ("0.2.0", ["latest"]),
        ("0.1.1", []),
    ]
    assert files["0.1/index.html"] == "patch "
    assert "0.1/gone/index.html" not in files
    assert "../0.2/" in files["latest/index.html"]


def test_the_same_site_makes_the_same_bytes(tmp_path: Path) -> None:
    site = site_of(tmp_path / "site", "cron", "how-to/deploy")
    publish(site, tmp_path / "a", "0.1.0", URL)
    publish(site, tmp_path / "b", "0.1.0", URL)
    publish(site, tmp_path / "b", "0.1.0", URL)

    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("release", ["0.2.0.dev1", "0.2.0rc1", "0.2", "main", "../0.2.0"])
def test_only_releases_are_published(release: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Only releases"):
        publish(site_of(tmp_path / "site"), tmp_path / "published", release, URL)

    assert not (tmp_path / "published").exists()


class Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; yield its URL."""
    handler = functools.partial(Server, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def page_of_a_reader() -> Iterator[Page]:
    """Open a tab that reaches this machine only. In the end, its pages have reported no error."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert chromium is not None
    problems: list[str] = []
    with sync_playwright() as playwright, launch(playwright.chromium, chromium) as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(f"{request.failure}: {request.url}"))
        yield page
    assert [problem for problem in problems if not problem.startswith(LEFT)] == []


@pytest.mark.nightly
@pytest.mark.needs("browser")
def test_a_reader_switches_between_versions_and_searches(tmp_path: Path) -> None:
    expect.set_options(timeout=PATIENCE)
    site, published = build_site(), tmp_path / "published"
    publish(site, published, "0.1.0", URL)
    newer = tmp_path / "newer"
    shutil.copytree(site, newer)
    cron = newer / "how-to/cron/index.html"
    cron.write_text(re.sub(r"(<h1[^>]*>)", r"\1Newer: ", cron.read_text(), count=1))
    publish(newer, published, "0.2.0", URL)

    with served(published) as url, page_of_a_reader() as page:
        page.goto(f"{url}/latest/how-to/cron/")
        expect(page).to_have_url(f"{url}/0.2/how-to/cron/")
        expect(page.locator("h1")).to_contain_text("Newer: ")

        selector = page.get_by_role("button", name="Select version")
        expect(selector).to_have_text("0.2.0")
        selector.focus()
        expect(page.locator(".md-version__link")).to_have_text(["0.2.0", "0.1.0"])
        page.get_by_role("link", name="0.1.0").click()
        expect(page).to_have_url(f"{url}/0.1/how-to/cron/")
        expect(page.locator("h1")).not_to_contain_text("Newer: ")
        expect(page.get_by_role("button", name="Select version")).to_have_text("0.1.0")

        page.goto(url)
        expect(page).to_have_url(f"{url}/0.2/")
        page.get_by_role("button", name="Search").first.click()
        page.get_by_role("combobox").or_(page.get_by_role("textbox")).first.fill("dead letter")
        page.locator('a[href*="/0.2/how-to/dead-letters/"]:visible').first.click()
        expect(page.locator("h1")).to_contain_text("dead letters")
