"""A page of CopilotKit in Chromium, reloaded in the middle of runs, while its server dies and comes back."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.machine import patience
from tests.npm.test_ag_ui import SapwoodAgUi
from tests.packages import environment, install

FOLDER = Path(__file__).parent / "copilotkit"
PAGE = '<!doctype html><meta charset="utf-8"><title>chat</title><div id="root"></div><script src="page.js"></script>'
FONTS = [f"--loader:.{kind}=dataurl" for kind in ("woff", "woff2", "ttf")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, built by esbuild."""
    home, work = install(FOLDER), tmp_path_factory.mktemp("copilotkit")
    pages = work / "pages"
    pages.mkdir()
    (pages / "index.html").write_text(PAGE)
    (work / "node_modules").symlink_to(home / "node_modules")
    shutil.copy(FOLDER / "page.jsx", work)
    flags = ["--bundle", "--jsx=automatic", "--log-level=error", "--define:process.env.NODE_ENV='production'", *FONTS]
    command = ["node_modules/.bin/esbuild", "page.jsx", *flags, f"--outfile={pages}/page.js"]
    subprocess.run(command, cwd=work, check=True, stdout=sys.stderr, env=environment(home), timeout=patience(120))
    return pages


@pytest.fixture
def server(pages: Path, tmp_path: Path) -> Iterator[SapwoodAgUi]:
    told = {"AG_UI_COUNTS": str(tmp_path / "counts"), "AG_UI_PAGES": str(pages)}
    server = SapwoodAgUi(tmp_path, tmp_path / "data", **told)
    yield server
    server.end(signal.SIGTERM)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def say(page: Page, words: str) -> None:
    page.locator("textarea").fill(words)
    page.locator("textarea").press("Enter")


def crash(server: SapwoodAgUi) -> None:
    server.end(signal.SIGKILL)
    server.start()


def test_a_page_that_is_reloaded_in_mid_run_shows_the_whole_answer_once(page: Page, server: SapwoodAgUi) -> None:
    page.goto(f"http://{server.host}/index.html#writer/one")
    say(page, "story hangs")
    expect(page.get_by_text("w20")).to_have_count(1)
    page.reload()
    expect(page.get_by_text("w20")).to_have_count(1)
    expect(page.get_by_text("w39")).to_have_count(0)
    crash(server)
    page.reload()
    expect(page.get_by_text("w39")).to_have_count(1)
    expect(page.get_by_text("story hangs")).to_have_count(1)
    say(page, "more")
    expect(page.get_by_text("w39")).to_have_count(2)


def test_a_tool_of_the_page_runs_once_also_if_the_page_is_reloaded(page: Page, server: SapwoodAgUi) -> None:
    page.goto(f"http://{server.host}/index.html#writer/two")
    say(page, "time")
    expect(page.get_by_text("it is noon")).to_have_count(1)
    page.reload()
    expect(page.get_by_text("it is noon")).to_have_count(1)
    say(page, "story")
    expect(page.get_by_text("w39")).to_have_count(1)
    assert json.loads(page.evaluate("localStorage.ran")) == ["UTC"]


@pytest.mark.core("pages")
def test_a_tool_of_the_page_runs_once_though_the_server_dies_while_it_runs_and_after_it(
    page: Page, server: SapwoodAgUi
) -> None:
    page.goto(f"http://{server.host}/index.html#writer/four")
    page.evaluate("() => { window.held = new Promise((go) => { window.release = go; }); }")
    say(page, "time hangs")
    page.wait_for_function("window.ran.length === 1")
    crash(server)
    page.evaluate("window.release()")
    expect(page.get_by_text("it is")).to_have_count(1)
    page.reload()
    expect(page.get_by_text("it is")).to_have_count(1)
    expect(page.get_by_text("it is noon")).to_have_count(0)
    crash(server)
    page.reload()
    expect(page.get_by_text("it is noon")).to_have_count(1)
    expect(page.get_by_text("time hangs")).to_have_count(1)
    say(page, "story")
    expect(page.get_by_text("w39")).to_have_count(1)
    assert json.loads(page.evaluate("localStorage.ran")) == ["UTC"]


def test_an_interrupt_is_answered_once_after_a_crash(page: Page, server: SapwoodAgUi, tmp_path: Path) -> None:
    page.goto(f"http://{server.host}/index.html#office/three")
    say(page, "buy")
    expect(page.locator("#allow")).to_have_text('Allow pay({"euros":3})?')
    crash(server)
    page.reload()
    page.locator("#allow").click()
    expect(page.get_by_text("bought")).to_have_count(1)
    page.reload()
    expect(page.get_by_text("bought")).to_have_count(1)
    expect(page.locator("#allow")).to_have_count(0)
    assert Counter((tmp_path / "counts").read_text().splitlines())["paid 3"] == 1
