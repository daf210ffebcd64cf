"""On the page of perspectives one sees three specialists at work, who is heard and who is stopped; also if the server
is killed meanwhile.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import press, rests, say, words
from tests.browser.helping import Kept, is_at, opened, talk
from tests.browser.looking import Gallery
from tests.browser.serving import Accident, Example
from tests.browser.tabs import NARROW, Tabs

pytestmark = pytest.mark.nightly

EXAMPLE = "perspectives"
ENVIRONMENT = {"PAUSE": "0.03"}
"""The fastest takes more than a second: what is waited for while it works has come by then."""
QUESTION = "Shall we open a second bakery?"
PANEL = ("Engineer", "Customer", "Accountant")


@pytest.fixture
def me(example: Example, user: str) -> Kept:
    """The user's panel, as it is stored."""
    return Kept(example, (("Panel", user),))


def ask(page: Page, rule: str = "all three", *, failing: tuple[str, ...] = (), question: str = QUESTION) -> Locator:
    """Ask the panel, and return the discussion as soon as all of it are at work."""
    before = discussions(page).count()
    page.get_by_role("radio", name=re.compile(f"^{rule}")).check()
    for who in PANEL:
        page.get_by_role("checkbox", name=who).set_checked(who in failing)
    say(talk(page), question)
    discussion = discussions(page).nth(before)
    expect(discussion.locator(".lane")).to_have_count(3)
    return discussion


def discussions(page: Page) -> Locator:
    return page.get_by_test_id("discussion")


def how(where: Locator | Page, who: str) -> Locator:
    """Return what the timeline says of somebody."""
    return lane(where, who).locator(".lane-how")


def lane(where: Locator | Page, who: str) -> Locator:
    return where.locator(f".lane[data-who={who}]")


def is_like(discussion: Locator, **statuses: str) -> None:
    """Wait until lanes and panels stand so."""
    for who, status in statuses.items():
        expect(lane(discussion, who)).to_have_attribute("data-status", status)
        if who != "Chair":
            is_at(panel(discussion, who), status)


def panel(discussion: Locator, who: str) -> Locator:
    return discussion.locator(f"[data-helper-type={who}]")


def ends(discussion: Locator, outcome: str) -> None:
    """Wait until it has come to this, and nothing goes on."""
    expect(discussion).to_have_attribute("data-outcome", outcome)
    rests(discussion.page.locator("main"))
    expect(discussion.locator("[data-status=running]")).to_have_count(0)


def stored(me: Kept) -> list[tuple[str, str]]:
    """Return who worked, and how that ended: also why, and because of whom, without the id of the discussion."""
    sql = "SELECT type, status, cancelled FROM sapwood_runs ORDER BY number"
    rows = me.example.rows("/".join(f"{type}:{name}" for type, name in me.steps), sql)
    return [(who, re.sub(r" \w+-(?=[A-Z])", " ", f"{status} {why or ''}").strip()) for who, status, why in rows]


def synthesis(page: Page) -> Locator:
    return page.locator(".synthesis .text").last


def summed_up(me: Kept) -> str:
    """Return the words of the chair, as they are stored."""
    (number,) = (at for at, (who, _) in enumerate(me.runs()) if who == "Chair")
    return me.helper(number).said()


def photograph(page: Page, gallery: Gallery, accident: Accident, name: str) -> None:
    """Take all pictures once: after an accident the page looks the same, and one is taken of it in the end anyway."""
    if accident.is_calm:
        gallery.pictures(page, name)


