"""Looks at a page as people do who see little of it, hear it, or have a small screen; and takes its picture."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page
from tests.browser.serving import EXAMPLES, ROOT
from tests.browser.tabs import NARROW, WIDE, Tabs
from tests.packages import install

PICTURES = ROOT / "docs/how-to/pictures"
IN_THE_DOCS = (
    *("chat-wide-light", "chat-narrow-dark"),
    *("agents-as-tools-wide-light", "agents-as-tools-opened-wide-light", "agents-as-tools-narrow-dark"),
    *("rooms-wide-light", "rooms-narrow-dark"),
    *("perspectives-wide-light", "perspectives-quorum-wide-dark", "perspectives-narrow-dark"),
    *("gatekeeper-wide-light", "gatekeeper-gate-wide-light", "gatekeeper-side-narrow-dark"),
    *("sandbox-wide-light", "sandbox-escapes-wide-light", "sandbox-escapes-narrow-dark"),
    *(
        "studio-crash-wide-light-killed",
        "studio-agents-wide-light",
        "studio-chat-wide-light",
        "studio-compare-wide-light",
        "studio-scrub-wide-light",
        "studio-inbox-narrow-dark",
        "studio-tab-wide-light",
        "studio-faults-wide-light",
    ),
)
"""Taken by calm tests. They differ a little on every machine, so only who asks gets new ones: `just pictures`."""

AXE = "axe.run(document, { resultTypes: ['violations'] })"
TOO_WIDE = """() => [...document.querySelectorAll(":not(pre, pre *)")].filter((one) => {
  const scrolls = one === document.documentElement || ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
  if (scrolls && one.scrollWidth > one.clientWidth + 1) return true;
  const isOut = one.getBoundingClientRect().right > innerWidth + 1 && one.checkVisibility({ visibilityProperty: true });
  return isOut && one.matches("a, button, input, textarea, summary");
}).map((one) => one.outerHTML.slice(0, 200))"""
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


@cache
def axe() -> str:
    return (install(EXAMPLES / "pages") / "node_modules/axe-core/axe.min.js").read_text()


def flaws(page: Page) -> list[str]:
    """Return what is wrong with a page for some people, seriously or critically."""
    page.evaluate(axe())
    violations: list[dict[str, Any]] = page.evaluate(AXE)["violations"]
    found = [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    return [*found, *(f"too wide: {html}" for html in page.evaluate(TOO_WIDE))]


class Gallery:
    """Takes the pictures of one test. If the server has been killed, their names say so.

    Those that were asked for go into the documentation, too.
    """

    def __init__(self, folder: Path, tabs: Tabs, *, for_the_docs: bool) -> None:
        self._folder = folder
        self._tabs = tabs
        self._for_the_docs = for_the_docs

    def picture(self, page: Page, name: str) -> None:
        """Take a picture of a page as it is. It must have no flaws."""
        page.evaluate(DRAWN)
        path = self._folder / f"{name}{'-killed' if self._tabs.saw_a_crash else ''}.png"
        page.screenshot(path=path)
        if self._for_the_docs and path.stem in IN_THE_DOCS:
            shutil.copy(path, PICTURES)
        assert flaws(page) == [], name

    def pictures(self, page: Page, name: str) -> None:
        """Take pictures of a page, wide and narrow, light and dark. It must have no flaws in any of them."""
        for width, size in (("wide", WIDE), ("narrow", NARROW)):
            for theme in ("light", "dark"):
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=theme)
                self.picture(page, f"{name}-{width}-{theme}")
        page.set_viewport_size(WIDE)
        page.emulate_media(color_scheme="light")
