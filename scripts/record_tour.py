"""Record a tour of the studio as an animation: a real server, in a real browser.

Starts `sapwood dev` with agents that have something to do, opens the studio in Chromium, works with it, and joins what
was on the screen. Run it in the checkout: `just tour`. To write another file, pass its name.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import FrameLocator, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.animation import animation, durations  # noqa: E402 - it is a script
from tests.browser.studio import StudioServer  # noqa: E402
from tests.browser.tabs import launch  # noqa: E402

TOUR = ROOT / "docs/how-to/pictures/studio-tour.webp"
WIDTH, HEIGHT = 1280, 800
QUALITY = 62
LONGEST = 60_000
"""Milliseconds of the tour at most."""
LARGEST = 2_000_000
STEP = 0.25
"""Seconds between two frames while something happens."""
DESK = "Desk:rivers"
CAPTION = """text => {
  let caption = document.getElementById("caption");
  if (!caption) {
    caption = document.body.appendChild(document.createElement("div"));
    caption.id = "caption";
    Object.assign(caption.style, { position: "fixed", left: "50%", bottom: "22px", transform: "translateX(-50%)",
      padding: "9px 20px", borderRadius: "20px", background: "#1c2420", color: "#fff", font: "600 17px system-ui",
      boxShadow: "0 4px 18px #0004", zIndex: 99, whiteSpace: "nowrap", pointerEvents: "none" });
    caption.popover = "manual";
    caption.style.margin = caption.style.border = "0";
    caption.style.inset = "auto auto 22px 50%";
  }
  caption.textContent = text;
  caption.hidePopover();
  caption.showPopover();
}"""
POINTER = """([x, y]) => {
  let pointer = document.getElementById("pointer");
  if (!pointer) {
    pointer = document.body.appendChild(document.createElement("div"));
    pointer.id = "pointer";
    pointer.popover = "manual";
    Object.assign(pointer.style, { position: "fixed", width: "30px", height: "30px", borderRadius: "50%", margin: "0",
      padding: "0", border: "3px solid #d9622b", background: "#d9622b33", pointerEvents: "none" });
  }
  pointer.style.inset = `${y - 15}px auto auto ${x - 15}px`;
  pointer.hidePopover();
  if (x >= 0) pointer.showPopover();
}"""
CHECK = """async data => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const decoder = new ImageDecoder({ data: bytes, type: "image/webp" });
  await decoder.tracks.ready;
  const last = decoder.tracks.selectedTrack.frameCount - 1;
  const { image } = await decoder.decode({ frameIndex: last });
  return [last + 1, image.displayWidth, image.displayHeight];
}"""


class TourServer(StudioServer):
    """`sapwood dev` with the agents of the tour."""

    app = Path(__file__).with_name("tour_app.py")


class Recording:
    """Takes pictures of a page, and knows for how long each is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._browser = page.context.new_cdp_session(page)
        self.frames: list[tuple[bytes, int]] = []

    def frame(self, seconds: float) -> None:
        """Show the page as it is now, for so long."""
        options = {"format": "webp", "quality": QUALITY}
        picture = b64decode(self._browser.send("Page.captureScreenshot", options)["data"])
        shown = round(1000 * seconds)
        if self.frames and self.frames[-1][0] == picture:
            shown += self.frames.pop()[1]
        self.frames.append((picture, shown))

    def watch(self, seconds: float) -> None:
        """Show what happens, as fast as it happens."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.frame(STEP)
            self.page.wait_for_timeout(1000 * STEP)

    def say(self, text: str) -> None:
        """Show a sentence."""
        self.page.evaluate(CAPTION, text)

    def click(self, what: Locator, *, seconds: float = 0.7) -> None:
        """Point to something, then click it."""
        what.scroll_into_view_if_needed()
        box = what.bounding_box()
        assert box is not None
        self.page.evaluate(POINTER, [box["x"] + min(box["width"] / 2, 200), box["y"] + box["height"] / 2])
        self.frame(seconds)
        self.page.evaluate(POINTER, [-1, -1])
        what.click()


def look_around(tour: Recording, server: TourServer) -> None:
    """Show the first screen, and agents that come into being."""
    page = tour.page
    expect(page.get_by_role("group", name="Processes")).to_contain_text(re.compile(r"\d+ %"))
    tour.say("sapwood dev opens the studio: local, offline, no account")
    tour.frame(3.5)
    tour.click(page.get_by_role("link", name="Agents", exact=True))
    tour.say("Every agent with its sub-agents, live")
    tree = page.get_by_role("tree", name="Agents")
    expect(tree).to_contain_text("Plant oak")
    tour.frame(1.2)
    tour.click(tree.locator("[data-address='Plant:oak'] .twist"))
    expect(tree).to_contain_text("Branch east")
    tour.frame(1.5)
    server.call("Plant:oak", "grow", ["south", "west"])
    expect(tree).to_contain_text("Branch west")
    tour.frame(1.8)


def converse(tour: Recording, server: TourServer) -> None:
    """Show a turn with sub-agents, an approval, and what became of it."""
    page = tour.page
    asking = threading.Thread(target=server.call, args=(DESK, "ask", "Which river is the longest?"))
    asking.start()
    tour.click(page.locator(f"[data-address='{DESK}'] a"), seconds=0.5)
    messages = page.get_by_role("log", name="Messages")
    tour.say("A conversation as it happens: two sub-agents research")
    expect(messages).to_contain_text("Which river is the longest?")
    tour.watch(5)
    expect(messages).to_contain_text("needs your approval")
    asking.join()
    tour.frame(1.5)
    tour.click(page.get_by_role("link", name="Answer"))
    approve = page.get_by_role("button", name="Approve publish")
    expect(approve).to_be_visible()
    tour.say("The inbox: everything that waits for a person")
    tour.frame(1.8)
    tour.click(approve)
    expect(page.get_by_text("Nothing waits for a person")).to_be_visible()
    page.go_back()
    expect(messages).to_be_visible()
    tour.say("The turn continues where it waited")
    tour.watch(2)
    expect(messages).to_contain_text("turn completed in")
    tour.frame(1.5)


def look_into(tour: Recording) -> None:
    """Show where the time of the turn went, and the turn as a test."""
    page = tour.page
    tour.click(page.get_by_role("log", name="Messages").get_by_role("link", name="Timeline").last)
    timeline = page.get_by_role("tree", name="Timeline")
    expect(timeline.get_by_role("treeitem", name="wait approval publish")).to_be_visible()
    tour.say("Where the time went: models, tools, waits, sub-agents")
    tour.frame(3.5)
    tour.click(timeline.get_by_role("treeitem", name="Step 3").last)
    expect(page.get_by_role("list", name="Messages")).to_contain_text("Which river")
    tour.say("Exactly what the model was sent")
    tour.frame(3)
    page.keyboard.press("Escape")
    page.go_back()
    tour.click(page.get_by_role("button", name="Copy as test").last)
    expect(page.get_by_role("dialog", name="Copy as test")).to_contain_text("ScriptedModel")
    tour.say("Any turn as a pytest file that passes")
    tour.frame(3.5)
    page.keyboard.press("Escape")


def show_own_tab(tour: Recording, server: TourServer) -> None:
    """Show a tab that the author of a class added."""
    page = tour.page
    page.evaluate("() => { location.hash = '/a/Greenhouse%3Anorth/state' }")
    expect(page.get_by_role("group", name="State")).to_contain_text("degrees")
    tour.click(page.get_by_role("link", name="Climate"))
    climate: FrameLocator = page.frame_locator("iframe[title=Climate]")
    expect(climate.get_by_label("Temperature", exact=True)).to_have_text("19 °C")
    tour.say("Tabs of your own, in a sandbox")
    tour.frame(2)
    for degrees in (20, 21, 22):
        climate.get_by_role("button", name="Measure now").click()
        expect(climate.get_by_label("Temperature", exact=True)).to_have_text(f"{degrees} °C")
        tour.frame(0.6)
    tour.frame(1)


def finish(tour: Recording) -> None:
    page = tour.page
    tour.click(page.get_by_role("link", name="Now", exact=True))
    expect(page.get_by_text("Nothing needs attention")).to_be_visible()
    tour.say("sapwood serve --studio: the same in production, with tokens and scopes")
    tour.frame(4)


@contextmanager
def served(folder: Path) -> Iterator[TourServer]:
    server = TourServer(folder, PAUSE="0.7", PYTHONPATH=str(ROOT))
    server.link()
    try:
        server.call("Plant:oak", "grow", ["north", "east"])
        server.call("Greenhouse:north", "set_target", 24)
        for _ in range(3):
            server.call("Greenhouse:north", "measure")
        yield server
    finally:
        server.end(signal.SIGTERM)


def main(tour_file: Path) -> None:
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert chromium is not None, "There is no Chromium."
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as server,
        sync_playwright() as playwright,
        launch(playwright.chromium, chromium) as browser,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        page.goto(server.link())
        tour = Recording(page)
        look_around(tour, server)
        converse(tour, server)
        look_into(tour)
        show_own_tab(tour, server)
        finish(tour)
        file = animation(tour.frames, WIDTH, HEIGHT)
        assert page.evaluate(CHECK, b64encode(file).decode()) == [len(tour.frames), WIDTH, HEIGHT]
    assert sum(durations(file)) <= LONGEST, sum(durations(file))
    assert len(file) <= LARGEST, len(file)
    tour_file.write_bytes(file)
    seconds, megabytes = sum(durations(file)) / 1000, len(file) / 1e6
    print(f"{tour_file.name}: {len(tour.frames)} frames, {seconds:.0f} s, {megabytes:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TOUR)
