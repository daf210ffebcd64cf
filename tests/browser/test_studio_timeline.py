"""The timeline of a turn: its steps, tool calls, waits and sub-agents on one axis, also through a crash."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.looking import Gallery
from tests.browser.studio import ServedStudio, StudioServer, events
from tests.browser.tabs import NARROW, WIDE, Tabs
from tests.machine import patience

EXAMPLE = "studio"
OVERLAPS = """() => {
  const found = [...document.querySelectorAll(".ruler span")];
  const labels = found.map((one) => ({text: one.innerText, ...one.getBoundingClientRect().toJSON()}));
  labels.sort((a, b) => a.left - b.left);
  return labels.slice(1).filter((one, at) => one.left < labels[at].right).map(({text}) => text);
}"""


@pytest.fixture
def desk(example: StudioServer) -> str:
    """A desk whose turn waits for an approval."""
    address = f"Desk:timed-{uuid4().hex[:6]}"
    example.call(address, "ask", "How long are rivers?")
    return address


def place(example: StudioServer, address: str) -> str:
    """Return where the timeline of the first work of an agent is."""
    work = example.answer("works", address=address)["rows"][-1]["work"]
    return f"/t/{address.replace(':', '%3A')}/{work.replace(' ', '%20')}"


@pytest.mark.nightly
def test_steps_and_milestones_of_a_run_have_names_and_marks(
    tabs: Tabs, example: StudioServer, gallery: Gallery
) -> None:
    plant = f"Plant:graft-{uuid4().hex[:6]}"
    example.call(plant, "graft", "apple")
    page = tabs.open(example.link(place(example, plant)))
    timeline = page.get_by_role("tree", name="Timeline")

    for name in ("run Grafter", "fiber on_run", "step cut", "milestone cut off", "step bind"):
        expect(timeline.get_by_role("treeitem", name=name).first).to_be_visible()
    milestone = timeline.locator(".bar-span.is-milestone").bounding_box()
    assert milestone is not None
    assert milestone["height"] >= 8  # a mark, however short the moment
    gallery.pictures(page, "studio-milestone")


@pytest.mark.core("pages")
def test_a_step_shows_what_the_model_was_sent(tabs: Tabs, example: StudioServer, desk: str) -> None:
    page = tabs.open(example.link(place(example, desk)))
    timeline = page.get_by_role("tree", name="Timeline")
    expect(timeline.get_by_role("treeitem")).to_have_count(14)
    expect(timeline.get_by_role("treeitem", name="wait approval publish")).to_be_visible()

    timeline.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    asked = page.get_by_role("dialog", name="Step 1")
    expect(asked.get_by_role("list", name="Messages")).to_contain_text("How long are rivers?")
    page.keyboard.press("Escape")

    expect(asked).to_have_count(0)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(timeline.get_by_role("treeitem")).to_have_count(1)


def test_a_run_is_scrubbed_from_its_first_chunk_to_its_last(
    tabs: Tabs, example: StudioServer, desk: str, gallery: Gallery
) -> None:
    page = tabs.open(example.link(place(example, desk)))
    page.get_by_role("treeitem", name="run Researcher").first.click()
    detail = page.get_by_role("dialog", name="Researcher")
    moment = detail.get_by_role("slider", name="Moment")
    then = detail.get_by_role("group", name="At this moment")
    expect(moment).to_have_attribute("aria-valuetext", re.compile("Chunk 1 of .* after the start"))
    expect(then).not_to_contain_text("6,650 km.")

    moment.focus()
    page.keyboard.press("End")
    expect(then).to_contain_text("The Nile: 6,650 km.")
    expect(then.get_by_role("group", name="Output of look")).to_contain_text("6650")
    gallery.pictures(page, "studio-scrub")
    page.keyboard.press("Home")
    expect(then).to_contain_text("Nothing yet")

    page.keyboard.press("Escape")
    page.get_by_role("treeitem", name="Step 1").first.click()
    expect(page.get_by_text("No chunks are kept")).to_be_visible()


def test_a_long_run_of_a_plain_agent_is_scrubbed_by_pages(tabs: Tabs, example: StudioServer) -> None:
    plant = f"Plant:scrub-{uuid4().hex[:6]}"
    example.call(plant, "survey", 350)
    page = tabs.open(example.link(place(example, plant)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/chunks") else None)
    page.get_by_role("treeitem", name="run Branch").first.click()
    then = page.get_by_role("group", name="At this moment")
    expect(then).to_contain_text("leaf 0. ")
    expect(then).not_to_contain_text("leaf 349. ")
    assert len(asked) == 1

    page.get_by_role("slider", name="Moment").focus()
    page.keyboard.press("End")
    expect(then).to_contain_text("leaf 0. leaf 1. ")
    expect(then).to_contain_text("leaf 348. leaf 349. ")
    assert len(asked) >= 3, page.get_by_role("slider", name="Moment").get_attribute("aria-valuetext")


def test_it_grows_while_one_looks(tabs: Tabs, example: StudioServer, desk: str, gallery: Gallery) -> None:
    page = tabs.open(example.link(place(example, desk)))
    timeline = page.get_by_role("tree", name="Timeline")
    expect(timeline.get_by_role("treeitem", name="wait approval publish")).to_be_visible()
    gallery.pictures(page, "studio-timeline")
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        expect(page.locator(".ruler span").first).to_be_visible()
        assert page.evaluate(OVERLAPS) == [], size
    page.set_viewport_size(WIDE)
    question = example.answer("questions", address=desk)["rows"][0]

    example.ask("answer", address=desk, id=question["id"], answer="approve")

    expect(timeline.get_by_role("treeitem", name="Step 3")).to_be_visible()
    expect(page.get_by_text("completed").first).to_be_visible()


def test_two_turns_are_compared(tabs: Tabs, example: StudioServer, desk: str, gallery: Gallery) -> None:
    question = example.answer("questions", address=desk)["rows"][0]
    example.ask("answer", address=desk, id=question["id"], answer="approve")
    first = place(example, desk)
    example.call(desk, "ask", "And the Rhine?")
    page = tabs.open(example.link(first))
    choice = page.get_by_label("Compare with")
    choice.focus()
    expect(choice.get_by_role("option")).to_have_count(2)
    choice.select_option(index=1)

    both = page.get_by_role("group", name="Spans of both")
    expect(both.get_by_role("row", name=re.compile("tool publish.*only here"))).to_be_visible()
    gallery.pictures(page, "studio-compare")
    page.get_by_label("Only differences").check()
    expect(both).to_be_visible()


class TestAfterACrash:
    """The process that a turn ran in was killed. Its timeline shows the gap and the next attempt."""

    @pytest.fixture(scope="class")
    @staticmethod
    def example(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStudio]:
        server = ServedStudio(tmp_path_factory.mktemp("killed"), PAUSE="0.4")
        yield server
        server.end(signal.SIGTERM)

    @staticmethod
    def test_the_gap_and_the_next_attempt_are_shown(tabs: Tabs, example: ServedStudio, gallery: Gallery) -> None:
        def ask() -> None:
            with contextlib.suppress(OSError, HTTPException):  # the process is killed meanwhile
                example.call("Desk:main", "ask", "How long are rivers?")

        asking = threading.Thread(target=ask)
        asking.start()
        researcher = "Desk:main/Researcher:agent-tool%3Ad1"
        until(lambda: spans(example, researcher, "tool"))
        example.crash()
        asking.join()
        until(lambda: [one for one in spans(example, "Desk:main", "wait") if one["status"] == "running"])
        page = tabs.open(example.link(place(example, "Desk:main")))
        timeline = page.get_by_role("tree", name="Timeline")

        expect(timeline.get_by_role("treeitem", name="attempt 2").first).to_be_visible()
        expect(page.get_by_text("1 time", exact=True)).to_be_visible()
        expect(page.get_by_text(re.compile(r"process ended, [\d.]+ s")).first).to_be_attached()
        gallery.pictures(page, "studio-crash")
        whole = timeline.get_by_role("treeitem").count()
        page.get_by_label("Only failures").check()
        expect(timeline.get_by_role("treeitem", name="Turn")).to_have_count(0)
        assert 0 < timeline.get_by_role("treeitem").count() < whole


def spans(example: StudioServer, address: str, kind: str) -> list[dict[str, object]]:
    try:
        told = events(example.ask("spans", address=address))
    except OSError:
        return []  # not created yet
    return [one for name, data in told if name == "spans" for one in data["spans"] if one["kind"] == kind]


def until(condition: Callable[[], object]) -> None:
    """Ask again until the server has an answer: nothing tells a test what is recorded."""
    end = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_of_many_spans_only_those_on_the_screen_are_drawn(tabs: Tabs, example: StudioServer) -> None:
    address = f"Miner:many-{uuid4().hex[:6]}"
    example.call(address, "dig")
    page = tabs.open(example.link(place(example, address)))

    tree = page.get_by_role("tree", name="Timeline")
    expect(tree.get_by_role("treeitem").nth(20)).to_be_visible()
    tree.focus()
    page.keyboard.press("End")
    expect(tree.get_by_role("treeitem", name="Step 11")).to_be_visible()
    assert tree.get_by_role("treeitem").count() < 80
