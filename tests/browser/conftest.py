"""A Chromium, an example in a process of its own, and what a test opens of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from tests.browser.looking import Gallery, axe, flaws
from tests.browser.serving import Accident, Example
from tests.browser.studio import StudioServer
from tests.browser.tabs import PATIENCE, Tabs, launch


def pytest_itemcollected(item: pytest.Item) -> None:
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.needs("browser", "npm"))  # npm installs axe-core
        if not item.get_closest_marker("core"):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="package")  # not longer: Playwright's loop is in the way of other rooms' asynchronous tests
def browser() -> Iterator[Browser]:
    """The Chromium of the system; the one without a window of its own, if there is one, takes half the time."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert chromium is not None
    axe()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright, launch(playwright.chromium, chromium) as browser:
        yield browser


@pytest.fixture(scope="package")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all pictures are put into."""
    folder = Path(os.environ.get("SAPWOOD_PICTURES") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="package")
def studio_server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """One server for all tests of the studio. Each has agents of its own."""
    server = StudioServer(tmp_path_factory.mktemp("studio"))
    server.link()
    yield server
    server.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def example(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Example]:
    """The module's `EXAMPLE`, served with the module's `ENVIRONMENT`, to all of its tests, one after the other."""
    name: str = request.module.EXAMPLE
    if name == "studio":
        yield request.getfixturevalue("studio_server")
        return
    environment: dict[str, str] = getattr(request.module, "ENVIRONMENT", {})
    example = Example(name, tmp_path_factory.mktemp(name), **environment)
    yield example
    example.end(signal.SIGTERM)


@pytest.fixture
def tabs(request: pytest.FixtureRequest, browser: Browser, example: Example, pictures: Path) -> Iterator[Tabs]:
    """What the test opens. In the end a picture is taken of it, and nothing may be wrong with it."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).strip("-")
    with closing(Tabs(browser, example)) as tabs:
        yield tabs
        tabs.photograph(pictures, name)
        print(f"Pictures: {pictures}/{name}*.png\n{example.log()}")
        found = [flaw for page in tabs.pages for flaw in flaws(page)]
        assert [*tabs.problems(), *found] == []


@pytest.fixture
def gallery(tabs: Tabs, pictures: Path) -> Gallery:
    """What takes the pictures that a test asks for."""
    return Gallery(pictures, tabs, for_the_docs="SAPWOOD_PICTURES" in os.environ)


@pytest.fixture
def user() -> str:
    """Somebody who has not been here."""
    return f"user-{uuid4().hex[:8]}"


@pytest.fixture(params=["calm", "killed"])
def accident(request: pytest.FixtureRequest, example: Example) -> Iterator[Accident]:
    """Runs a test twice: with `accident.now()` nothing happens, or the server is killed and started again."""
    accident = Accident(request.param, example)
    yield accident
    accident.is_over()
    assert accident.has_happened, "The test never says when the accident happens."
