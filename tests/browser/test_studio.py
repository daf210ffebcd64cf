"""In the studio one sees what agents are, did and will do; with a link, a keyboard, a small screen, or a lost token."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.browser.looking import Gallery, flaws
from tests.browser.studio import StudioServer
from tests.browser.tabs import NARROW, Tabs

EXAMPLE = "studio"
UNAUTHENTICATED = "401 \\(Unauthorized\\)"


@pytest.fixture
def studio(tabs: Tabs, example: StudioServer) -> Page:
    """A tab that opened the link."""
    page = tabs.open(example.link())
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    return page


@pytest.mark.core("pages")
def test_the_link_signs_in_and_leaves_no_token_in_the_url(studio: Page, example: StudioServer) -> None:
    expect(studio.get_by_role("heading", name="Now")).to_be_visible()
    assert example.token() not in studio.url

    studio.reload()

    expect(studio.get_by_role("heading", name="Now")).to_be_visible()
    assert example.token() not in example.log().partition("studio: ")[2].partition("\n")[2]


def test_a_token_that_is_refused_leads_to_the_sign_in(tabs: Tabs, example: StudioServer) -> None:
    tabs.forgive(UNAUTHENTICATED)
    page = tabs.open("/studio/#t=old")

    expect(page.get_by_role("alert")).to_contain_text("does not accept the token")
    page.get_by_label("Link or token").fill(example.link())  # the whole link will do
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Now")).to_be_visible()


def test_another_tab_has_to_sign_in(tabs: Tabs, studio: Page) -> None:
    page = tabs.open("/studio/")

    expect(page.get_by_role("heading", name="Sign in to the studio")).to_be_visible()
    expect(page.get_by_label("Link or token")).to_be_focused()


def test_now_shows_the_processes(studio: Page, gallery: Gallery) -> None:
    processes = studio.get_by_role("group", name="Processes")

    expect(processes).to_contain_text("ready")
    expect(processes).to_contain_text(re.compile(r"\d+ %"))
    gallery.pictures(studio, "studio-now")


SCREENS = ("", "agents", "inbox", "schedules", "schedules?show=dead", "spending", "machines", "a/Plant%3Aoak/tables")
SCREENS += tuple(f"machines?show={name}" for name in ("slow", "cluster", "log"))


@pytest.mark.core("pages")
def test_every_screen_asks_only_this_server_and_leaves_nothing(tabs: Tabs, example: StudioServer) -> None:
    example.call("Plant:oak", "grow", ["b1"])
    page = tabs.open(example.link())
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for place in SCREENS:
        page.evaluate("place => { location.hash = '/' + place }", place)
        expect(page.get_by_role("status").filter(has_text="…")).to_have_count(0)
        expect(page.get_by_role("main").locator(".note.is-bad")).to_have_count(0)
        assert flaws(page) == [], place

    assert {url.removeprefix(example.url).split("/")[1] for url in asked} == {"studio", "_sapwood"}
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0


def test_every_screen_fits_a_small_one_in_the_dark(tabs: Tabs, example: StudioServer) -> None:
    example.call("Plant:oak", "grow", ["b1"])
    page = tabs.open(example.link())
    page.set_viewport_size(NARROW)
    page.emulate_media(color_scheme="dark")
    for place in SCREENS:
        page.evaluate("place => { location.hash = '/' + place }", place)
        expect(page.get_by_role("status").filter(has_text="…")).to_have_count(0)
        assert flaws(page) == [], place


@pytest.mark.realtime("measures what a browser does while nothing happens")
@pytest.mark.parametrize("place", ["/", "/agents", "/inbox", "/machines"])
def test_an_idle_page_costs_next_to_nothing(tabs: Tabs, example: StudioServer, place: str) -> None:
    page = tabs.open(example.link(place))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    browser = page.context.new_cdp_session(page)
    browser.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.wait_for_timeout(2000)  # until it is idle

    def busy() -> float:
        metrics = browser.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    before = busy()
    page.wait_for_timeout(10_000)
    assert (busy() - before) / 10 <= 0.01
