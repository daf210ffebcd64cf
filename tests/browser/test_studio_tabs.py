"""Tabs that a class adds to the studio: they show and follow their agent, call its methods, and reach nothing else."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect
from tests.browser.looking import Gallery
from tests.browser.studio import StudioServer
from tests.browser.tabs import Tabs

AXE = "target origin provided .* does not match the recipient window's origin"
"""What it says of axe, which looks for itself in frames."""
BLOCKED = (
    "Content Security Policy|sandboxed|Unsafe attempt to initiate navigation|Not allowed to load"
    "|net::ERR_|Blocked|as a fallback"
)
"""What Chromium says of what a page must not do."""


class TabServer(StudioServer):
    """`sapwood dev` with the example of a tab, and with a hostile one."""

    app = Path(__file__).with_name("studio_tabs_app.py")


@pytest.fixture(autouse=True)
def forgiven(tabs: Tabs) -> None:
    tabs.forgive(AXE)


@pytest.fixture(scope="module")
def example(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TabServer]:
    server = TabServer(tmp_path_factory.mktemp("studio-tabs"))
    server.link()
    yield server
    server.end(signal.SIGTERM)


def opened(tabs: Tabs, example: TabServer, address: str, title: str, token: str = "") -> tuple[Page, FrameLocator]:
    """Open the first tab that the class of an agent adds."""
    place = f"/a/{address.replace(':', '%3A')}"
    page = tabs.open(f"/studio/#t={token}" if token else example.link(place))
    if token:
        page.evaluate("place => { location.hash = place }", place)
    page.get_by_role("link", name=title, exact=True).click()
    return page, page.frame_locator(f"iframe[title={title}]")


def test_a_tab_shows_its_agent_calls_its_methods_and_follows_it(
    tabs: Tabs, example: TabServer, gallery: Gallery
) -> None:
    address = f"Greenhouse:north-{uuid4().hex[:6]}"
    for _ in range(6):
        example.call(address, "measure")
    page, climate = opened(tabs, example, address, "Climate")
    now = climate.get_by_label("Temperature", exact=True)
    expect(now).to_have_text("20 °C")

    climate.get_by_label("Target").fill("22")
    climate.get_by_role("button", name="Set target").click()
    climate.get_by_role("button", name="Measure now").click()
    expect(now).to_have_text("21 °C")
    assert example.answer("state", address=address)["state"]["target"] == 22
    gallery.pictures(page, "studio-tab")

    example.call(address, "measure")  # by another client
    expect(now).to_have_text("22 °C")
    climate.get_by_label("Target").fill("99")
    climate.get_by_role("button", name="Set target").click()
    tabs.forgive("tab-call")  # it answers with the error of the method
    expect(climate.get_by_role("alert")).to_contain_text("target must be from 5 to 35, got 99.")
    lines = (example.data / "operator.jsonl").read_text().splitlines()
    assert any('"tab-call"' in line and '"method": "set_target"' in line and address in line for line in lines)


def test_a_token_without_act_sees_a_tab_without_buttons(tabs: Tabs, example: TabServer) -> None:
    address = f"Greenhouse:south-{uuid4().hex[:6]}"
    example.call(address, "measure")
    token = example.terminal("token", "--name", "ann", "--may", "look,content").strip()
    _, climate = opened(tabs, example, address, "Climate", token)

    expect(climate.get_by_label("Temperature", exact=True)).to_have_text("17 °C")
    expect(climate.get_by_role("button", name="Measure now")).to_be_disabled()


def test_a_hostile_page_gets_nothing_but_what_it_may_have(tabs: Tabs, example: TabServer) -> None:
    tabs.forgive(BLOCKED)
    tabs.forgive("403|404")
    address = f"Trespasser:a-{uuid4().hex[:6]}"
    example.call(address, "hello")
    asked: list[str] = []
    page, _ = opened(tabs, example, address, "Hostile")
    page.on("response", lambda response: asked.append(response.url))
    page.reload()
    tried = page.frame_locator("iframe[title=Hostile]").locator("#tried")
    expect(tried).to_have_attribute("data-done", "yes", timeout=60_000)

    said = dict(line.split(": ", 1) for line in tried.locator("li").all_inner_texts())
    assert {name for name, what in said.items() if what != "refused"} == {"call"}, said
    assert said["call"] == "got hello"
    assert "taken" not in page.url
    own = re.compile(rf"{re.escape(example.url)}/(studio/(tabs/.*|[\w.]*)|_sapwood/[\w-]+)$")
    assert [url for url in asked if not own.fullmatch(url)] == []
    assert example.answer("state", address=address)["state"] == {"note": "mine"}
    assert len([one for one in asked if one.endswith("/studio/")]) == 1  # and no frame
    # To another place on this server, it cannot go either.
    with page.expect_event("framenavigated", lambda frame: frame.url.startswith("chrome-error:")):
        page.frames[1].evaluate("() => { location.href = '/agents/trespasser/moved' }")
    # A request to its URL would have created an agent.
    roots = example.answer("agents", type="Trespasser")["rows"]
    assert [row["address"] for row in roots] == [address]