@pytest.mark.promise("A-244")
@pytest.mark.core("pages")
def test_all_three_are_heard_and_summed_up(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")
    expect(page.get_by_role("heading", name="One question, three perspectives")).to_be_visible()
    photograph(page, gallery, accident, "perspectives-empty")

    discussion = ask(page)
    is_like(discussion, Engineer="running", Customer="running", Accountant="running")
    expect(how(page, "Engineer")).to_have_text(re.compile(r"running for [\d.]+ s"))
    accident.now()
    is_like(discussion, Customer="completed", Engineer="running")
    gallery.picture(page, "perspectives-wide-light")
    is_like(discussion, Engineer="completed", Customer="completed", Accountant="completed", Chair="completed")
    ends(discussion, "summed up")

    expect(discussion.locator(".discussion-head")).to_contain_text("3 of 3 answered, summed up")
    for who in PANEL:
        expect(how(page, who)).to_have_text(re.compile(r"answered after [\d.]+ s"))
    expect(how(page, "Chair")).to_have_text(re.compile(r"started at [\d.]+ s, summed up in [\d.]+ s"))
    assert stored(me) == [(who, "completed") for who in (*PANEL, "Chair")]
    assert words(synthesis(page).inner_text()) == summed_up(me)


@pytest.mark.promise("A-244")
def test_two_are_enough_and_the_third_is_stopped(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    discussion = ask(page, "two of three")
    is_like(discussion, Engineer="running", Customer="running", Accountant="running")
    accident.now()
    is_like(discussion, Engineer="aborted", Customer="completed", Accountant="completed", Chair="completed")
    ends(discussion, "summed up")

    photograph(page, gallery, accident, "perspectives-quorum")
    expect(how(page, "Engineer")).to_contain_text("the Accountant was the second to answer")
    expect(synthesis(page)).to_contain_text("Missing: the Engineer (stopped).")
    assert stored(me) == [
        ("Engineer", "cancelled quorum-with Accountant"),
        *((who, "completed") for who in ("Customer", "Accountant", "Chair")),
    ]
    assert words(synthesis(page).inner_text()) == summed_up(me)


@pytest.mark.promise("A-244")
def test_the_first_wins_and_the_others_are_stopped(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    discussion = ask(page, "the first")
    is_like(discussion, Engineer="running", Customer="running", Accountant="running")
    accident.now()
    is_like(discussion, Engineer="aborted", Customer="completed", Accountant="aborted", Chair="completed")
    ends(discussion, "summed up")

    gallery.picture(page, "perspectives-race")
    page.reload()
    page.set_viewport_size(NARROW)
    page.emulate_media(color_scheme="dark")
    expect(synthesis(page)).to_be_in_viewport()
    page.get_by_role("log").evaluate("log => log.scrollTo({ top: 0 })")
    gallery.picture(page, "perspectives-narrow-dark")
    for who in ("Engineer", "Accountant"):
        expect(how(page, who)).to_have_text(re.compile(r"stopped after [\d.]+ s: the Customer was first"))
    assert stored(me) == [
        ("Engineer", "cancelled lost-to Customer"),
        ("Customer", "completed"),
        ("Accountant", "cancelled lost-to Customer"),
        ("Chair", "completed"),
    ]
    expect(synthesis(page)).to_contain_text("The first answer is: yes.")


@pytest.mark.promise("A-244")
def test_one_that_fails_is_named_and_the_others_count(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    discussion = ask(page, failing=("Customer",))
    is_like(discussion, Engineer="running", Customer="error")
    accident.now()
    is_like(discussion, Engineer="completed", Customer="error", Accountant="completed", Chair="completed")
    ends(discussion, "summed up")

    photograph(page, gallery, accident, "perspectives-failed")
    expect(how(page, "Customer")).to_have_text(re.compile(r"failed after [\d.]+ s"))
    expect(panel(discussion, "Customer")).to_contain_text("It failed on purpose.")
    expect(synthesis(page)).to_contain_text("Missing: the Customer (it failed on purpose).")
    assert ("Customer", "failed") in stored(me)


def test_if_two_fail_there_is_no_quorum_and_it_can_be_asked_again(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    discussion = ask(page, "two of three", failing=("Customer", "Accountant"))
    accident.now()
    is_like(discussion, Engineer="aborted", Customer="error", Accountant="error")
    ends(discussion, "too few")
    expect(page.get_by_role("alert")).to_contain_text("Two answers are needed, and too few arrived.")
    expect(how(page, "Engineer")).to_contain_text(re.compile("after the (Customer|Accountant) failed, two answers"))
    photograph(page, gallery, accident, "perspectives-no-quorum")
    press(page, "Ask again, without failures")

    expect(discussions(page)).to_have_count(2)
    again = discussions(page).nth(1)
    is_like(again, Engineer="aborted", Customer="completed", Accountant="completed", Chair="completed")
    ends(again, "summed up")
    assert [status for _, status in me.runs()][:3] == ["cancelled", "failed", "failed"]


def test_whoever_is_not_needed_is_stopped_by_hand_one_or_all(
    tabs: Tabs, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    first = ask(page)
    press(first, "Stop the Engineer")
    is_like(first, Engineer="aborted", Customer="completed", Accountant="completed", Chair="completed")
    ends(first, "summed up")
    second = ask(page)
    accident.now(slowly=True)
    press(page, "Stop")
    is_like(second, Engineer="aborted", Customer="aborted", Accountant="aborted")
    ends(second, "stopped")

    expect(how(first, "Engineer")).to_have_text(re.compile(r"stopped after [\d.]+ s by you"))
    for who in PANEL:
        expect(how(second, who)).to_have_text(re.compile(r"stopped after [\d.]+ s by you"))
    assert stored(me) == [
        ("Engineer", "cancelled dismissed"),
        *((who, "completed") for who in ("Customer", "Accountant", "Chair")),
        *((who, "cancelled caller-cancelled") for who in PANEL),
    ]


def test_a_specialist_is_opened_shared_and_asked_itself(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    discussion = ask(page)
    side = open_helper_of(panel(discussion, "Engineer"))
    expect(side.locator(".tool-line .name")).to_have_text("look_up")
    accident.now()
    friend = tabs.open(page.url, by="a friend")
    for tab in (page, friend):
        expect(opened(tab).locator(".is-assistant .text").last).to_contain_text("What would change my mind")
        expect(opened(tab).locator(".is-given")).to_contain_text(QUESTION)
    rests(side)
    say(side, "Are you sure?")
    expect(side.locator(".is-assistant").last).to_contain_text("As sure as my notes make me.")
    rests(side)

    photograph(page, gallery, accident, "perspectives-opened")
    page.keyboard.press("Escape")
    expect(opened(page)).to_have_count(0)
    expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^Open Engineer"))
    ends(discussion, "summed up")
    press(opened(friend), "Close")
    press(friend, "Clear")
    press(friend, "Clear all?")
    for tab in (page, friend):
        expect(tab.get_by_role("heading", name="One question, three perspectives")).to_be_visible()
        expect(discussions(tab)).to_have_count(0)
    assert me.runs() == []


def test_everything_can_be_done_with_the_keyboard(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")
    focused = page.locator(":focus")

    expect(focused).to_have_id("composer")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("checkbox", name="Accountant")).to_be_checked()
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="the first")).to_be_checked()
    page.get_by_label("Ask the panel").focus()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    discussion = discussions(page)
    is_like(discussion, Engineer="running", Accountant="error")
    accident.now()
    ends(discussion, "summed up")
    page.get_by_role("log").focus()
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Space")
    expect(focused).to_have_attribute("aria-expanded", "true")

    assert stored(me)[1:] == [("Customer", "completed"), ("Accountant", "failed"), ("Chair", "completed")]


def open_helper_of(panel: Locator) -> Locator:
    panel.locator("> .run-head").get_by_role("link", name=re.compile("^Open ")).click()
    side = opened(panel.page)
    expect(side.get_by_role("log")).to_be_visible()
    return side
