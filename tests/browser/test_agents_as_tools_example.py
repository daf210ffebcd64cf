"""On the page of agents as tools one sees helpers at work and talks to them, also if the server is killed meanwhile."""

from __future__ import annotations

import re
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Page, expect
from tests.browser.chatting import press, rests, say, speaks, words
from tests.browser.helping import (
    Kept,
    done,
    is_at,
    is_connected,
    is_said_at,
    open_helper,
    opened,
    panels,
    talk,
    tasks,
    unfold,
)
from tests.browser.looking import Gallery
from tests.browser.serving import Accident, Example
from tests.browser.tabs import NARROW, Tabs

pytestmark = pytest.mark.nightly

EXAMPLE = "agents-as-tools"
ENVIRONMENT = {"PAUSE": "0.03"}
"""A helper takes four seconds: what is waited for while it works has come by then, also on a busy machine."""


@pytest.fixture
def me(example: Example, user: str) -> Kept:
    """The user's assistant, as it is stored."""
    return Kept(example, (("Assistant", user),))


def connected(page: Page) -> None:
    expect(page.locator(".head .badge").first).to_have_text("connected")


def is_empty(page: Page) -> None:
    expect(page.get_by_role("heading", name="What shall we find out?")).to_be_visible()
    expect(page.locator(".message")).to_have_count(0)


def concludes(page: Page, text: str) -> None:
    """Wait until the assistant has said this, and nothing more is being said."""
    expect(talk(page).locator(".message > .text").last).to_contain_text(text)
    rests(talk(page))
    expect(talk(page).get_by_role("alert")).to_have_count(0)


def concluded(page: Page) -> str:
    """Return the words of the assistant's last answer on the page."""
    return words(talk(page).locator(".is-assistant").last.locator("> .text").last.inner_text())


@pytest.mark.promise("A-237", "A-241", "B-27")
@pytest.mark.core("pages")
def test_whoever_asks_is_answered(tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")
    connected(page)
    is_empty(page)
    gallery.pictures(page, "agents-as-tools-empty")
    box = page.get_by_label("Ask for something")

    box.fill("Hello!")
    box.press("Shift+Enter")
    expect(box).to_have_value("Hello!\n")
    box.press_sequentially("What can you do?")
    box.press("Enter")
    speaks(page, 60)
    accident.now()
    concludes(page, "kill the server and start it again")

    connected(page)
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".is-assistant li strong")).to_have_count(5)
    assert concluded(page) == me.said()
    assert [message["role"] for message in me.messages()] == ["user", "assistant"]


