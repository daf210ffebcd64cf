"""The browser, and what one test opens in it: tabs of one or more people, and what went wrong in them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, BrowserType, Page, ViewportSize
from tests.browser.serving import Example

WIDE = ViewportSize(width=1280, height=800)
NARROW = ViewportSize(width=390, height=844)
SHARPNESS = 2 if os.environ.get("SAPWOOD_PICTURES") else 1
"""Pixels of a picture for each of the page."""
PATIENCE = 20_000
QUIET = ("background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions")
FLAGS = (
    *("--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"),
    *(f"--disable-{what}" for what in QUIET),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
REFUSED = r"net::ERR_|WebSocket connection to '[^']*' failed"
"""What Chromium says of a request that nobody answers."""
LEFT = "WebSocket is closed before the connection is established"
"""What it says if somebody is quick: a page, or a part of it, was left while it still connected."""


def launch(chromium: BrowserType, path: str) -> Browser:
    """Start a Chromium that sees this machine only."""
    return chromium.launch(executable_path=path, chromium_sandbox=False, args=[*FLAGS], timeout=60_000)


class Tabs:
    """The tabs of one test. Each person in it has a browser of their own: cookies and storage are not shared."""

    def __init__(self, browser: Browser, example: Example) -> None:
        self._browser = browser
        self._example = example
        self._crashes = example.crashes
        self._people: dict[str, BrowserContext] = {}
        self._said: list[str] = []
        self._forgiven: list[str] = []

    def open(self, path: str = "/", *, by: str = "somebody", zone: str = "Europe/Lisbon") -> Page:
        """Open a tab of a person at a path of the example."""
        if by not in self._people:
            person = self._browser.new_context(
                base_url=self._example.url,
                viewport=WIDE,
                device_scale_factor=SHARPNESS,
                reduced_motion="reduce",
                locale="en-GB",
                timezone_id=zone,
            )
            person.set_default_timeout(PATIENCE)
            person.on("weberror", lambda error: self._said.append(f"error: {error.error}"))
            person.on("console", lambda said: self._said.append(f"{said.type}: {said.text} ({said.location['url']})"))
            self._people[by] = person
        page = self._people[by].new_page()
        page.goto(path)
        return page

    @property
    def pages(self) -> list[Page]:
        """The tabs that are open."""
        return [page for person in self._people.values() for page in person.pages]

    @property
    def saw_a_crash(self) -> bool:
        """Whether the server was killed in this test."""
        return self._example.crashes > self._crashes

    def forgive(self, pattern: str) -> None:
        """Do not mind what a page says of something that this test makes go wrong."""
        self._forgiven.append(pattern)

    def problems(self) -> list[str]:
        """Return the errors and warnings of all tabs. A server that was killed excuses requests that failed."""
        excuses = [LEFT, *self._forgiven, *([REFUSED] if self.saw_a_crash else [])]
        bad = [said for said in self._said if said.startswith(("error: ", "warning: "))]
        return [said for said in bad if not any(re.search(excuse, said) for excuse in excuses)]

    def photograph(self, folder: Path, name: str) -> None:
        """Take a picture of each tab."""
        for number, page in enumerate(self.pages, 1):
            page.screenshot(path=folder / f"{name}{f'-{number}' if number > 1 else ''}.png", scale="css")

    def close(self) -> None:
        for person in self._people.values():
            person.close()
