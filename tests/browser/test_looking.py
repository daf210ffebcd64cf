"""The tests of pages can fail: what a page complains of is noticed, and what is wrong with it is found."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page
from tests.browser.looking import flaws
from tests.browser.serving import Example
from tests.browser.tabs import Tabs

EXAMPLE = "chat"
NOBODY = "http://127.0.0.1:2/"


def soon(page: Page) -> None:
    """Let everything happen in a page that waits for its turn."""
    page.evaluate("new Promise((done) => setTimeout(done))")


def starts(tabs: Tabs) -> list[str]:
    return [problem.partition(" (")[0] for problem in tabs.problems()]


def test_what_a_page_complains_of_is_a_problem_unless_it_is_forgiven(tabs: Tabs) -> None:
    page = tabs.open()

    page.evaluate("() => { console.error('odd'); console.log('fine'); setTimeout(() => { throw Error('broken') }) }")
    soon(page)

    assert starts(tabs) == ["error: odd", "error: broken"]
    tabs.forgive("odd|broken")
    assert tabs.problems() == []


def test_a_server_that_was_killed_excuses_requests_that_failed_and_nothing_else(tabs: Tabs, example: Example) -> None:
    page = tabs.open()

    page.evaluate(f"() => fetch('{NOBODY}').catch(() => console.error('broken'))")
    soon(page)
    assert len(tabs.problems()) == 2  # Chromium says so, and the page
    example.crash()

    assert starts(tabs) == ["error: broken"]
    tabs.forgive("broken")


@pytest.mark.core("pages")
def test_what_some_people_cannot_use_is_found(tabs: Tabs) -> None:
    page = tabs.open()
    assert flaws(page) == []

    page.locator("h1").evaluate("one => { one.innerHTML = '<img src=\"data:,\">' }")
    page.get_by_role("log").evaluate("one => { one.firstChild.style.minWidth = '2000px' }")

    assert [flaw.partition(":")[0] for flaw in flaws(page)] == ["image-alt", "too wide"]
    page.reload()
