"""What a model proposes waits for a person: on a page, in a second tab, in a terminal, and also if the server is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import press, rests, say
from tests.browser.helping import is_at, panels
from tests.browser.looking import Gallery
from tests.browser.serving import ROOT, Accident, Example
from tests.browser.tabs import NARROW, Tabs

EXAMPLE = "gatekeeper"
ENVIRONMENT = {"PAUSE": "0.005"}
DONE = "Approved. Done: change Ada Lovelace (1): city London → Paris."


def come(tabs: Tabs, user: str, *, gate: bool = False, by: str = "somebody") -> Page:
    """Open the page, or only its gate, and wait until it is connected."""
    page = tabs.open(f"/?user={user}{'&gate' if gate else ''}", by=by)
    expect(page.locator(".head .badge").first).to_have_text("connected")
    return page


def tell(page: Page, text: str) -> None:
    say(page.get_by_role("main"), text)


def cards(page: Page) -> Locator:
    return page.locator(".proposal")


def card(page: Page, title: str) -> Locator:
    return cards(page).filter(has=page.get_by_role("heading", name=title))


def begin(where: Locator, what: str) -> None:
    """Press one of the three buttons of a proposal."""
    where.get_by_role("button", name=re.compile(rf"^{what}\b")).click()


def waits(page: Page, many: int = 1) -> None:
    expect(cards(page)).to_have_count(many)


def answered(page: Page, text: str) -> None:
    """Wait until the assistant has said this, and says no more."""
    expect(page.locator(".is-assistant .text").last).to_contain_text(text)
    rests(page)


def kept(example: Example, user: str, id: int) -> dict[str, Any] | None:
    """Return a customer as it is stored."""
    address, sql = (
        f"Gatekeeper:{user}/Records:customers",
        f"SELECT name, email, city, plan FROM customers WHERE id = {id}",
    )
    rows = example.rows(address, sql)
    return dict(zip(("name", "email", "city", "plan"), rows[0], strict=True)) if rows else None


def verdicts(example: Example, user: str) -> list[str]:
    rows = example.rows(f"Gatekeeper:{user}/Records:customers", "SELECT verdict FROM decisions ORDER BY number")
    return [verdict for (verdict,) in rows]


def test_nothing_changes_before_somebody_approves_and_then_it_does(
    tabs: Tabs, example: Example, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    expect(page.locator(".customers tbody tr")).to_have_count(6)
    gallery.pictures(page, "gatekeeper-empty")
    press(page, "Move Ada to Paris")
    waits(page)
    expect(page.locator(".proposed .badge")).to_have_text("at the gate")
    assert kept(example, user, 1)["city"] == "London"  # pyright: ignore[reportOptionalSubscript]
    accident.now()
    page.reload()
    waits(page)

    begin(card(page, "Change Ada Lovelace"), "Approve")
    answered(page, DONE)

    waits(page, 0)
    expect(page.locator(".proposed .badge")).to_have_text("done")
    expect(page.locator(".customers tbody tr").first).to_contain_text("Paris")
    expect(page.locator(".decisions li")).to_have_count(1)
    assert kept(example, user, 1)["city"] == "Paris"  # pyright: ignore[reportOptionalSubscript]
    gallery.pictures(page, "gatekeeper-approved")
