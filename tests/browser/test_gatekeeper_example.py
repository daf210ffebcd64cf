"""What a model proposes waits for a person: at a page, in a second tab, at a terminal, also if the server is killed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.chatting import press, rests, say
from tests.browser.helping import is_at, panels
from tests.browser.looking import Gallery
from tests.browser.serving import Accident, Example
from tests.browser.tabs import NARROW, Tabs

EXAMPLE = "gatekeeper"
ENVIRONMENT = {"PAUSE": "0.005"}
DONE = "Approved. Done: change Ada Lovelace (1): city London → Paris."


def come(tabs: Tabs, user: str, *, gate: bool = False, by: str = "somebody") -> Page:
    """Open the page, or only its gate, and wait until it is connected."""
    page = tabs.open(f"/?user={user}{'&gate' if gate else ''}", by=by)
    expect(page.locator(".head .badge").first).to_have_text("connected")
    return page


def tell(page: Page, text: str) -> None:
    say(page.get_by_role("main"), text)


def cards(page: Page) -> Locator:
    return page.locator(".proposal")


def card(page: Page, title: str) -> Locator:
    return cards(page).filter(has=page.get_by_role("heading", name=title))


def begin(where: Locator, what: str) -> None:
    """Press one of the three buttons of a proposal."""
    where.get_by_role("button", name=re.compile(rf"^{what}\b")).click()


def waits(page: Page, many: int = 1) -> None:
    expect(cards(page)).to_have_count(many)


def answered(page: Page, text: str) -> None:
    """Wait until the assistant has said this, and says no more."""
    expect(page.locator(".is-assistant .text").last).to_contain_text(text)
    rests(page)


def kept(example: Example, user: str, id: int) -> dict[str, Any]:
    """Return a customer as it is stored; nothing of one that is not."""
    rows = example.rows(
        f"Gatekeeper:{user}/Records:customers", f"SELECT name, email, city, plan FROM customers WHERE id = {id}"
    )
    return dict(zip(("name", "email", "city", "plan"), rows[0], strict=True)) if rows else {}


def verdicts(example: Example, user: str) -> list[str]:
    """Return what was decided, in its order."""
    rows = example.rows(f"Gatekeeper:{user}/Records:customers", "SELECT verdict FROM decisions ORDER BY number")
    return [verdict for (verdict,) in rows]


@pytest.mark.promise("A-247")
@pytest.mark.core("pages")
def test_nothing_changes_before_somebody_approves_and_then_it_does(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    expect(page.locator(".customers tbody tr")).to_have_count(6)
    press(page, "Move Ada to Paris")
    waits(page)
    expect(page.locator(".proposed .badge")).to_have_text("at the gate")
    assert kept(example, user, 1)["city"] == "London"
    accident.now()
    page.reload()
    waits(page)

    begin(card(page, "Change Ada Lovelace"), "Approve")
    answered(page, DONE)

    waits(page, 0)
    expect(page.locator(".proposed .badge")).to_have_text("done")
    expect(page.locator(".customers tbody tr").first).to_contain_text("Paris")
    expect(page.locator(".decisions li")).to_have_count(1)
    assert kept(example, user, 1)["city"] == "Paris"


def test_what_was_approved_when_the_server_was_killed_is_done_once(tabs: Tabs, example: Example, user: str) -> None:
    page = come(tabs, user)
    tell(page, "Add Linus Torvalds, linus@kernel.example, Portland")
    waits(page)

    begin(card(page, "Add Linus Torvalds"), "Approve")
    example.crash()
    # If the press was lost with the server, the proposal is there still; if it was heard, it is done.
    expect(page.locator(".head .badge").first).to_have_text("connected")
    expect(page.locator(".proposal .button.is-main:enabled, .decisions li").first).to_be_visible()
    if verdicts(example, user) == []:
        begin(card(page, "Add Linus Torvalds"), "Approve")

    answered(page, "Done: add Linus Torvalds.")
    assert verdicts(example, user) == ["approved"]
    assert kept(example, user, 7)["city"] == "Portland"
    assert kept(example, user, 8) == {}


def test_a_proposal_is_edited_before_it_is_approved(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    tell(page, "Set the email of Ada to unknown")
    waits(page)
    ada = card(page, "Change Ada Lovelace")
    expect(ada).to_contain_text("The email must contain an @")
    expect(ada.get_by_role("button", name=re.compile("^Approve"))).to_be_disabled()
    begin(ada, "Edit")
    expect(ada.get_by_label("email")).to_be_focused()
    ada.get_by_label("email").press("Escape")
    expect(ada.get_by_role("button", name=re.compile("^Edit"))).to_be_focused()
    accident.now()
    expect(page.locator(".head .badge").first).to_have_text("connected")

    begin(ada, "Edit")
    ada.get_by_label("email").fill("ada@new.example")
    ada.get_by_label("plan").select_option("team")
    press(ada, "Approve as edited")

    answered(page, "Approved, with other values.")
    expect(page.locator(".proposed .badge")).to_have_text("done, edited")
    assert kept(example, user, 1) == {
        "name": "Ada Lovelace",
        "email": "ada@new.example",
        "city": "London",
        "plan": "team",
    }
    assert verdicts(example, user) == ["edited"]


def test_a_proposal_is_rejected_and_the_model_says_why(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    tell(page, "Delete all customers in New York")
    waits(page, 2)
    first = cards(page).first
    begin(first, "Reject")
    reason = first.get_by_label("Why not?")
    expect(reason).to_be_focused()
    reason.fill("She stays.")
    reason.press("Enter")
    waits(page, 1)
    expect(cards(page).get_by_role("button", name=re.compile("^Approve"))).to_be_focused()
    accident.now()
    expect(page.locator(".head .badge").first).to_have_text("connected")

    begin(cards(page).first, "Approve")

    answered(page, "She stays.")
    expect(page.locator(".proposed .badge")).to_have_text(["rejected", "done"])
    expect(page.locator(".customers tbody tr")).to_have_count(5)
    assert (kept(example, user, 3)["name"], kept(example, user, 5)) == ("Grace Hopper", {})


def test_whoever_has_the_gate_in_a_second_tab_decides_there_and_the_first_decision_counts(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    gate, third = come(tabs, user, gate=True, by="boss"), come(tabs, user, gate=True, by="boss")
    expect(gate.locator(".queue")).to_contain_text("Nothing waits.")
    tell(page, "Move Ada to Paris")
    for tab in (page, gate, third):
        waits(tab)
    begin(card(third, "Change Ada Lovelace"), "Edit")  # and is not ready before somebody else has decided
    accident.now()
    for tab in (page, gate, third):
        expect(tab.locator(".head .badge").first).to_have_text("connected")

    begin(card(gate, "Change Ada Lovelace"), "Approve")

    answered(page, DONE)
    for tab in (page, gate, third):
        waits(tab, 0)
        expect(tab.locator(".decisions li")).to_have_text(re.compile("approved.*London → Paris"))
    assert verdicts(example, user) == ["approved"]


def test_somebody_at_a_terminal_sees_what_waits_and_decides(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    tell(page, "Delete all customers in New York")
    waits(page, 2)
    cards(page).first.get_by_text("From a terminal").click()
    line = cards(page).first.locator("pre").inner_text().splitlines()[0]
    assert re.fullmatch(rf"sapwood call Gatekeeper:{user} accept [0-9a-f]{{12}}", line)
    accident.now()

    gatekeeper = f"Gatekeeper:{user}"
    listed = json.loads(example.terminal("call", gatekeeper, "waiting"))
    assert [one["what"] for one in listed] == ["delete Grace Hopper (3)", "delete Grace Hopper (5)"]
    assert listed[0]["seal"] == line.rpartition(" ")[2]
    assert '"approved"' in example.terminal(*line.split()[1:])
    assert '"rejected"' in example.terminal("call", gatekeeper, "reject", listed[1]["seal"], "Enough.")

    answered(page, "Enough.")
    expect(page.locator(".customers tbody tr")).to_have_count(5)
    assert verdicts(example, user) == ["approved", "rejected"]


def test_a_helper_of_a_helper_waits_at_the_gate_and_goes_on_from_there(
    tabs: Tabs, example: Example, user: str, accident: Accident
) -> None:
    page = come(tabs, user)
    tell(page, "Tidy up the customers")
    waits(page, 2)
    expect(cards(page).locator(".by")).to_have_text(["by Auditor → Clerk"] * 2)
    is_at(panels(page).first, "running")
    accident.now()
    expect(page.locator(".head .badge").first).to_have_text("connected")
    waits(page, 2)

    begin(card(page, "Change Katherine Johnson"), "Approve")
    waits(page, 1)
    begin(card(page, "Delete Grace Hopper"), "Reject")
    begin(card(page, "Delete Grace Hopper").locator("form"), "Reject")

    answered(page, "I found 2 mistakes.")
    is_at(panels(page).first, "completed")
    waits(page, 0)
    assert kept(example, user, 4)["email"] == "katherine@orbit.example"
    assert kept(example, user, 5)["name"] == "Grace Hopper"


def test_what_is_taken_back_waits_no_more(tabs: Tabs, example: Example, user: str, accident: Accident) -> None:
    page = come(tabs, user)
    gate = come(tabs, user, gate=True, by="boss")
    tell(page, "Tidy up the customers")
    waits(gate, 2)
    accident.now()
    for tab in (page, gate):
        expect(tab.locator(".head .badge").first).to_have_text("connected")
        waits(tab, 2)
    press(page, "Stop")
    waits(gate, 0)
    rests(page)

    tell(page, "Delete Alan")
    waits(gate, 1)
    tell(page, "Thanks")
    answered(page, "You are welcome.")
    waits(gate, 0)
    assert verdicts(example, user) == []
    assert kept(example, user, 2)["name"] == "Alan Turing"


def test_while_the_server_is_away_the_page_says_so_and_what_was_decided_meanwhile_is_done(
    tabs: Tabs, example: Example, gallery: Gallery, user: str
) -> None:
    page = come(tabs, user)
    tell(page, "Move Ada to Paris")
    waits(page)
    with example.away():
        expect(page.locator(".head .badge").first).to_have_text("connecting")
        gallery.picture(page, "gatekeeper-away-wide-light")
        begin(card(page, "Change Ada Lovelace"), "Approve")
    answered(page, DONE)
    assert verdicts(example, user) == ["approved"]


def test_a_model_that_is_told_not_to_ask_has_no_tool_for_it(tabs: Tabs, example: Example, user: str) -> None:
    page = come(tabs, user)
    press(page, "Delete Ada, and do not ask")

    answered(page, "No tool changes the database.")
    waits(page, 0)
    assert kept(example, user, 1)["name"] == "Ada Lovelace"
    assert page.request.get(f"/agents/gatekeeper/{user}/sub/records/customers").status == 403


def test_everything_can_be_done_with_the_keyboard(tabs: Tabs, example: Example, user: str) -> None:
    page = come(tabs, user)
    expect(page.get_by_role("textbox", name="Ask for a change")).to_be_focused()
    page.keyboard.type("Delete all customers in New York")
    page.keyboard.press("Enter")
    waits(page, 2)
    cards(page).first.get_by_role("button", name=re.compile("^Reject")).focus()
    page.keyboard.press("Enter")
    page.keyboard.type("No")
    page.keyboard.press("Enter")
    waits(page, 1)
    expect(cards(page).get_by_role("button", name=re.compile("^Approve"))).to_be_focused()
    page.keyboard.press("Enter")

    waits(page, 0)
    expect(page.get_by_role("region", name="Waiting for you")).to_be_focused()
    assert verdicts(example, user) == ["rejected", "approved"]


def test_on_a_small_screen_a_button_opens_the_gate(tabs: Tabs, user: str, accident: Accident) -> None:
    page = come(tabs, user)
    page.set_viewport_size(NARROW)
    tell(page, "Move Ada to Paris")
    opener = page.get_by_role("button", name=re.compile("^The gate: 1$"))
    expect(opener).to_be_visible()
    accident.now()
    expect(page.locator(".head .badge").first).to_have_text("connected")

    opener.click()
    begin(card(page, "Change Ada Lovelace"), "Approve")
    waits(page, 0)
    page.keyboard.press("Escape")

    expect(page.get_by_role("button", name=re.compile("^The gate: 0$"))).to_be_focused()
    answered(page, DONE)


def test_the_page_is_good_to_look_at(tabs: Tabs, gallery: Gallery, user: str) -> None:
    page = come(tabs, user)
    expect(page.locator(".customers tbody tr")).to_have_count(6)
    gallery.picture(page, "gatekeeper-empty-wide-light")
    tell(page, "Move Ada to Paris")
    waits(page)
    begin(cards(page), "Approve")
    answered(page, DONE)
    tell(page, "Tidy up the customers")
    waits(page, 2)
    gallery.pictures(page, "gatekeeper")
    begin(card(page, "Change Katherine Johnson"), "Edit")
    begin(card(page, "Delete Grace Hopper"), "Reject")
    gallery.picture(page, "gatekeeper-editing-wide-light")
    page.set_viewport_size(NARROW)
    page.get_by_role("button", name=re.compile("^The gate: 2$")).click()
    page.emulate_media(color_scheme="dark")
    gallery.picture(page, "gatekeeper-side-narrow-dark")


def test_the_gate_by_itself_is_good_to_look_at(tabs: Tabs, gallery: Gallery) -> None:
    page, gate = come(tabs, "main"), come(tabs, "main", gate=True)
    tell(page, "Delete all customers in New York")
    waits(gate, 2)
    begin(cards(gate).first, "Approve")
    waits(gate, 1)
    gate.get_by_text("Why the gate cannot be bypassed").click()
    gate.get_by_text("From a terminal").click()
    gallery.pictures(gate, "gatekeeper-gate")
