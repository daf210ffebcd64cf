"""The list of agents: a tree that is loaded as it is opened, and that shows what happens while one looks."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.looking import Gallery
from tests.browser.studio import StudioServer
from tests.browser.tabs import Tabs

EXAMPLE = "studio"


@pytest.fixture
def plant(example: StudioServer) -> str:
    """A root with 210 children, which is more than a page of them."""
    address = f"Plant:oak-{uuid4().hex[:6]}"
    example.call(address, "grow", [f"b{number}" for number in range(210)])
    return address


@pytest.fixture
def agents(tabs: Tabs, example: StudioServer, plant: str) -> Page:
    """A tab that shows all agents."""
    page = tabs.open(example.link("/agents"))
    expect(line(page, plant)).to_be_visible()
    return page


def line(page: Page, address: str) -> Locator:
    return page.locator(f'[data-address="{address}"]')


@pytest.mark.core("pages")
def test_a_tree_is_opened_with_the_keyboard(agents: Page, plant: str, gallery: Gallery) -> None:
    tree = agents.get_by_role("tree", name="Agents")
    expect(line(agents, plant)).to_contain_text("210")  # counted because it is on the screen

    tree.focus()
    while tree.get_attribute("aria-activedescendant") != line(agents, plant).get_attribute("id"):
        agents.keyboard.press("ArrowDown")
    agents.keyboard.press("ArrowRight")
    expect(line(agents, f"{plant}/Branch:b0")).to_be_visible()
    expect(line(agents, f"{plant}/Branch:b0").locator("button.twist")).to_have_count(0)  # it has no children
    gallery.picture(agents, "studio-agents-wide-light")

    tree.focus()
    agents.keyboard.press("End")  # the second page is loaded when its place is on the screen
    expect(line(agents, f"{plant}/Branch:b200")).to_be_attached()
    while not line(agents, f"{plant}/Branch:b209").count():
        agents.keyboard.press("PageDown")
    assert agents.get_by_role("treeitem").count() < 60  # the others are not in the document

    agents.keyboard.press("Home")
    while tree.get_attribute("aria-activedescendant") != line(agents, plant).get_attribute("id"):
        agents.keyboard.press("ArrowDown")
    agents.keyboard.press("ArrowLeft")
    expect(line(agents, f"{plant}/Branch:b0")).to_have_count(0)


def test_what_changes_is_shown_without_a_reload(agents: Page, plant: str, example: StudioServer) -> None:
    line(agents, plant).locator(".twist").click()
    expect(line(agents, f"{plant}/Branch:b0")).to_be_visible()
    other = f"Plant:fir-{uuid4().hex[:6]}"

    example.call(other, "grow", ["only"])
    example.call(other, "plan")

    expect(line(agents, other)).to_contain_text("1 dead letter")
    line(agents, other).locator(".twist").click()
    expect(line(agents, f"{other}/Branch:only")).to_be_visible()
    example.call(other, "grow", ["second"])
    expect(line(agents, f"{other}/Branch:second")).to_be_visible()


def test_agents_are_found_by_name(agents: Page, plant: str) -> None:
    agents.get_by_label("Find agents").fill("B209")

    found = agents.get_by_role("tree", name="Agents that match")
    expect(line(agents, f"{plant}/Branch:b209")).to_be_visible()
    expect(agents.get_by_role("status")).to_contain_text(re.compile(r"^\d+ of \d+ agents$"))
    expect(agents).to_have_url(re.compile("q=B209"))
    agents.get_by_label("Find agents").fill("no such agent")
    expect(agents.get_by_text("No agent matches")).to_be_visible()
    expect(found).to_have_count(0)
