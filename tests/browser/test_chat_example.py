"""The page of the chat does what it should for those who use it, also if the server is killed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.chatting import press, rests, say, speaks, stored, words, written
from tests.browser.looking import Gallery
from tests.browser.serving import Accident
from tests.browser.tabs import NARROW, Tabs

EXAMPLE = "chat"


def messages(page: Page, user: str) -> list[dict[str, Any]]:
    return stored(page, f"/agents/assistant/{user}")


def answers(page: Page, text: str) -> None:
    """Wait until this has been said, and nothing more is being said."""
    expect(page.locator(".is-assistant").last).to_contain_text(text)
    rests(page)


def connected(page: Page) -> None:
    expect(page.locator(".head .badge").first).to_have_text("connected")


def asks(page: Page) -> None:
    """Wait until the last tool call waits for a person."""
    expect(page.locator(".card").last).to_contain_text("needs your approval")
    rests(page)


def shown(page: Page) -> str:
    """Return the words of the last answer on the page."""
    return words(page.locator(".is-assistant").last.locator(".text").last.inner_text())


def test_an_empty_conversation_says_what_it_is_for(tabs: Tabs, gallery: Gallery, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")
    connected(page)
    accident.now()
    connected(page)

    expect(page.get_by_role("heading", name="What shall I remember for you?")).to_be_visible()
    gallery.pictures(page, "chat-empty")


def test_a_reminder_begins_a_turn_nobody_asked_for(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")

    say(page, "Remind me to stretch in 3 seconds")
    expect(page.locator(".side .item")).to_contain_text("stretch")
    expect(page.locator(".is-assistant")).to_contain_text("Done.")
    accident.now()
    expect(page.locator(".is-notice")).to_contain_text("Due now: stretch")
    answers(page, "It is time: stretch")

    expect(page.locator(".side")).to_contain_text("None yet")
    expect(page.locator(".card .name")).to_have_text("remind")
    expect(page.locator(".card .badge")).to_have_text("done")


def test_the_agent_asks_the_browser_for_its_clock(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}", zone="Asia/Tokyo")

    say(page, "What time is it?")
    expect(page.locator(".card .name")).to_have_text("browserClock")
    accident.now()
    answers(page, "in Asia/Tokyo.")

    expect(page.locator(".message")).to_have_count(2)


@pytest.mark.parametrize(
    ("button", "badge", "reminders", "answer"),
    [
        ("Approve", "done", [], "Done, 1 deleted."),
        ("Deny", "denied", ["water the plants"], "All right, I leave it as it is."),
    ],
    ids=["approved", "denied"],
)
def test_a_tool_waits_for_a_person_and_every_tab_shows_the_answer(
    tabs: Tabs, user: str, accident: Accident, button: str, badge: str, reminders: list[str], answer: str
) -> None:
    page, other = tabs.open(f"/?chat={user}"), tabs.open(f"/?chat={user}")
    say(page, "Remind me to water the plants in 2 hours")
    answers(page, "Done.")

    say(page, "Forget the plants")
    for tab in (page, other):
        asks(tab)
    accident.now()
    page.reload()
    asks(page)
    press(page, f"{button} forget")

    for tab in (page, other):
        answers(tab, answer)
        expect(tab.locator(".is-assistant").last.locator(".badge")).to_have_text(badge)
        expect(tab.locator(".side .item span")).to_have_text(reminders)
    assert written(messages(page, user)[-1]) == words(answer)


@pytest.mark.core("pages")
def test_a_story_is_told_to_its_end(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")

    say(page, "Tell me a story")
    speaks(page, 100)
    accident.now()
    speaks(page, 400)
    rests(page)

    connected(page)
    expect(page.locator(".message")).to_have_count(2)
    assert shown(page) == written(messages(page, user)[-1])


def test_what_was_said_until_it_was_stopped_is_kept(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")

    say(page, "Tell me a story")
    speaks(page, 60)
    accident.now()
    speaks(page, 150)  # after a crash it is told from the beginning: who stops it before its first word keeps nothing
    press(page, "Stop")
    rests(page)
    page.reload()
    speaks(page)

    assert len(shown(page)) < 400
    assert shown(page) == written(messages(page, user)[-1])


def test_a_page_that_is_reloaded_goes_on_where_it_was(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")

    say(page, "Tell me a story")
    for length in (60, 200, 300):
        speaks(page, length)
        if length == 200:
            accident.now()
        page.reload()
    speaks(page, 310)
    rests(page)

    expect(page.locator(".message")).to_have_count(2)
    assert len(shown(page)) > 300
    assert shown(page) == written(messages(page, user)[-1])


def test_an_answer_is_given_anew_and_the_old_one_is_shown_again(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = tabs.open(f"/?chat={user}")
    say(page, "Tell me a story")
    speaks(page, 400)
    rests(page)
    before = messages(page, user)[-1]

    press(page, "Regenerate")
    expect(page.locator(".message-foot")).to_have_count(0)
    speaks(page, 30)
    accident.now()
    speaks(page, 400)
    rests(page)

    expect(page.locator(".message")).to_have_count(2)
    after = messages(page, user)
    assert len(after) == 2
    assert after[-1]["id"] != before["id"]
    assert shown(page) == written(after[-1])

    versions = page.get_by_role("group", name="Versions")
    expect(versions).to_contain_text("2 / 2")
    gallery.picture(page, "chat-versions")
    versions.get_by_role("button", name="Previous version").click()
    expect(versions).to_contain_text("1 / 2")
    assert messages(page, user) == [after[0], before]
    assert shown(page) == written(before)


def test_a_conversation_that_is_cleared_is_gone_in_every_tab(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page, other = tabs.open(f"/?chat={user}"), tabs.open(f"/?chat={user}")
    say(page, "Hello")
    for tab in (page, other):
        speaks(tab, 5)
        rests(tab)

    press(page, "Clear")
    page.set_viewport_size(NARROW)
    gallery.picture(page, "chat-clear")
    accident.now()
    press(page, "Clear all?")

    for tab in (page, other):
        expect(tab.locator(".empty")).to_contain_text("What shall I remember")
    assert messages(page, user) == []


def test_what_went_wrong_is_said_and_can_be_tried_again(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = tabs.open(f"/?chat={user}")
    alert = page.get_by_role("alert")

    say(page, "Fail, please")
    expect(alert).to_contain_text("fails on request")
    gallery.pictures(page, "chat-error")
    accident.now()
    page.reload()
    expect(alert).to_contain_text("fails on request")
    press(page, "Try again")
    expect(alert).to_have_count(0)
    expect(alert).to_contain_text("fails on request")
    say(page, "Hello")
    speaks(page, 5)
    rests(page)

    expect(alert).to_have_count(0)


def test_everything_can_be_done_with_the_keyboard(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")
    focused = page.locator(":focus")

    expect(focused).to_have_id("composer")
    page.keyboard.type("Tell me a story")
    page.keyboard.press("Enter")
    speaks(page, 30)
    page.keyboard.press("Escape")
    rests(page)
    page.keyboard.type("Forget everything")
    page.keyboard.press("Enter")
    asks(page)
    accident.now()
    page.get_by_role("log").focus()
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Approve forget")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Deny forget")
    page.keyboard.press("Enter")

    answers(page, "leave it as it is")


def test_a_conversation_is_good_to_look_at(tabs: Tabs, gallery: Gallery, user: str, accident: Accident) -> None:
    page = tabs.open(f"/?chat={user}")
    say(page, "Hello")
    speaks(page, 5)
    rests(page)
    say(page, "Remind me to water the plants in 2 hours")
    answers(page, "Done.")
    say(page, "What time is it?")
    answers(page, "in Europe/Lisbon.")
    say(page, "Forget the plants")
    asks(page)
    accident.now()
    connected(page)

    gallery.pictures(page, "chat")
    page.set_viewport_size(NARROW)
    press(page, "Reminders: 1")
    expect(page.get_by_role("complementary", name="Reminders")).to_contain_text("water the plants")
    gallery.picture(page, "chat-panel")
    page.keyboard.press("Escape")
    expect(page.locator(".side.is-open")).to_have_count(0)
