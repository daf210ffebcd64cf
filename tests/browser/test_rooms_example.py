"""Everybody has rooms of their own, whatever others write into a URL, and also if the server is killed meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import press, rests, say, speaks, stored, written
from tests.browser.looking import Gallery
from tests.browser.serving import Accident, Example
from tests.browser.tabs import NARROW, WIDE, Tabs

pytestmark = pytest.mark.nightly

EXAMPLE = "rooms"
ENVIRONMENT = {"PAUSE": "0.02"}
STORY = "In a house at the end of a street"
END = "It was all written down."


def sign_in(page: Page, user: str) -> None:
    page.get_by_label("Or another name").fill(user)
    press(page, "Sign in")
    expect(page.locator(".rooms-foot .who")).to_contain_text(user)


def come_in(tabs: Tabs, user: str, path: str = "/") -> Page:
    """Open a tab of somebody, signed in."""
    page = tabs.open(path, by=user)
    sign_in(page, user)
    connected(page)
    return page


def connected(page: Page) -> None:
    expect(page.locator(".rooms-head .badge")).to_have_text("connected")


def empty_room(page: Page) -> None:
    """Go to a new room; until it is there, what is said is said in the one before."""
    press(page, "New room")
    expect(page.get_by_role("heading", name="A new room")).to_be_visible()


def new_room(page: Page, text: str, answer: str) -> str:
    """Begin a room with a few words; return its name when they are answered."""
    empty_room(page)
    say(page, text)
    expect(page.locator(".is-assistant").last).to_contain_text(answer)
    rests(page)
    return opened(page)


def opened(page: Page) -> str:
    """Return the name of the room that the URL names."""
    found = re.search(r"\?room=(\w+)$", page.url)
    assert found is not None
    return found[1]


def rows(page: Page) -> Locator:
    return page.locator(".rooms-list .room")


def row(page: Page, title: str) -> Locator:
    return rows(page).filter(has=page.locator(".room-title", has_text=title))


def messages(page: Page, user: str, room: str) -> list[dict[str, Any]]:
    return stored(page, f"/agents/inbox/{user}/sub/room/{room}")


def test_whoever_signed_in_stays_so(tabs: Tabs, gallery: Gallery, user: str, accident: Accident) -> None:
    page = tabs.open("/", by=user)
    expect(page.get_by_role("heading", name="Rooms")).to_be_visible()
    gallery.pictures(page, "rooms-sign-in")
    page.get_by_label("Or another name").fill("not a name!")
    tabs.forgive("status of 400")
    press(page, "Sign in")
    expect(page.get_by_role("alert")).to_contain_text("A name has 1 to 32 letters")

    sign_in(page, user)
    expect(page.get_by_role("heading", name=f"Welcome, {user}")).to_be_visible()
    accident.now()
    page.reload()

    expect(page.get_by_role("heading", name=f"Welcome, {user}")).to_be_visible()
    connected(page)
    gallery.pictures(page, "rooms-welcome")


def test_a_guest_comes_in_with_one_press(tabs: Tabs, accident: Accident) -> None:
    page = tabs.open("/", by="ann")
    accident.now()
    press(page, "Sign in as ann")

    expect(page.locator(".rooms-foot .who")).to_have_text("Signed in as ann")
    connected(page)


def test_the_list_shows_at_a_glance_where_something_is_new(tabs: Tabs, gallery: Gallery) -> None:
    page = tabs.open("/", by="ann")
    press(page, "Sign in as ann")
    new_room(page, "How do I make pancakes?", "Eat it standing.")
    new_room(page, "Plan a weekend in Lisbon", "years of visitors")
    new_room(page, "What should I read?", "Which did you like last?")
    empty_room(page)
    say(page, "Tell me a story")
    row(page, "Lisbon").click()
    expect(page.locator(".is-assistant")).to_contain_text("years of visitors")

    expect(row(page, "Tell me a story").locator(".room-news")).to_be_visible()
    page.get_by_role("textbox").focus()
    gallery.pictures(page, "rooms")


@pytest.mark.core("pages")
def test_a_wish_becomes_a_room_that_is_called_by_it(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come_in(tabs, user)

    press(page, "Tell me a story")
    speaks(page, 40)
    accident.now()
    expect(page.locator(".is-assistant")).to_contain_text(END)
    rests(page)

    expect(page.locator(".message")).to_have_count(2)
    expect(page.get_by_role("main").get_by_role("heading", name="Tell me a story")).to_be_visible()
    expect(rows(page)).to_have_count(1)
    expect(row(page, "Tell me a story")).to_contain_text(STORY)
    kept = messages(page, user, opened(page))
    assert [message["role"] for message in kept] == ["user", "assistant"]
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert messages(page, user, opened(page)) == kept


def test_a_new_room_is_made_once_and_an_empty_one_is_used_first(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come_in(tabs, user)

    press(page, "New room")
    accident.now()
    expect(page.get_by_role("heading", name="A new room")).to_be_visible()
    connected(page)
    expect(rows(page)).to_have_count(1)
    room = opened(page)
    page.goto("/")
    empty_room(page)
    assert opened(page) == room

    say(page, "Hello")
    expect(page.locator(".is-assistant")).to_contain_text("What is on your mind?")
    rests(page)
    expect(row(page, "Hello")).to_be_visible()
    press(page, "New room")
    expect(rows(page)).to_have_count(2)
    expect(page.get_by_role("heading", name="A new room")).to_be_visible()
    assert opened(page) != room


def test_the_room_where_something_was_said_last_is_the_first(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    new_room(page, "How do I make pancakes?", "Eat it standing.")
    new_room(page, "Plan a weekend in Lisbon", "years of visitors")
    new_room(page, "Why do trees have rings?", "called the sapwood")
    expect(page.locator(".room-title").first).to_have_text("Why do trees have rings?")

    row(page, "pancakes").click()
    say(page, "Thank you")
    expect(page.locator(".message")).to_have_count(4)  # it was heard: what is lost on its way nobody says again
    accident.now()
    expect(page.locator(".is-assistant").last).to_contain_text("You are welcome.")
    rests(page)

    expect(page.locator(".room-title")).to_have_text(
        ["How do I make pancakes?", "Why do trees have rings?", "Plan a weekend in Lisbon"]
    )
    expect(rows(page).first).to_contain_text("You are welcome. The room stays")
    expect(page.locator(".message")).to_have_count(4)
    gallery.pictures(page, "rooms-room")
    page.goto("/")
    expect(rows(page)).to_have_count(3)
    gallery.pictures(page, "rooms-list")


def test_a_title_is_written_anew_in_its_place_and_every_tab_shows_it(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    new_room(page, "Hello", "What is on your mind?")
    other = tabs.open("/", by=user)
    expect(row(other, "Hello")).to_be_visible()
    title = page.get_by_role("textbox", name="Title of the room")

    press(page, "Hello")
    expect(title).to_be_focused()
    gallery.pictures(page, "rooms-rename")
    title.fill("Never mind")
    title.press("Escape")
    expect(page.get_by_role("button", name="Hello")).to_be_focused()
    press(page, "Hello")
    title.fill("Small talk")
    accident.now()
    title.press("Enter")

    expect(page.get_by_role("button", name="Small talk")).to_be_focused()
    for tab in (page, other):
        expect(tab.locator(".room-title")).to_have_text(["Small talk"])
    other.reload()
    expect(other.locator(".room-title")).to_have_text(["Small talk"])
    expect(page).to_have_title("Small talk")


def test_searching_finds_titles_and_words_of_rooms_that_sleep(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    trees = new_room(page, "Why do trees have rings?", "called the sapwood")
    new_room(page, "Plan a weekend in Lisbon", "years of visitors")
    box = page.get_by_role("searchbox", name="Search titles and messages")
    accident.now()

    box.fill("sapwo")
    expect(page.locator(".room-title")).to_have_text(["Why do trees have rings?"])
    expect(page.locator("mark")).to_have_text("sapwood")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 found")
    gallery.pictures(page, "rooms-search")
    box.fill("lisb")
    expect(page.locator(".room-title")).to_have_text(["Plan a weekend in Lisbon"])
    box.fill("tundra")
    expect(page.locator(".rooms-none")).to_have_text("No room has “tundra” in its title or messages.")
    gallery.pictures(page, "rooms-nothing-found")
    box.press("Escape")
    expect(rows(page)).to_have_count(2)

    box.fill("trees rings")
    row(page, "trees").click()
    expect(page.locator(".is-assistant")).to_contain_text("sapwood")
    assert opened(page) == trees


@pytest.mark.promise("A-245")
def test_a_room_is_deleted_by_whoever_is_sure_and_in_every_tab(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    new_room(page, "Hello", "What is on your mind?")
    room = new_room(page, "Why do trees have rings?", "called the sapwood")
    other = tabs.open(f"/?room={room}", by=user)
    expect(other.locator(".message")).to_have_count(2)
    asked, button = page.get_by_role("dialog"), page.get_by_role("button", name="Delete this room")

    button.click()
    expect(asked.get_by_role("button", name="Cancel")).to_be_focused()
    gallery.pictures(page, "rooms-delete")
    page.keyboard.press("Escape")
    expect(asked).to_have_count(0)
    expect(button).to_be_focused()
    button.click()
    press(asked, "Cancel")
    expect(rows(page)).to_have_count(2)
    button.click()
    accident.now()
    press(asked, "Delete")

    expect(page.locator(".room-title")).to_have_text(["Hello"])
    expect(page.get_by_role("heading", name="Choose a room")).to_be_visible()
    expect(other.get_by_role("heading", name="This room does not exist")).to_be_visible()
    gallery.pictures(other, "rooms-gone")
    press(other, "Show my rooms")
    expect(other.locator(".room-title")).to_have_text(["Hello"])
    assert page.request.get(f"/agents/inbox/{user}/sub/room/{room}/get-messages").status == 404


@pytest.mark.promise("A-245")
def test_an_answer_goes_on_while_one_is_elsewhere_and_is_news(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    new_room(page, "Hello", "What is on your mind?")
    empty_room(page)
    say(page, "Tell me a story")
    speaks(page, 10)
    story = row(page, "Tell me a story")
    row(page, "Hello").click()

    expect(story.locator(".growing")).to_have_text(re.compile(r"\w+ \w+"))
    accident.now()
    expect(story.locator(".room-news")).to_be_visible()
    expect(story.locator(".room-preview")).to_contain_text(STORY)
    expect(page).to_have_title("(1) Hello")
    gallery.pictures(page, "rooms-news")

    story.click()
    expect(page.locator(".is-assistant")).to_contain_text(END)
    expect(page.locator(".message")).to_have_count(2)
    row(page, "Hello").click()
    expect(page.locator(".is-assistant")).to_contain_text("What is on your mind?")
    expect(page.locator(".room-news")).to_have_count(0)
    page.reload()
    expect(rows(page)).to_have_count(2)
    expect(page.locator(".room-news")).to_have_count(0)


def test_the_url_names_the_room_and_the_back_button_leads_to_the_one_before(
    tabs: Tabs, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    first = new_room(page, "My name is Ada", "Nice to meet you, Ada!")
    second = new_room(page, "Thanks", "You are welcome.")
    answer = page.locator(".is-assistant")
    row(page, "Ada").click()
    expect(answer).to_contain_text("Ada")

    page.go_back()
    expect(answer).to_contain_text("You are welcome.")
    assert opened(page) == second
    accident.now()
    page.go_forward()
    expect(answer).to_contain_text("Ada")
    assert opened(page) == first
    page.reload()
    expect(answer).to_contain_text("Ada")
    expect(row(page, "Ada")).to_have_attribute("aria-current", "true")
    copied = tabs.open(f"/?room={second}", by=user)
    expect(copied.locator(".is-assistant")).to_contain_text("You are welcome.")
    copied.goto("/?room=nowhere")
    expect(copied.get_by_role("heading", name="This room does not exist")).to_be_visible()


def test_on_a_small_screen_the_list_and_the_room_take_turns(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open("/", by=user)
    page.set_viewport_size(NARROW)
    sign_in(page, user)
    expect(page.get_by_role("heading", name=f"Welcome, {user}")).to_be_visible()

    room = new_room(page, "Hello", "What is on your mind?")
    expect(page.get_by_role("navigation", name="Rooms")).to_be_hidden()
    press(page, "Back to all rooms")
    expect(page.locator(f"#room-{room}")).to_be_focused()
    expect(page.get_by_role("main")).to_be_hidden()
    accident.now()
    page.keyboard.press("Enter")

    expect(page.locator(".is-assistant")).to_contain_text("What is on your mind?")
    expect(page.get_by_role("navigation", name="Rooms")).to_be_hidden()
    page.go_back()
    expect(rows(page)).to_have_count(1)
    page.set_viewport_size(WIDE)
    expect(page.get_by_role("main")).to_be_visible()


def test_an_answer_can_be_stopped_and_given_again(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come_in(tabs, user)
    empty_room(page)
    say(page, "Tell me a story")
    speaks(page, 40)
    page.get_by_role("textbox").press("Escape")
    rests(page)
    said = written(messages(page, user, opened(page))[-1])
    assert 0 < len(said) < 400
    accident.now()

    press(page, "Regenerate")
    expect(page.locator(".is-assistant")).to_contain_text(END)
    rests(page)
    expect(page.locator(".message")).to_have_count(2)
    page.get_by_role("searchbox").fill("written down")
    expect(rows(page)).to_have_count(1)


def test_a_failure_is_told_and_one_can_go_on(tabs: Tabs, gallery: Gallery, user: str, accident: Accident) -> None:
    page = come_in(tabs, user)
    empty_room(page)
    say(page, "Fail, please")
    expect(page.get_by_role("alert")).to_contain_text("fails on request")
    gallery.pictures(page, "rooms-failure")
    accident.now()
    connected(page)

    say(page, "Hello")
    expect(page.locator(".is-assistant")).to_contain_text("What is on your mind?")
    rests(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(row(page, "Fail, please")).to_contain_text("What is on your mind?")


def test_who_signs_out_in_one_tab_is_out_of_the_others(
    tabs: Tabs, gallery: Gallery, user: str, accident: Accident
) -> None:
    page = come_in(tabs, user)
    room = new_room(page, "My name is Ada", "Nice to meet you, Ada!")
    other = tabs.open("/", by=user)
    connected(other)
    accident.now()
    connected(other)
    connected(page)

    press(other, "Sign out")
    expect(other.get_by_role("status")).to_have_text("You are signed out.")
    expect(page.get_by_role("status")).to_have_text("You have been signed out.")
    gallery.pictures(page, "rooms-signed-out")
    assert page.request.get(f"/agents/inbox/{user}/sub/room/{room}/get-messages").status == 401

    # Whoever comes next in this browser is shown their own, although the URL still names the room.
    sign_in(page, f"{user}-2")
    expect(page.get_by_role("heading", name="This room does not exist")).to_be_visible()
    press(page, "Sign out")
    sign_in(page, user)
    row(page, "Ada").click()
    expect(page.locator(".is-assistant")).to_contain_text("Ada!")


def test_while_the_server_is_away_the_page_waits_and_what_was_asked_meanwhile_is_done(
    tabs: Tabs, example: Example, gallery: Gallery, user: str
) -> None:
    page = come_in(tabs, user)
    new_room(page, "Hello", "What is on your mind?")
    with example.away():
        expect(page.locator(".house-lost")).to_contain_text("Reconnecting")
        gallery.pictures(page, "rooms-away")
        press(page, "Hello")
        page.get_by_role("textbox", name="Title of the room").fill("Later")
        page.get_by_role("textbox", name="Title of the room").press("Enter")
        say(page, "Thanks")
    expect(page.locator(".is-assistant").last).to_contain_text("You are welcome.")
    rests(page)
    expect(page.locator(".room-title")).to_have_text(["Later"])
    expect(page.locator(".house-lost")).to_have_count(0)


WAYS_IN = """async (paths) => Object.fromEntries(await Promise.all(paths.map(async (path) => {
  const asked = await fetch(path);
  const socket = new WebSocket(`ws://${location.host}${path.replace(/\\/(get-messages|events.*)$/, "")}`);
  const heard = [];
  socket.onmessage = (frame) => heard.push(frame.data);
  const { code } = await new Promise((closed) => { socket.onclose = closed; });
  return [path, [asked.status, code, heard.length]];
})))"""
"""Asks for each path, over HTTP and a WebSocket; returns status, close code, and how much the socket was told."""


@pytest.mark.promise("A-249")
def test_two_people_cannot_get_into_each_other_s_rooms_by_any_url(tabs: Tabs, user: str, accident: Accident) -> None:
    ann, bob = f"{user}-ann", f"{user}-bob"
    hers, his = come_in(tabs, ann), come_in(tabs, bob)
    secret = new_room(hers, "Why do trees have rings?", "called the sapwood")
    own = new_room(his, "Hello", "What is on your mind?")
    accident.now()
    connected(his)
    connected(hers)

    his.goto(f"/?room={secret}")
    expect(his.get_by_role("heading", name="This room does not exist")).to_be_visible()
    expect(his.locator("body")).not_to_contain_text("trees")
    his.get_by_role("searchbox").fill("trees")
    expect(his.locator(".rooms-none")).to_contain_text("No room has “trees”")

    tabs.forgive("status of 40[0-9]")
    there, here = f"/agents/inbox/{ann}", f"/agents/inbox/{bob}"
    closed = {
        f"{there}/sub/room/{secret}/get-messages": [403, 4403, 0],
        f"{there}/sub/room/{secret}/events": [403, 4403, 0],
        f"{there}/sub/room/none/get-messages": [403, 4403, 0],
        f"{there}/events?depth=tree": [403, 4403, 0],
        there.replace("-ann", "%2Dann"): [403, 4403, 0],
        f"{here}/sub/room/{secret}/get-messages": [404, 4404, 0],
        f"{here}/sub/room/{own}/sub/room/{secret}/get-messages": [404, 4404, 0],
        f"{here}/sub/inbox/{ann}/sub/room/{secret}/get-messages": [404, 4404, 0],
        f"{here}/sub/room/..%2F..%2F..%2F{ann}%2Fsub%2Froom%2F{secret}/get-messages": [404, 4404, 0],
        f"/agents/room/{secret}/get-messages": [400, 4400, 0],
    }
    assert his.evaluate(WAYS_IN, list(closed)) == closed
    say_it = {"messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Ha!"}]}]}
    assert his.request.post(f"{there}/sub/room/{secret}/chat", data=say_it).status == 403

    expect(hers.locator(".message")).to_have_count(2)
    expect(rows(hers)).to_have_count(1)
    assert len(messages(hers, ann, secret)) == 2
    his.get_by_role("searchbox").press("Escape")
    row(his, "Hello").click()
    expect(his.locator(".is-assistant")).to_contain_text("What is on your mind?")


def test_everything_can_be_done_with_the_keyboard(tabs: Tabs, user: str, accident: Accident) -> None:
    page = tabs.open("/", by=user)
    page.get_by_label("Or another name").focus()
    page.keyboard.type(user)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Welcome, {user}")).to_be_visible()
    page.get_by_role("button", name="New room").press("Enter")
    expect(page.get_by_role("textbox", name="Say something")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    expect(page.locator(".is-assistant")).to_contain_text("What is on your mind?")
    rests(page)
    accident.now()

    page.get_by_role("button", name="New room").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the conversation")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Say something")).to_be_focused()
    page.get_by_role("button", name="Delete this room").press("Enter")
    for _ in range(3):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('dialog, body').tagName") in ("DIALOG", "BODY")
    page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
    expect(page.get_by_role("heading", name=f"Welcome, {user}")).to_be_visible()
    connected(page)
