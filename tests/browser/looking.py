"""Looks at a page as people do who see little of it, hear it, or have a small screen; and takes its picture."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Page
from tests.browser.serving import EXAMPLES, ROOT
from tests.browser.tabs import NARROW, WIDE
from tests.packages import install

PICTURES = ROOT / "docs/how-to/pictures"
IN_THE_DOCS = ("chat-wide-light", "chat-narrow-dark")
"""Taken by these tests. They differ a little on every machine, so only who asks gets new ones: `just pictures`."""

AXE = "axe.run(document, { resultTypes: ['violations'] })"
TOO_WIDE = "document.documentElement.scrollWidth > window.innerWidth"
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
    return [*found, *(["it has to be scrolled sideways"] if page.evaluate(TOO_WIDE) else [])]


class Gallery:
    """The folder of the pictures; whoever asked for new ones in the documentation gets them there, too."""

    def __init__(self, folder: Path, *, for_the_docs: bool) -> None:
        self.folder = folder
        self._for_the_docs = for_the_docs

    def pictured(self, page: Page, name: str) -> None:
        """Take pictures of a page, wide and narrow, light and dark. It must have no flaws in any of them."""
        found: list[str] = []
        for width, size in (("wide", WIDE), ("narrow", NARROW)):
            for theme in ("light", "dark"):
                page.set_viewport_size(size)
                page.emulate_media(color_scheme=theme)
                page.evaluate(DRAWN)
                found += [f"{width} {theme}: {flaw}" for flaw in flaws(page)]
                picture = self.folder / f"{name}-{width}-{theme}.png"
                page.screenshot(path=picture)
                if self._for_the_docs and picture.stem in IN_THE_DOCS:
                    shutil.copy(picture, PICTURES)
        page.set_viewport_size(WIDE)
        page.emulate_media(color_scheme="light")
        assert found == []
