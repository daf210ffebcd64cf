"""What the studio shows with a token that may do less."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect
from tests.browser.looking import Gallery, flaws
from tests.browser.studio import ServedStudio, StudioServer
from tests.browser.tabs import Tabs

EXAMPLE = "studio"
SCREENS = ("/agents", "/inbox", "/schedules", "/schedules?show=dead", "/spending")
OF_THE_SERVER = ("/", "/machines", "/machines?show=slow", "/machines?show=cluster", "/machines?show=log")
OF_AN_AGENT = ("chat", "timeline", "state", "tables", "schedules", "runs", "files", "spending", "connections", "log")


def test_a_token_that_may_look_sees_no_content_and_no_buttons(
    tabs: Tabs, example: StudioServer, gallery: Gallery
) -> None:
    desk = f"Desk:secret-{uuid4().hex[:6]}"
    example.call(desk, "ask", "How long are rivers?")
    token = example.terminal("token", "--name", "ann", "--may", "look").strip()
    page = tabs.open(f"/studio/#t={token}")
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    of_the_agent = [f"/a/{desk.replace(':', '%3A')}/{tab}" for tab in OF_AN_AGENT]
    for place in (*SCREENS, *OF_THE_SERVER, *of_the_agent):
        page.evaluate("place => { location.hash = place }", place)
        expect(page.get_by_role("status").filter(has_text="…")).to_have_count(0)
        for word in ("Approve", "Deny", "Delete", "Restart", "Run", "Cancel", "Copy as test", "Send"):
            expect(page.get_by_role("button", name=word, exact=True)).to_have_count(0)
        expect(page.get_by_role("main")).not_to_contain_text(re.compile("How long|object Object"))
        assert flaws(page) == [], place
    page.evaluate("place => { location.hash = place }", of_the_agent[0])
    expect(page.get_by_role("log", name="Messages")).to_contain_text("hidden: object with 3 fields")
    gallery.pictures(page, "studio-look")


def test_a_token_that_is_limited_to_an_agent(tabs: Tabs, example: StudioServer) -> None:
    plant = f"Plant:own-{uuid4().hex[:6]}"
    example.call(plant, "grow", ["only"])
    token = example.terminal("token", "--name", "ann", "--may", "look,content", "--under", plant).strip()
    page = tabs.open(f"/studio/#t={token}")

    expect(page.get_by_role("tree", name="Agents")).to_contain_text("Branch only")
    expect(page.get_by_role("link", name="Machines")).to_have_count(0)
    for place in SCREENS:
        page.evaluate("place => { location.hash = place }", place)
        expect(page.get_by_role("status").filter(has_text="…")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)


class TestAnotherStart:
    """`sapwood serve` has another token after each start."""

    @pytest.fixture(scope="class")
    @staticmethod
    def example(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStudio]:
        server = ServedStudio(tmp_path_factory.mktemp("started"))
        yield server
        server.end(signal.SIGTERM)

    @staticmethod
    def test_who_signs_in_again_is_where_they_were(tabs: Tabs, example: ServedStudio) -> None:
        tabs.forgive("401 \\(Unauthorized\\)")
        example.call("Plant:oak", "grow", ["only"])
        page = tabs.open(example.link("/a/Plant%3Aoak/state"))
        expect(page.get_by_text("This agent has no state")).to_be_visible()

        example.crash()
        expect(page.get_by_role("alert")).to_contain_text("does not accept the token")
        page.get_by_label("Link or token").fill(example.token())
        page.keyboard.press("Enter")

        expect(page.get_by_text("This agent has no state")).to_be_visible()
