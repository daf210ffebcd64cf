"""The list of agents: a tree that is loaded as it is opened, and that shows what happens while one looks."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.looking import DRAWN, Gallery
from tests.browser.studio import ServedStudio, StudioServer
from tests.browser.tabs import PATIENCE, Tabs

from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder

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


class TestAHundredThousandAgents:
    """1,000 roots with 100 children each, made by copying the files of one."""

    ROOTS = 1000

    @pytest.fixture(scope="class")
    @staticmethod
    def example(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStudio]:
        server = ServedStudio(tmp_path_factory.mktemp("many"))
        server.call("Plant:n0000", "grow", [f"b{number}" for number in range(100)])
        server.end(signal.SIGTERM)
        first = tree_folder(server.data, Address.parse("Plant:n0000"))
        for number in range(1, TestAHundredThousandAgents.ROOTS):
            copy = tree_folder(server.data, Address.parse(f"Plant:n{number:04}"))
            shutil.copytree(first, copy)
            (copy / "address").write_text(f"Plant:n{number:04}")
        server.start()
        yield server
        server.end(signal.SIGTERM)

    @staticmethod
    def test_they_are_loaded_as_one_scrolls(tabs: Tabs, example: ServedStudio) -> None:
        page = tabs.open(example.link("/agents"))
        tree = page.get_by_role("tree", name="Agents")
        expect(page.get_by_text("1,000 roots")).to_be_visible()
        expect(line(page, "Plant:n0000")).to_contain_text("100")

        tree.focus()
        while not line(page, "Plant:n0999").count():
            page.keyboard.press("End")
            page.evaluate(DRAWN)
        assert tree.get_by_role("treeitem").count() < 60
        page.keyboard.press("End")
        expect(line(page, "Plant:n0999")).to_contain_text("100")
        page.keyboard.press("ArrowRight")
        expect(line(page, "Plant:n0999/Branch:b0")).to_be_attached()

    @staticmethod
    def test_one_of_them_is_found(tabs: Tabs, example: ServedStudio) -> None:
        page = tabs.open(example.link("/agents"))
        page.get_by_label("Find agents").fill("n0777/branch:b77")

        expect(line(page, "Plant:n0777/Branch:b77")).to_be_visible(timeout=2 * PATIENCE)
