"""Code of a model is seen at work: where it waits, what it calls, how it is refused, also if the server is killed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import press, rests, say
from tests.browser.looking import Gallery
from tests.browser.serving import Accident, Example
from tests.browser.tabs import NARROW, Tabs

pytestmark = pytest.mark.nightly

EXAMPLE = "sandbox"
ENVIRONMENT = {"PAUSE": "0.005", "SLOW": "1"}
WAYS = 10


def come(tabs: Tabs, user: str, *, escapes: bool = False) -> Page:
    """Open the page, or the one with the ways out, and wait until it is connected."""
    page = tabs.open(f"/?user={user}{'&escapes' if escapes else ''}")
    expect(page.locator(".head .badge").first).to_have_text("connected")
    return page


def tell(page: Page, text: str) -> None:
    say(page.get_by_role("main"), text)


def cards(page: Page) -> Locator:
    return page.locator(".card.code")


def stands(card: Locator, status: str) -> None:
    expect(card.locator(".card-head .badge")).to_have_text(status)


def way(page: Page, title: str) -> Locator:
    return cards(page).filter(has=page.get_by_role("heading", name=title, exact=True))


def answered(page: Page, text: str) -> None:
    """Wait until the assistant has said this, and says no more."""
    expect(page.locator(".is-assistant .text").last).to_contain_text(text)
    rests(page)


def people(example: Example, user: str) -> int:
    """Return how many customers are stored."""
    ((many,),) = example.rows(f"Lab:{user}/CustomerDatabase:customers", "SELECT count(*) FROM customers")
    return many


@pytest.mark.core("pages")
def test_code_waits_for_the_database_and_goes_on_from_there(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    press(page, "Which city pays most?")
    card = cards(page)
    expect(card.locator(".calls li")).to_have_count(2)
    stands(card, "paused")
    expect(card.locator(".line.is-paused")).to_contain_text("customers(city)")
    accident.now()

    answered(page, "The result is Rome.")
    stands(card, "done")
    expect(card.locator(".outcome")).to_contain_text("London 40\nMilan 130\nRome 205")
    expect(card.locator(".calls li")).to_have_count(3)
    expect(card.locator(".calls li").first).to_have_text('customers("London")2 found')  # asked once, in the first life
    expect(card.locator(".went-on")).to_have_count(0 if accident.is_calm else 1)
    page.reload()
    stands(card, "done")


def test_a_mistake_is_read_by_the_model_and_mended(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come(tabs, user)
    press(page, "What is the median in Rome?")
    expect(cards(page)).to_have_count(2)
    stands(cards(page).last, "paused")
    accident.now()

    answered(page, "45")
    stands(cards(page).first, "refused")
    expect(cards(page).first.locator(".refusal")).to_contain_text("No module named 'statistics'")
    stands(cards(page).last, "done")


@pytest.mark.promise("A-246")
def test_a_model_that_wants_to_delete_has_no_way_to_the_database(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    press(page, "Delete all customers in Rome")
    stands(cards(page), "paused")
    accident.now()

    answered(page, "no attribute 'erase'")
    stands(cards(page), "refused")
    expect(cards(page).locator(".line.is-refused")).to_contain_text("customers.erase()")
    assert people(example, user) == 6
    assert page.request.get(f"/agents/lab/{user}/sub/customer-database/customers").status == 403


@pytest.mark.promise("A-246")
def test_ten_ways_out_are_tried_and_each_is_refused_with_a_reason(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user, escapes=True)
    expect(cards(page)).to_have_count(WAYS)
    press(page, "Try all ten")
    stands(way(page, "Call a method of the database"), "paused")
    accident.now()

    expect(page.locator(".escapes-head .note")).to_have_text("10 of 10 tried and refused.")
    expect(page.locator(".refusal")).to_have_count(WAYS)
    for title, kind, says in (
        ("Import a system module", "unknown", "No module named 'socket'"),
        ("Open a file", "forbidden", "Permission denied: '/etc/passwd'"),
        ("Evaluate a string as code", "unknown", "'__import__' is not defined"),
        ("Walk from a value to all classes", "raised", "no attribute '__class__'"),
        ("Loop forever, and catch all exceptions", "limit", "The code ran longer than 1"),
        ("Use all memory", "limit", "bytes of memory"),
        ("Recurse without end", "limit", "The code exceeded the recursion depth of 100"),
        ("Flood the output", "limit", "The code printed more than 2000 bytes"),
        ("Call a method of the database", "raised", "no attribute 'erase'"),
        ("Pass an invalid argument", "binding", "customers() argument 'city'"),
    ):
        expect(way(page, title).locator(".refusal .badge")).to_have_text(kind)
        expect(way(page, title).locator(".refusal")).to_contain_text(says)
    assert people(example, user) == 6


def test_somebody_runs_code_of_their_own(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come(tabs, user, escapes=True)
    box = page.get_by_label("Python that tries to escape")
    box.fill("names = [one['name'] for one in customers('Milan')]\nnames")
    press(page, "Run")
    card = way(page, "Your own")
    stands(card, "paused")
    accident.now()

    stands(card, "done")
    expect(card.locator(".outcome")).to_contain_text("['Maria Agnesi']")


def test_one_way_is_tried_with_the_keyboard_and_again(tabs: Tabs, user: str) -> None:
    page = come(tabs, user, escapes=True)
    button = page.get_by_role("button", name="Try: Open a file")
    button.focus()
    page.keyboard.press("Enter")
    stands(way(page, "Open a file"), "refused")
    expect(page.locator(".escapes-head .note")).to_have_text("1 of 10 tried and refused.")

    button.focus()
    page.keyboard.press("Enter")
    stands(way(page, "Open a file"), "refused")
    page.get_by_role("link", name="Conversation").click()
    expect(page.get_by_role("textbox", name="Ask about the customers")).to_be_focused()


def test_code_is_stopped_with_its_turn(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come(tabs, user)
    tell(page, "Which city pays most?")
    stands(cards(page), "paused")
    accident.now()
    expect(page.locator(".head .badge").first).to_have_text("connected")
    press(page, "Stop")

    rests(page)
    stands(cards(page), "stopped")
    tell(page, "Read the password file")
    answered(page, "Permission denied")


def test_while_the_server_is_away_the_page_says_so(tabs: Tabs, example: Example, gallery: Gallery, user: str) -> None:
    page = come(tabs, user)
    tell(page, "Which city pays most?")
    stands(cards(page), "paused")
    with example.away():
        expect(page.locator(".head .badge").first).to_have_text("connecting")
        gallery.picture(page, "sandbox-away-wide-light")
    answered(page, "The result is Rome.")
    expect(cards(page).locator(".went-on")).to_contain_text("The code resumed from its snapshot.")


def test_on_a_small_screen_a_button_opens_what_the_sandbox_is(tabs: Tabs, user: str) -> None:
    page = come(tabs, user)
    page.set_viewport_size(NARROW)
    opener = page.get_by_role("button", name=re.compile("^The sandbox"))
    opener.click()
    expect(page.locator(".customers tbody tr")).to_have_count(6)
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()


def test_the_page_is_good_to_look_at(tabs: Tabs, gallery: Gallery, user: str) -> None:
    page = come(tabs, user)
    expect(page.locator(".customers tbody tr")).to_have_count(6)
    gallery.picture(page, "sandbox-empty-wide-light")
    tell(page, "What is the median in Rome?")
    answered(page, "45")
    tell(page, "Which city pays most?")
    expect(cards(page).last.locator(".calls li")).to_have_count(2)
    gallery.picture(page, "sandbox-wide-light")
    answered(page, "The result is Rome.")
    gallery.pictures(page, "sandbox-done")


def test_the_ways_out_are_good_to_look_at(tabs: Tabs, gallery: Gallery, user: str) -> None:
    page = come(tabs, user, escapes=True)
    press(page, "Try all ten")
    expect(page.locator(".escapes-head .note")).to_have_text("10 of 10 tried and refused.")
    gallery.pictures(page, "sandbox-escapes")
