"""A conversation is forked in the studio, continued with another model, and compared with the original."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect
from tests.browser.looking import Gallery
from tests.browser.studio import StudioServer
from tests.browser.tabs import Tabs
from tests.machine import patience

EXAMPLE = "studio"
QUESTIONS = ["Where shall I go?", "And in the afternoon?", "And when it rains?"]


@pytest.fixture
def bell(tmp_path: Path) -> Path:
    """The file that a schedule of the walker writes to."""
    return tmp_path / "bell"


@pytest.fixture
def walker(example: StudioServer, bell: Path) -> str:
    """A walker that has answered three questions, and has a schedule."""
    address = f"Walker:g-{uuid4().hex[:6]}"
    example.call(address, "prepare", str(bell), QUESTIONS)
    return address


@pytest.fixture
def opened(tabs: Tabs, example: StudioServer) -> Callable[..., Page]:
    """Opens a place of the studio."""

    def opened(*path: str) -> Page:
        return tabs.open(example.link("/" + "/".join(part.replace(":", "%3A").replace("/", "%2F") for part in path)))

    return opened


def test_a_conversation_is_forked_before_its_third_turn_continued_and_compared(
    opened: Callable[..., Page], example: StudioServer, walker: str, bell: Path, gallery: Gallery
) -> None:
    before = example.answer("transcript", address=walker)
    page = opened("a", walker)
    messages = page.get_by_role("log", name="Messages")
    expect(messages).to_contain_text(QUESTIONS[-1])

    third = messages.get_by_role("article").filter(has_text=QUESTIONS[2])
    third.get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("as they were before this turn")
    name = dialog.get_by_label("Name of the fork").input_value()
    assert name.startswith(f"{walker.partition(':')[2]}~")
    gallery.pictures(page, "studio-fork")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
    expect(messages).to_contain_text(QUESTIONS[1])
    expect(messages).not_to_contain_text(QUESTIONS[2])
    page.get_by_label("Model").select_option("mountaineer")
    expect(page.get_by_role("status").filter(has_text="The model 'mountaineer' answers.")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("And with children?")
    page.keyboard.press("Enter")
    expect(messages).to_contain_text("Climb the hill instead.")
    page.get_by_role("link", name="1 agent has dead letters").click()
    held = page.get_by_role("listitem").filter(has_text="ring")
    expect(held).to_contain_text("forked")
    expect(held).to_contain_text("Replay it to release it")
    gallery.pictures(page, "studio-fork-held")

    page.goto(example.link(f"/a/{walker.replace(':', '%3A')}"))
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("Other agent").fill(f"Walker:{name}")
    page.keyboard.press("Enter")
    both = page.get_by_role("group", name="Messages of both")
    articles = both.get_by_role("article")
    expect(articles).to_have_count(8)
    expect(articles.filter(has_text="in both")).to_have_count(4)
    expect(articles.filter(has_text="only in the first")).to_have_count(2)
    expect(articles.filter(has_text="only in the second")).to_have_count(2)
    expect(page.get_by_text("1 of 2 agents differs.")).to_be_visible()
    expect(page.get_by_role("group", name="State").get_by_role("row", name="/advice")).to_contain_text("Climb")
    walks = page.get_by_role("group", name="Table walks").get_by_role("row", name="3 place")
    expect(walks).to_contain_text("Take the path along the river.")
    expect(walks).to_contain_text("Climb the **hill** instead.")
    gallery.pictures(page, "studio-compare")

    due = example.answer("agenda", address=walker)["rows"]
    (schedule,) = [row for row in due if row["name"] == "ring"]
    example.ask("act", address=walker, id=schedule["id"], do="fire")
    until(bell.exists)
    assert bell.read_text() == "rang\n"
    assert example.answer("transcript", address=walker) == before


def test_an_agent_does_not_differ_from_itself(opened: Callable[..., Page], tabs: Tabs, walker: str) -> None:
    tabs.forgive(r"404 .*/diff")  # of an address that does not exist
    page = opened("a", walker)
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("Other agent").fill("Walker:none")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Other agent")).to_have_value("Walker:none")  # beside the error, to be changed

    page.get_by_label("Other agent").fill(walker)
    page.keyboard.press("Enter")
    expect(page.get_by_text("They do not differ")).to_be_visible()

    page.get_by_role("link", name="With another agent").click()
    expect(page.get_by_label("Other agent")).to_be_focused()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + patience()
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
