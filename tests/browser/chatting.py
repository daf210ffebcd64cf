"""What people do with a conversation on a page, and see of it. Where there are several, `where` is one of them."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

Where = Page | Locator


def say(where: Where, text: str) -> None:
    box = where.get_by_role("textbox")
    box.fill(text)
    box.press("Enter")


def press(where: Where, name: str) -> None:
    where.get_by_role("button", name=name, exact=True).click()


def speaks(where: Where, length: int = 1) -> None:
    """Wait until the last answer has so many characters."""
    expect(where.locator(".is-assistant .text").last).to_have_text(re.compile(rf"[\s\S]{{{length},}}"))


def rests(where: Where) -> None:
    """Wait until nothing is being said."""
    expect(where.get_by_role("log")).to_have_attribute("aria-busy", "false")


def stored(page: Page, path: str) -> list[dict[str, Any]]:
    """Return the messages that the agent at this path has stored."""
    return page.request.get(f"{path}/get-messages").json()


def words(text: str) -> str:
    """Return a text without what differs between its Markdown and the page."""
    return re.sub(r"(?m)^(#+|-|\d+\.) |^```\w*$|[\s*`]", "", text)


def written(message: dict[str, Any]) -> str:
    """Return the words of a stored message."""
    return words("".join(part["text"] for part in message["parts"] if part["type"] == "text"))
