"""What is seen of helpers at work, and what is stored of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import Where, written
from tests.browser.serving import Example

BADGES = {"running": "Running", "completed": "Done", "error": "Error", "aborted": "Stopped"}


def talk(page: Page) -> Locator:
    """Return the conversation with the assistant, also while a helper is open beside it."""
    return page.locator("main")


def panels(where: Where) -> Locator:
    """Return the helpers that are shown there, with those below them."""
    return where.get_by_test_id("helper-panel")


def opened(page: Page) -> Locator:
    """Return the conversation with the helper that was opened."""
    return page.get_by_test_id("drill-in-panel")


def is_at(panel: Locator, status: str) -> None:
    """Wait until a helper stands so, and says so."""
    expect(panel).to_have_attribute("data-helper-status", status)
    expect(panel.locator("> .run-head .badge")).to_have_text(BADGES[status])


def is_said_at(side: Locator, status: str, giver: str, *, is_busy: bool) -> None:
    """Wait until an opened helper stands so, and it is said whether who sent it is at work."""
    expect(side.locator(".drawer-title .badge")).to_have_text(BADGES[status])
    turn = f"{giver} is still working" if is_busy else f"{giver} has finished its turn"
    expect(side.get_by_test_id("parent-turn")).to_have_text(turn)


def open_helper(panel: Locator) -> Locator:
    """Open a helper that is shown."""
    link = panel.locator("> .run-head").get_by_role("link", name=re.compile("^Open "))
    link.click()
    side = opened(panel.page)
    expect(side).to_have_attribute("data-helper-id", str(panel.get_attribute("data-helper-id")))
    return side


def is_connected(side: Locator) -> None:
    """Wait until an opened helper can be talked to."""
    expect(side.get_by_role("log")).to_be_visible()
    expect(side.get_by_text("connecting", exact=True)).to_have_count(0)


def unfold(panel: Locator) -> None:
    """Show what a helper has done."""
    toggle = panel.locator("> .run-head > .run-toggle")
    if toggle.get_attribute("aria-expanded") == "false":
        toggle.click()
    expect(panel.locator("> .run-body > .tail")).to_be_visible()


def tasks(where: Where) -> list[str]:
    """Return what helpers were sent for, in the order in which they are shown."""
    return [task.strip(": \n") for task in where.locator(".run-what .task").all_inner_texts()]


def done(where: Where) -> list[str]:
    """Return what somebody has said and done, as it is seen."""
    return where.locator(".text, .tool-line, .reasoning-head").all_inner_texts()


@dataclass(frozen=True)
class Kept:
    """An agent as it is stored: its conversation, and the runs that it has given."""

    example: Example
    steps: tuple[tuple[str, str], ...]

    def messages(self) -> list[dict[str, Any]]:
        (root, name), *below = self.steps
        path = [f"/agents/{root.lower()}/{name}", *(f"sub/{type.lower()}/{quote(id, safe='')}" for type, id in below)]
        return self.example.get(f"{'/'.join(path)}/get-messages")

    def said(self) -> str:
        """Return the words of the last message."""
        return written(self.messages()[-1])

    def runs(self) -> list[tuple[str, str]]:
        """Return whom it has sent, in their order, and how that stands."""
        return [(type, status) for type, _, status in self._rows()]

    def helper(self, number: int = 0) -> Kept:
        type, id, _ = self._rows()[number]
        return Kept(self.example, (*self.steps, (type, id)))

    def _rows(self) -> list[list[str]]:
        address = "/".join(f"{type}:{quote(name, safe='')}" for type, name in self.steps)
        if not self.example.rows(address, "SELECT 1 FROM sqlite_master WHERE name = 'sapwood_runs'"):
            return []  # it never gave one
        return self.example.rows(address, "SELECT type, name, status FROM sapwood_runs ORDER BY number")
