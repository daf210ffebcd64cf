"""One agent in the studio: its conversation, state, tables and runs; and the questions that it asks a person."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect
from tests.browser.looking import Gallery
from tests.browser.studio import StudioServer
from tests.browser.tabs import Tabs
from websockets.sync.client import connect

EXAMPLE = "studio"


@pytest.fixture
def desk(example: StudioServer) -> str:
    """A desk whose turn waits for an approval."""
    address = f"Desk:main-{uuid4().hex[:6]}"
    example.call(address, "ask", "How long are rivers?")
    return address


@pytest.fixture
def opened(tabs: Tabs, example: StudioServer) -> Callable[..., Page]:
    """Opens a place of the studio."""

    def opened(*path: str) -> Page:
        return tabs.open(example.link("/" + "/".join(part.replace(":", "%3A").replace("/", "%2F") for part in path)))

    return opened


@pytest.mark.core("pages")
def test_what_an_agent_asks_is_answered_from_its_conversation(opened: Callable[..., Page], desk: str) -> None:
    page = opened("a", desk)
    messages = page.get_by_role("log", name="Messages")
    expect(messages).to_contain_text("How long are rivers?")
    expect(messages).to_contain_text("needs your approval")

    page.get_by_role("link", name="Answer").click()
    page.get_by_role("button", name="Approve publish").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing waits for a person")).to_be_visible()
    page.go_back()

    expect(messages.get_by_role("table")).to_contain_text("6,650 km")
    expect(messages).to_contain_text("turn completed in")
    page.get_by_role("button", name="Copy as test").click()
    copied = page.get_by_role("dialog", name="Copy as test")
    expect(copied).to_contain_text('call("publish", title="Rivers", id="d3")')
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Copy as test")).to_be_focused()
    expect(page.get_by_role("link", name="2 children")).to_be_visible()


def test_the_conversation_grows_while_one_looks(
    opened: Callable[..., Page], desk: str, example: StudioServer, gallery: Gallery
) -> None:
    page = opened("a", desk)
    messages = page.get_by_role("log", name="Messages")
    expect(messages).to_contain_text("needs your approval")
    question = example.answer("questions", address=desk)["rows"][0]

    example.ask("answer", address=desk, id=question["id"], answer="approve", value={"title": "Long rivers"})

    expect(messages.get_by_role("table")).to_contain_text("6,650 km")
    gallery.pictures(page, "studio-chat")
    example.call(desk, "ask", "And the Rhine?")
    expect(messages).to_contain_text("And the Rhine?")
    expect(messages.get_by_role("table")).to_have_count(2)


def test_the_branches_of_a_conversation_are_a_tree_and_another_one_is_made_active(
    opened: Callable[..., Page], example: StudioServer, gallery: Gallery
) -> None:
    address = f"Guide:rome-{uuid4().hex[:6]}"

    def say(words: str, id: str) -> None:
        example.call(address, "send", [{"id": id, "role": "user", "parts": [{"type": "text", "text": words}]}])

    say("Plan a trip to Rome.", "u1")
    say("And hotels?", "u2")
    say("And trains?", "u2")
    say("Plan a trip to Oslo.", "u1")
    page = opened("a", address)
    messages = page.get_by_role("log", name="Messages")
    expect(messages).to_contain_text("Plan a trip to Oslo.")
    expect(messages).to_contain_text("2 / 2")

    page.get_by_text("4 branches").click()
    tree = page.get_by_role("listitem").filter(has_text="Plan a trip to Rome.")
    expect(tree).to_contain_text("And trains?")
    gallery.pictures(page, "studio-branches")
    tree.get_by_role("listitem").filter(has_text="And hotels?").get_by_role("button", name="Switch").click()
    dialog = page.get_by_role("dialog", name="Switch to this branch?")
    expect(dialog).to_contain_text("Makes the branch with 2 messages active.")
    dialog.get_by_role("button", name="Switch").click()

    expect(messages).to_contain_text("And hotels?")
    expect(messages).not_to_contain_text("Oslo")
    expect(messages.get_by_text("1 / 2")).to_have_count(2)
    expect(tree.get_by_text("active", exact=True)).to_have_count(2)


def test_questions_are_answered_in_the_inbox(
    opened: Callable[..., Page], example: StudioServer, desk: str, gallery: Gallery
) -> None:
    asker = f"Desk:asker-{uuid4().hex[:6]}"
    example.call(asker, "inquire")
    page = opened("inbox")
    own = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=asker.replace(":", " ")))
    approval = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=desk.replace(":", " ")))
    gallery.pictures(page, "studio-inbox")

    own.get_by_role("button", name="Danube").click()
    own.get_by_label("Your answer").fill("It is long.")
    own.get_by_role("button", name="Answer").click()
    expect(own).to_have_count(0)

    approval.get_by_role("button", name="Change arguments").click()
    approval.get_by_label("Arguments as JSON").fill("{")
    approval.get_by_role("button", name="Approve").click()
    expect(approval.get_by_role("alert")).to_contain_text("no JSON")
    approval.get_by_role("button", name="Discard changes").click()
    approval.get_by_role("button", name="Deny …").click()
    page.keyboard.type("Not now.")
    page.keyboard.press("Enter")
    expect(approval).to_have_count(0)


def test_state_tables_runs_and_spending(
    opened: Callable[..., Page], example: StudioServer, desk: str, gallery: Gallery
) -> None:
    plant = f"Plant:{'a-plant-with-a-long-name-' * 4}{uuid4().hex[:6]}"
    example.call(plant, "grow", ["b1"])
    page = opened("a", f"{plant}/Branch:b1", "state")
    expect(page.get_by_role("group", name="State")).to_contain_text("<redacted>")
    gallery.pictures(page, "studio-state")

    page.get_by_role("link", name=plant.replace(":", " ")).click()
    page.get_by_role("link", name="Tables").click()
    expect(page.get_by_role("cell", name="<b>red</b>")).to_be_visible()  # as text
    page.get_by_label("SQL").fill("SELECT count(*) AS leaves FROM leaves")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("columnheader", name="leaves")).to_be_visible()
    gallery.pictures(page, "studio-tables")

    page.goto(example.link(f"/a/{desk.replace(':', '%3A')}/runs"))
    expect(page.get_by_role("group", name="Runs").get_by_role("row")).to_have_count(3)
    page.get_by_role("link", name="Spending").last.click()
    expect(page.get_by_role("group", name="By model and class")).to_contain_text("scripted Researcher")
    gallery.pictures(page, "studio-spending")

    page.get_by_label("Time").select_option("Last 24 hours")
    expect(page.get_by_role("img", name="Tokens by hour")).to_be_visible()
    expect(page.get_by_role("group", name="By model").get_by_role("row")).to_have_count(2)
    page.get_by_label("Group").select_option("By class")
    expect(page.get_by_role("group", name="By class").get_by_role("row", name="Researcher")).to_be_visible()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("group", name="Tokens by hour").get_by_role("row")).to_have_count(2)
    gallery.pictures(page, "studio-spending-hours")
    page.get_by_label("Group").select_option("By user")
    expect(page.get_by_role("group", name="By user").get_by_role("row", name="operator")).to_be_visible()


def test_a_dead_letter_is_deleted(opened: Callable[..., Page], example: StudioServer, gallery: Gallery) -> None:
    plant = f"Plant:pine-{uuid4().hex[:6]}"
    example.call(plant, "plan")
    page = opened("a", plant, "tables")
    page.get_by_role("link", name="1 agent has dead letters").click()
    expect(page.get_by_role("listitem").get_by_text("an apple fell on a head")).to_be_visible()
    gallery.pictures(page, "studio-letters")

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_text("Deletes").wait_for()  # as the server says
    page.keyboard.press("Enter")

    expect(page.get_by_text("There are no dead letters")).to_be_visible()


def test_a_replay_says_what_became_of_it(opened: Callable[..., Page], example: StudioServer) -> None:
    plant = f"Plant:fir-{uuid4().hex[:6]}"
    example.call(plant, "plan")
    page = opened("a", plant, "schedules")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Replay").click()
    dialog.get_by_text("Calls fall() again").wait_for()
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("fall() failed again")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Enter")

    example.call(plant, "hang")
    page.get_by_role("button", name="Replay").click()
    dialog.get_by_text("Calls fall() again").wait_for()
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("fall() succeeded")
    page.keyboard.press("Escape")
    expect(page.get_by_role("group", name="Scheduled and queued work")).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)


def test_work_is_called_by_what_it_was_given(opened: Callable[..., Page], desk: str) -> None:
    page = opened("a", desk, "timeline")
    page.get_by_role("link", name="How long are rivers?").click()

    expect(page.get_by_role("heading", level=1, name="How long are rivers?")).to_be_visible()
    expect(page.get_by_role("navigation", name="Agents above")).to_contain_text(desk.replace(":", " "))


def test_the_operator_says_something_and_stops_the_answer(
    opened: Callable[..., Page], example: StudioServer, gallery: Gallery
) -> None:
    talker = f"Talker:t-{uuid4().hex[:6]}"
    example.call(talker, "wake")
    page = opened("a", talker)
    box = page.get_by_label("Message", exact=True)
    box.focus()
    expect(page.get_by_role("status").filter(has_text="as the user 'operator'")).to_be_visible()
    page.keyboard.type("<b>Talk</b>, please.")
    page.keyboard.press("Enter")
    messages = page.get_by_role("log", name="Messages")
    expect(messages).to_contain_text("<b>Talk</b>, please.")
    expect(messages).to_contain_text("One two three. One two")  # before it is complete
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    gallery.pictures(page, "studio-say")

    page.get_by_role("button", name="Stop").click()
    expect(messages).to_contain_text("turn cancelled")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(messages.get_by_text("One two three").first).to_be_visible()
    audit = (example.data / "operator.jsonl").read_text()
    assert '"send"' in audit
    assert "Talk</b>" not in audit


def test_files_and_connections(opened: Callable[..., Page], example: StudioServer, gallery: Gallery) -> None:
    plant = f"Plant:lime-{uuid4().hex[:6]}"
    example.call(plant, "press", "<i>leaf.txt", "green")
    page = opened("a", plant, "files")
    files = page.get_by_role("group", name="Files")
    expect(files.get_by_role("row", name="<i>leaf.txt")).to_contain_text("5 B")
    gallery.pictures(page, "studio-files")

    page.get_by_role("link", name="Connections").click()
    expect(page.get_by_text("No client is connected")).to_be_visible()
    with connect(f"{example.url.replace('http', 'ws')}/agents/plant/{plant.partition(':')[2]}?_pk=<b>me</b>"):
        connections = page.get_by_role("group", name="Connections")
        expect(connections.get_by_role("row", name="<b>me</b>")).to_contain_text("WebSocket")
        expect(page.get_by_text("1 client", exact=True)).to_be_visible()
        gallery.pictures(page, "studio-connections")
    expect(page.get_by_text("No client is connected")).to_be_visible()


def test_windows_side_by_side_leave_connections_for_each_other(tabs: Tabs, example: StudioServer) -> None:
    plant = f"Plant:wide-{uuid4().hex[:6]}"
    example.call(plant, "grow", ["b1"])
    example.call(plant, "plan")  # which says something in the log
    place = example.link(f"/a/{plant.replace(':', '%3A')}/log")
    pages = [tabs.open(place) for _ in range(8)]  # a browser opens six connections to a server
    for page in pages:
        expect(page.get_by_role("link", name="1 child")).to_be_visible()
    expect(pages[-1].get_by_text("use all connections")).to_be_visible()

    example.call(plant, "grow", ["b2"])
    for page in pages:
        expect(page.get_by_role("link", name="2 children")).to_be_visible()
    for page in pages[:-1]:
        page.close()
    expect(pages[-1].get_by_role("log", name="Log")).to_be_visible()


def test_an_agent_that_does_not_exist(opened: Callable[..., Page]) -> None:
    page = opened("a", "Plant:never")

    expect(page.get_by_text("There is no such agent")).to_be_visible()
    expect(page).to_have_title(re.compile("Plant:never"))


@pytest.mark.nightly
def test_a_root_that_does_not_exist_is_created(opened: Callable[..., Page]) -> None:
    name = f"new-{uuid4().hex[:6]}"
    page = opened("a", f"Plant:{name}")
    page.get_by_role("button", name=f"Create Plant {name}").click()
    page.get_by_role("dialog").get_by_text(f"Creates Plant:{name}").wait_for()

    page.keyboard.press("Enter")

    expect(page.get_by_role("button", name="Restart")).to_be_visible()
    expect(page.get_by_text("There is no such agent")).to_have_count(0)


def test_a_schedule_is_fired_and_cancelled(
    opened: Callable[..., Page], example: StudioServer, gallery: Gallery
) -> None:
    plant = f"Plant:elm-{uuid4().hex[:6]}"
    example.call(plant, "grow", ["b1"])
    example.call(plant, "plan")
    page = opened("a", plant, "schedules")
    work = page.get_by_role("group", name="Scheduled and queued work")
    expect(work.get_by_role("row", name="water")).to_have_count(2)
    gallery.pictures(page, "studio-schedules")

    work.get_by_role("row", name="liters: 5").get_by_role("button", name="Fire now").click()
    page.get_by_role("dialog").get_by_text("Calls water").wait_for()
    page.keyboard.press("Enter")
    expect(work.get_by_role("row", name="liters: 5")).to_have_count(0)
    work.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_text("Cancels").wait_for()
    page.keyboard.press("Escape")
    expect(work.get_by_role("row", name="water")).to_have_count(1)


def test_an_agent_is_deleted_by_typing_its_name(opened: Callable[..., Page], example: StudioServer) -> None:
    name = f"gone-{uuid4().hex[:6]}"
    example.call(f"Plant:{name}", "grow", ["b1"])
    page = opened("a", f"Plant:{name}", "state")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("and 1 agent below it")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()

    page.keyboard.type(name)
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("There is no such agent")).to_be_visible()


def test_the_log_of_an_agent_and_of_the_server(
    opened: Callable[..., Page], example: StudioServer, gallery: Gallery
) -> None:
    plant = f"Plant:ash-{uuid4().hex[:6]}"
    example.call(plant, "plan")
    page = opened("a", plant, "log")
    log = page.get_by_role("log", name="Log")
    expect(log).to_contain_text("an apple fell on a head")
    gallery.pictures(page, "studio-log")

    page.get_by_role("link", name="Machines").click()
    page.get_by_role("link", name="Log").click()
    page.get_by_label("Filter the log").fill("studio:")
    expect(log).to_contain_text("#t=<redacted>")
    page.get_by_role("link", name="Cluster").click()
    expect(page.get_by_text("This server is not part of a cluster")).to_be_visible()
