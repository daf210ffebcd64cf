"""An operator who has only the studio finds five faults of a running app, and mends them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.browser.looking import Gallery
from tests.browser.studio import ServedStudio
from tests.browser.tabs import Tabs

LETTER = re.compile("send_mail")


class FaultyServer(ServedStudio):
    """`sapwood serve --studio` with the app that has five faults."""

    app = Path(__file__).with_name("studio_faults_app.py")


class Operator:
    """A person at the studio, whose clicks are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        self.counted: dict[str, int] = {}

    def click(self, what: Locator) -> None:
        self.clicks += 1
        what.click()

    def begin(self) -> None:
        """Go back to the first screen."""
        self.click(self.page.get_by_role("link", name="Now", exact=True))

    def confirm(self, effect: str) -> None:
        """Read what will happen, and press Enter."""
        dialog = self.page.get_by_role("dialog")
        expect(dialog).to_contain_text(effect)
        expect(dialog.locator("button[type=submit]")).to_be_focused()
        self.clicks += 1
        self.page.keyboard.press("Enter")
        expect(dialog).to_have_count(0)

    def mended(self, fault: str) -> None:
        self.counted[fault] = self.clicks
        self.clicks = 0


@pytest.fixture(scope="module")
def example(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    server = FaultyServer(tmp_path_factory.mktemp("studio-faults"))
    server.call("Postman:main", "prepare")
    server.crash(RENAMED="yes")
    (letter,) = server.answer("agenda", address="Postman:main")["rows"]
    server.ask("act", address="Postman:main", id=letter["id"], do="fire")
    for address in ("ClaimsDesk:anna", "Courier:north", "Archive:main", "Survey:field"):
        server.call(address, "prepare")
    yield server
    server.end(signal.SIGTERM)


def test_five_faults_are_found_and_mended(tabs: Tabs, example: FaultyServer, gallery: Gallery) -> None:
    operator = Operator(page := tabs.open(example.link()))
    attention = page.get_by_role("list", name="Needs attention")
    for fault in ("2 questions wait for a person", "1 dead letter", "deliver of Courier:north failed", "Archive.index"):
        expect(attention).to_contain_text(fault)  # a busy machine may have another slow method
    gallery.pictures(page, "studio-faults")

    def state(address: str) -> Any:
        return example.answer("state", address=address)["state"]

    def turn(address: str) -> str:
        return example.answer("works", address=address)["rows"][0]["status"]

    # An approval that waits.
    operator.click(attention.get_by_role("link", name=re.compile("questions wait")))
    claim = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="ClaimsDesk anna"))
    expect(claim).to_contain_text("euros")
    operator.click(claim.get_by_role("button", name="Approve refund"))
    expect(claim).to_have_count(0)
    operator.mended("a stuck approval")

    # A sub-agent that is over its budget: its parent waits too.
    operator.begin()
    operator.click(attention.get_by_role("link", name=re.compile("question waits")))
    digger = page.get_by_role("listitem").filter(has_text="150 tokens")
    operator.click(digger.get_by_role("button", name="allow"))
    expect(page.get_by_text("Nothing waits for a person")).to_be_visible()
    operator.mended("a sub-agent over its budget")

    # A call whose method has another name now.
    operator.begin()
    operator.click(attention.get_by_role("link", name=re.compile("1 dead letter")))
    letter = page.get_by_role("listitem").filter(has_text=LETTER)
    expect(letter).to_contain_text("has no method 'send_mail'")
    letter.get_by_label("New name of send_mail").fill("send_letter")
    gallery.pictures(page, "studio-renamed")
    operator.click(letter.get_by_role("button", name="Replay as send_letter"))
    operator.confirm("Calls send_letter() with the arguments of send_mail().")
    expect(page.get_by_text("There are no dead letters")).to_be_visible()
    operator.mended("a dead letter after a rename")

    # A method that computes for too long, called by a schedule.
    operator.begin()
    operator.click(attention.get_by_role("link", name=re.compile("Archive.index kept its process")))
    operator.click(page.get_by_role("listitem").get_by_role("link", name="Archive main").first)
    operator.click(page.get_by_label("Archive main").get_by_role("link", name="Schedules"))
    operator.click(page.get_by_role("row", name="index").get_by_role("button", name="Cancel"))
    operator.confirm("Cancels the schedule of index().")
    expect(page.get_by_text("No call is scheduled or queued")).to_be_visible()
    operator.mended("a slow method")

    # A call that fails and is retried, many times a second.
    operator.begin()
    operator.click(attention.get_by_role("link", name=re.compile("deliver of Courier:north failed")))
    storm = page.get_by_role("row", name="deliver")
    expect(storm).to_contain_text("depot-3 does not answer: parcel 7 stays here")
    expect(storm).to_contain_text(re.compile(r"failed \d\d+×"))
    operator.click(storm.get_by_role("button", name="Cancel"))
    operator.confirm("Removes deliver() from the queue 'parcels'.")
    expect(page.get_by_text("No call is scheduled or queued")).to_be_visible()
    operator.mended("a retry storm")
    operator.begin()
    expect(attention.get_by_role("link", name=re.compile("deliver"))).to_have_count(0)

    assert turn("ClaimsDesk:anna") == "completed"
    assert turn("Survey:field") == "completed"
    assert state("Postman:main") == {"sent": ["ann"]}
    assert example.answer("agenda")["rows"] == example.answer("dead-letters")["letters"] == []
    print("\n".join(f"{clicks} clicks: {fault}" for fault, clicks in operator.counted.items()))
    assert max(operator.counted.values()) <= 6