@pytest.mark.promise("A-152", "A-153", "A-154", "A-237", "A-238")
def test_a_helper_is_watched_at_work_and_asked_itself(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")

    say(page, "Research the actor model")
    inline = panels(talk(page))
    is_at(inline, "running")
    inline.locator(".tail").focus()  # who reads in it has it stay open
    side = open_helper(inline)
    is_said_at(side, "running", "Assistant", is_busy=True)
    for where in (inline, side):
        expect(where.locator(".tool-line .name").first).to_have_text("web_search")
    accident.now()
    for where in (inline, side):
        expect(where.locator(".text").last).to_contain_text("Sources:")
    is_at(inline, "completed")
    is_said_at(side, "completed", "Assistant", is_busy=False)
    concludes(page, "But note:")

    shown = done(inline)
    assert done(side.locator(".is-assistant")) == shown
    steps = inline.locator(".reasoning-head, .tool-line .name").all_inner_texts()
    assert steps == ["Thought", "web_search"] * 3 + ["Thought"]
    side.get_by_role("button", name="Thought").first.click()
    expect(side.locator(".reasoning .text")).to_have_text(
        "My topic is “the actor model”. First: what is it, in one line?"
    )
    say(side, "Who are you?")
    expect(side.locator(".is-assistant").last).to_contain_text("the Researcher for the actor model")
    rests(side)
    expect(side.locator(".message")).to_have_count(4)
    expect(talk(page).locator(".message")).to_have_count(2)
    assert done(inline) == shown
    helper = me.helper()
    assert me.runs() == [("Researcher", "completed")]
    assert [message["role"] for message in helper.messages()] == ["user", "assistant"] * 2
    assert len(me.messages()) == 2
    assert concluded(page) == me.said()
    assert helper.messages()[1]["parts"][-1]["text"] == me.messages()[-1]["parts"][1]["output"]


@pytest.mark.promise("A-152", "A-155", "A-237", "A-238", "A-250")
def test_a_helper_of_a_helper_is_seen_opened_and_shared(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")
    home = page.url

    say(page, "How do I add full-text search?")
    planner = panels(talk(page)).first
    researcher = panels(planner)
    is_at(researcher, "running")
    is_at(planner, "running")
    expect(planner.locator(".tool-line .name").nth(1)).to_have_text("inspect_file")
    gallery.picture(page, "agents-as-tools-deep")
    side = open_helper(researcher)
    crumbs = side.get_by_role("navigation", name="Breadcrumb").get_by_role("listitem")
    expect(crumbs).to_have_text(["Assistant", "Planner", "Researcher"])
    is_said_at(side, "running", "Planner", is_busy=True)
    shared = page.url
    accident.now()
    friend = tabs.open(shared, by="a friend")
    for tab in (page, friend):
        expect(opened(tab).locator(".text").last).to_contain_text("Sources:")
        is_said_at(opened(tab), "completed", "Planner", is_busy=False)
    assert done(opened(friend)) == done(side)

    side.get_by_role("link", name="Planner").click()
    expect(crumbs).to_have_text(["Assistant", "Planner"])
    is_said_at(side, "completed", "Assistant", is_busy=False)
    expect(panels(side)).to_have_attribute("data-helper-status", "completed")
    say(side, "Which files change?")
    expect(side.locator(".is-assistant").last).to_contain_text("src/store.py: the change itself")
    rests(side)
    page.go_back()
    expect(crumbs).to_have_text(["Assistant", "Planner", "Researcher"])
    page.go_back()
    expect(opened(page)).to_have_count(0)
    assert page.url == home
    page.go_forward()
    expect(opened(page)).to_have_attribute("data-helper-type", "Researcher")
    assert page.url == shared
    press(opened(friend), "Close")
    concludes(friend, "The plan above has 4 steps.")

    assert me.runs() == [("Planner", "completed")]
    plan = me.helper()
    assert plan.runs() == [("Researcher", "completed")]
    assert re.findall(r"(?m)^## (.+)$", me.messages()[-1]["parts"][1]["output"]) == [
        *("Overview", "Affected files", "Step-by-step", "Open questions"),
    ]
    assert [len(agent.messages()) for agent in (me, plan, plan.helper())] == [2, 4, 2]
    assert concluded(friend) == me.said()


@pytest.mark.promise("A-148", "A-237", "A-239", "A-250")
def test_two_helpers_of_one_call_are_side_by_side(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")

    say(page, "Compare Rust and Go")
    first, second = panels(talk(page)).nth(0), panels(talk(page)).nth(1)
    for panel in (first, second):
        is_at(panel, "running")
        expect(panel.locator(".tool-line").first).to_contain_text("web_search")
    expect(page.get_by_role("group", name="compare")).to_contain_text("2 helpers in parallel")
    accident.now()
    for panel in (first, second):
        is_at(panel, "completed")
    concludes(page, "goroutines")

    assert tasks(talk(page)) == ["Rust", "Go"]
    for panel, language in ((second, "Go"), (first, "Rust")):
        side = open_helper(panel)
        expect(side.locator(".is-given")).to_contain_text(language)
        expect(side.locator(".is-assistant h3")).to_have_text(language)
        is_connected(side)
        press(side, "Close")
    assert me.runs() == [("Researcher", "completed")] * 2
    output = me.messages()[-1]["parts"][1]["output"]
    assert output == {
        half: {"query": query, "summary": me.helper(number).messages()[-1]["parts"][-1]["text"]}
        for number, (half, query) in enumerate((("a", "Rust"), ("b", "Go")))
    }
    assert concluded(page) == me.said()


@pytest.mark.promise("A-147", "A-148", "A-239")
def test_if_one_of_two_helpers_fails_the_other_goes_on_and_the_gap_is_named(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")

    say(page, "Compare Rust and something that fails")
    first, second = panels(talk(page)).nth(0), panels(talk(page)).nth(1)
    is_at(second, "error")
    is_at(first, "running")
    accident.now()
    is_at(first, "completed")
    concludes(page, "This is only half of a comparison")

    gallery.pictures(page, "agents-as-tools-half")
    page.reload()
    is_at(first, "completed")
    is_at(second, "error")
    expect(second).to_contain_text("The web search does not respond.")
    assert tasks(talk(page)) == ["Rust", "something that fails"]
    assert me.runs() == [("Researcher", "completed"), ("Researcher", "failed")]
    assert me.messages()[-1]["parts"][1]["output"]["b"]["error"] == "The web search does not respond."
    assert concluded(page) == me.said()


@pytest.mark.promise("A-237", "A-242")
@pytest.mark.parametrize(
    ("said", "helpers"), [("Research Rust", 1), ("Compare Rust and Go", 2)], ids=["one-helper", "two-helpers"]
)
def test_a_page_that_is_reloaded_shows_what_one_shows_that_was_not(
    tabs: Tabs, user: str, me: Kept, accident: Accident, said: str, helpers: int
) -> None:
    page, other = tabs.open(f"/?user={user}"), tabs.open(f"/?user={user}")
    every = [panels(talk(page)).nth(number) for number in range(helpers)]

    say(page, said)
    for panel in every:
        is_at(panel, "running")
    page.reload()
    for panel in every:
        is_at(panel, "running")
        expect(panel.locator(".tool-line").first).to_contain_text("web_search")
    accident.now()
    page.reload()
    for panel in every:
        is_at(panel, "completed")
    for tab in (page, other):
        concludes(tab, "garbage collector")
    live = concluded(page)
    page.reload()
    concludes(page, "garbage collector")

    for tab in (page, other):
        expect(panels(talk(tab))).to_have_count(helpers)
        for number in range(helpers):
            unfold(panels(talk(tab)).nth(number))
    assert done(talk(page)) == done(talk(other))
    assert [len(panel.locator(".tool-line").all()) for panel in every] == [3] * helpers
    assert live == concluded(page) == me.said()
    assert me.runs() == [("Researcher", "completed")] * helpers


@pytest.mark.promise("A-157", "A-237", "A-240", "A-242")
def test_a_conversation_that_is_cleared_is_gone_in_every_tab_and_does_not_come_back(
    tabs: Tabs, user: str, me: Kept, accident: Accident
) -> None:
    page, other = tabs.open(f"/?user={user}"), tabs.open(f"/?user={user}")
    say(page, "Compare Rust and Go")
    is_at(panels(talk(other)).first, "running")
    side = open_helper(panels(talk(other)).first)
    expect(side.locator(".tool-line").first).to_contain_text("web_search")
    address, helper = other.url, me.helper()

    press(page, "Clear")
    accident.now()
    connected(other)  # who comes only later is shown that what it had opened was cleared
    is_connected(side)
    press(page, "Clear all?")
    for tab in (page, other):
        is_empty(tab)
        expect(opened(tab)).to_have_count(0)
        tab.reload()
        is_empty(tab)
    say(page, "Hello")
    concludes(page, "Give me a topic")

    expect(panels(page)).to_have_count(0)
    assert me.runs() == []
    assert len(me.messages()) == 2
    with pytest.raises(HTTPError, match="404"):
        helper.messages()
    tabs.forgive(r"404|WebSocket connection to '[^']*' failed")
    other.goto(address)
    expect(opened(other).get_by_role("alert")).to_contain_text("This run was deleted")
    expect(opened(other).get_by_role("textbox")).to_be_disabled()


@pytest.mark.promise("A-159")
@pytest.mark.parametrize(
    ("said", "helpers", "way"),
    [("How do I add full-text search?", 2, "button"), ("Compare Rust and Go", 2, "Escape")],
    ids=["button", "escape"],
)
def test_stop_stops_everybody_and_nobody_says_more(
    tabs: Tabs, user: str, me: Kept, accident: Accident, said: str, helpers: int, way: str
) -> None:
    page = tabs.open(f"/?user={user}")
    every = [panels(talk(page)).nth(number) for number in range(helpers)]

    say(page, said)
    for panel in every:
        is_at(panel, "running")
        expect(panel.locator(".tool-line", has_text="web_search").first).to_be_visible()
    accident.now(slowly=True)
    if way == "button":
        press(page, "Stop")
    else:
        page.keyboard.press("Escape")
    rests(page)
    for tab_is_new in (False, True):
        if tab_is_new:
            page.reload()
        is_at(every[0], "aborted")  # which closes it
        unfold(every[0])
        is_at(every[-1], "aborted")
    expect(page.locator(".reasoning-head, .tool-line").first).to_be_visible()
    shown = done(page)
    say(page, "Thanks")
    concludes(page, "My helpers stay here")

    assert done(page)[: len(shown)] == shown
    assert "Sources:" not in talk(page).inner_text()
    runs, agent = me.runs(), me
    while runs:
        assert {status for _, status in runs} == {"cancelled"}
        agent = agent.helper()
        assert "Sources:" not in agent.said()
        runs = agent.runs()
    assert len(me.messages()) == 4


def test_what_goes_on_is_no_error_while_the_server_is_away_and_can_be_stopped(
    tabs: Tabs, user: str, me: Kept, example: Example
) -> None:
    page = tabs.open(f"/?user={user}")
    say(page, "Compare Rust and Go")
    every = [panels(talk(page)).nth(number) for number in range(2)]
    for panel in every:
        is_at(panel, "running")

    with example.away():
        expect(page.get_by_text("Reconnecting")).to_be_visible()
        for panel in every:
            is_at(panel, "running")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.keyboard.press("Escape")
    for panel in every:
        is_at(panel, "aborted")
    rests(page)

    connected(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert me.runs() == [("Researcher", "cancelled")] * 2


@pytest.mark.promise("A-157")
def test_an_opened_helper_is_closed_in_many_ways(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")
    say(page, "Research Rust")
    panel = panels(talk(page))
    link = panel.get_by_role("link", name="Open Researcher: Rust")
    side = open_helper(panel)
    accident.now()
    expect(side.locator(".text").last).to_contain_text("Sources:")
    is_said_at(side, "completed", "Assistant", is_busy=False)

    for way in ("Close", "Escape", "beside it", "Assistant"):
        if way == "Close":
            press(side, way)
        elif way == "Escape":
            page.keyboard.press(way)
        elif way == "beside it":
            page.mouse.click(20, 400)
        else:
            side.get_by_role("link", name=way).click()
        expect(side).to_have_count(0)
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        is_connected(side)
    assert me.runs() == [("Researcher", "completed")]
    assert len(me.messages()) == len(me.helper().messages()) == 2


@pytest.mark.promise("A-156")
def test_an_address_that_leads_to_nobody_says_so(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    tabs.forgive(r"404|WebSocket connection to '[^']*' failed")
    for at, why in (("Butler:one", "Unknown helper class: Butler"), ("Researcher:one", "This run was deleted")):
        page = tabs.open(f"/?user={user}&at={at}")
        expect(opened(page).get_by_role("alert")).to_contain_text(why)
        expect(opened(page).get_by_role("textbox")).to_be_disabled()
    accident.now()
    for page in tabs.pages:
        connected(page)
        page.keyboard.press("Escape")
        expect(opened(page)).to_have_count(0)
        is_empty(page)

    say(page, "Hello")
    concludes(page, "Give me a topic")
    assert me.runs() == []
    assert len(me.messages()) == 2


def test_what_went_wrong_is_said_where_it_went_wrong_and_can_be_tried_again(
    tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident
) -> None:
    page = tabs.open(f"/?user={user}")
    alert = talk(page).get_by_role("alert")

    say(page, "Fail, please")
    expect(alert).to_contain_text("fails on request")
    gallery.pictures(page, "agents-as-tools-error")
    accident.now()
    press(page, "Try again")
    expect(alert).to_have_count(0)
    expect(alert).to_contain_text("fails on request")
    say(page, "Research something that fails")
    is_at(panels(talk(page)), "error")
    concludes(page, "The helper failed: The web search does not respond.")
    expect(alert).to_have_count(0)
    side = open_helper(panels(talk(page)))
    is_said_at(side, "error", "Assistant", is_busy=False)
    expect(side.get_by_role("alert")).to_contain_text("The web search does not respond.")
    press(side, "Try again")
    expect(side.get_by_role("alert")).to_have_count(0)
    expect(side.get_by_role("alert")).to_contain_text("The web search does not respond.")

    is_said_at(side, "error", "Assistant", is_busy=False)
    assert me.runs() == [("Researcher", "failed")]
    assert concluded(page) == me.said()


@pytest.mark.promise("A-157", "A-241")
def test_everything_can_be_done_with_the_keyboard(tabs: Tabs, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")
    focused = page.locator(":focus")

    expect(focused).to_have_id("composer")
    page.keyboard.type("Research Rust")
    page.keyboard.press("Enter")
    is_at(panels(talk(page)), "running")
    accident.now()
    concludes(page, "But note:")
    page.get_by_role("log").focus()
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Space")
    expect(focused).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", "Open Researcher: Rust")
    page.keyboard.press("Enter")
    side = opened(page)
    expect(side).to_be_focused()
    expect(side.locator(".text").last).to_contain_text("Sources:")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Assistant")
    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_attribute("placeholder", "Ask the Researcher")
    page.keyboard.type("Are you sure?")
    page.keyboard.press("Enter")
    expect(side.locator(".is-assistant").last).to_contain_text("As sure as 3 sources")
    rests(side)
    expect(focused).to_have_attribute("placeholder", "Ask the Researcher")
    page.keyboard.press("Tab")
    expect(focused).to_have_text("Assistant")
    page.keyboard.press("Escape")
    expect(side).to_have_count(0)
    expect(focused).to_have_attribute("aria-label", "Open Researcher: Rust")

    assert len(me.helper().messages()) == 4
    page.get_by_role("button", name="Clear").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    is_empty(page)
    assert me.messages() == me.runs() == []


@pytest.mark.promise("B-27")
def test_helpers_are_good_to_look_at(tabs: Tabs, gallery: Gallery, user: str, me: Kept, accident: Accident) -> None:
    page = tabs.open(f"/?user={user}")
    say(page, "Compare Rust and Go")
    for number in range(2):
        expect(panels(talk(page)).nth(number).locator(".tool-line")).to_have_count(2)
    gallery.picture(page, "agents-as-tools-wide-light")
    page.set_viewport_size(NARROW)
    page.emulate_media(color_scheme="dark")
    gallery.picture(page, "agents-as-tools-narrow-dark")
    accident.now()
    concludes(page, "goroutines")
    side = open_helper(panels(talk(page)).first)
    is_connected(side)
    say(side, "Are you sure?")
    expect(side.locator(".is-assistant").last).to_contain_text("the borrow checker takes weeks to get used to.")
    rests(side)

    gallery.pictures(page, "agents-as-tools-opened")
    assert me.runs() == [("Researcher", "completed")] * 2
    assert len(me.helper().messages()) == 4
