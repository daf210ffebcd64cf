"""Tabs that classes add to the studio: what is refused when a class is defined, which files are served, and calls."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tests.unit.admin_requests import LOOK, ask

from sapwood import Agent, App, agent
from sapwood.admin.access import Access, Scope
from sapwood.errors import NotFound, Refused, UsageError
from sapwood.studio import StudioTab
from sapwood.studio.door import StudioDoor
from sapwood.testing import running

PAGE = Path(__file__).parents[2] / "examples/studio_tab.html"
POT = "TabbedPot:a"


def may(*scopes: Scope) -> Access:
    return Access("ann", frozenset(scopes))


@agent(type="TabbedPot", aliases=["TabbedVase"])
class TabbedPot(Agent[dict[str, int]]):
    """Has tabs."""

    initial_state = {"liters": 0}  # noqa: RUF012 - a state is copied
    studio_tabs = (
        StudioTab("Care", PAGE, methods=("water", "smash")),
        StudioTab("Dangerous", PAGE, methods=("smash",), scope="admin"),
        StudioTab("Only a view", PAGE),
    )

    async def water(self, liters: int) -> dict[str, int]:
        self.set_state({"liters": self.state["liters"] + liters})
        return self.state

    async def smash(self) -> None:
        raise ValueError("It is in pieces.")

    async def hide(self) -> str:
        return "hidden"


class TabbedBase(Agent):
    """Is extended below."""

    async def hello(self) -> str:
        return "hello"

    async def count(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("tabs", "said"),
    [
        (StudioTab("A", PAGE), "must be a tuple of StudioTab"),
        (("A",), "must be a tuple of StudioTab"),
        ((StudioTab("A", PAGE), StudioTab("A", PAGE)), "two tabs with the title 'A'"),
        ((StudioTab("A", "nothing.html"),), r"must be a folder or an \.html file, got '.*/tests/unit/nothing\.html'"),
        ((StudioTab("A", Path(__file__)),), r"must be a folder or an \.html file"),
        ((StudioTab("A", "__pycache__/.."),), r"has no index\.html"),
        ((StudioTab("A", PAGE, methods=("helo",)),), "'A' lists the method 'helo', which does not exist"),
        ((StudioTab("A", PAGE, methods=("set_state",)),), "not a public method"),
        ((StudioTab("A", PAGE, methods=("_actor",)),), "not exist|not a public method"),
        ((StudioTab("A", PAGE, methods=("count",)),), "must be `async def` and return one value"),
        ((StudioTab("A", PAGE, methods=("migrations",)),), "not a public method"),
    ],
)
def test_a_class_whose_tabs_cannot_work_is_refused(tabs: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        type("TabbedWrong", (TabbedBase,), {"__module__": __name__, "studio_tabs": tabs})


@pytest.mark.parametrize(
    "given", [{"title": ""}, {"title": 1}, {"page": 1}, {"methods": "water"}, {"methods": (1,)}, {"scope": "look"}]
)
def test_a_tab_that_cannot_work_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"StudioTab\({next(iter(given))}="):
        StudioTab(**{"title": "A", "page": PAGE, **given})


async def test_a_tab_calls_the_methods_that_it_lists() -> None:
    async with running(App(agents=[TabbedPot])) as world:
        await (await world.get_agent(TabbedPot, "a")).water(1)

        async def call(method: str, access: Access, tab: str = "Care", *arguments: Any) -> Any:
            return await ask(world, "tab-call", access, address=POT, tab=tab, method=method, arguments=[*arguments])

        everything = may("look", "content", "act")
        assert await call("water", everything, "Care", 2) == {"result": {"liters": 3}}
        assert await call("water", may("act"), "Care", 1) == {"result": {"hidden": "object", "length": 1}}
        for method in ("hide", "set_state", "questions.list", "destroy", ""):
            with pytest.raises(Refused, match="does not list the method"):
                await call(method, everything)
        with pytest.raises(Refused, match="does not list"):
            await call("water", everything, "Only a view", 1)
        with pytest.raises(NotFound, match="has no tab 'Other'"):
            await call("water", everything, "Other", 1)
        with pytest.raises(NotFound):
            await ask(world, "tab-call", everything, address="TabbedPot:new", tab="Care", method="water", arguments=[1])
        for access in (LOOK, may("look", "content", "call")):
            with pytest.raises(Refused, match="'act'"):
                await call("water", access, "Care", 1)
        with pytest.raises(Refused, match="'admin'"):
            await call("smash", everything, "Dangerous")
        with pytest.raises(Exception, match="in pieces"):
            await call("smash", everything)
        with pytest.raises(Exception, match="use a token with the scope 'content'"):
            await call("smash", may("act"))


async def test_a_session_lists_the_tabs_by_type() -> None:
    async with running(App(agents=[TabbedPot])) as world:
        tabs = (await ask(world, "session", LOOK))["tabs"]

    assert [tab["title"] for tab in tabs["TabbedPot"]] == ["Care", "Dangerous", "Only a view"]
    assert tabs["TabbedPot"][1] == {"title": "Dangerous", "methods": ("smash",), "scope": "admin"}
    assert tabs["TabbedVase"] == tabs["TabbedPot"]  # agents that have its old name
    assert "TabbedBase" not in tabs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a page, beside files that are not for clients."""
    folder = tmp_path / "page"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text(
        '<script src="a.js"></script>\r\n<script>let a = "1 < 2";\r\n</script><script>b()</script>'
    )
    (folder / "parts/a.js").write_text("a()")
    (folder / ".env").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "page2").mkdir()
    (tmp_path / "page2/secret.txt").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret.txt")
    (folder / "away").symlink_to(tmp_path / "page2")
    return folder


@pytest.fixture
def client(folder: Path) -> TestClient:
    type(
        "TabbedShelf",
        (TabbedBase,),
        {"__module__": __name__, "studio_tabs": (StudioTab("A", PAGE), StudioTab("B", folder))},
    )
    node = type("Roots", (), {"roots": ()})
    door = StudioDoor(PlainTextResponse("the app"), (), lambda: node)  # pyright: ignore[reportArgumentType] - all that it asks
    return TestClient(door, base_url="http://127.0.0.1:8000", follow_redirects=False)


def test_the_files_of_a_tab_are_served_and_no_others(client: TestClient) -> None:
    found = client.get("/studio/tabs/TabbedShelf/1")
    assert (found.status_code, found.headers["location"]) == (307, "/studio/tabs/TabbedShelf/1/")
    assert "b()" in client.get("/studio/tabs/TabbedShelf/1/").text
    assert client.get("/studio/tabs/TabbedShelf/1/parts/a.js").text == "a()"
    assert client.get("/studio/tabs/TabbedShelf/0/").text == PAGE.read_text()
    assert "const studio" in client.get("/studio/tabs/tab.js").text
    for path in (
        *("1/out", "1/away/secret.txt", "1/.env", "1/%2e%2e/secret.txt", "1/parts/%2e%2e/%2e%2e/secret.txt"),
        *("1/..%2fsecret.txt", "1/%2fetc/passwd", "1//etc/passwd", "1/../page2/secret.txt", "1/nothing", "1/parts"),
        *(
            "0/studio_tab.html",
            "0/studio_tab.py",
            "0/../studio_tab.py",
            "2/",
            "-1/",
            "x/",
            "01x/",
            "²/",
            "9999999999/",
            "",
        ),
    ):
        answer = client.get(f"/studio/tabs/TabbedShelf/{path}")
        assert answer.status_code == 404, path
        assert "secret" not in answer.text
    for path in ("Nothing/0/", "Agent/0/", "tab.js/0/", "", "tab.css", "%2e%2e/client/tab.js"):
        assert client.get(f"/studio/tabs/{path}").status_code == 404, path
    assert client.post("/studio/tabs/TabbedShelf/1/").status_code == 405


def test_a_tab_may_load_only_tabs_and_run_only_what_its_author_wrote(client: TestClient) -> None:
    answer = client.get("/studio/tabs/TabbedShelf/1/")
    # Sent as a whole each time: the policy is that of the file as it is.
    again = client.get("/studio/tabs/TabbedShelf/1/", headers={"if-none-match": answer.headers["etag"]})
    policy = answer.headers["content-security-policy"]

    assert again.status_code == 200
    own, _, only_tabs = policy.partition(", ")
    rules = {name: values for name, _, values in (rule.strip().partition(" ") for rule in own.split(";"))}
    assert rules["sandbox"] == "allow-scripts"
    assert [rules[name] for name in ("default-src", "connect-src", "form-action", "base-uri")] == ["'none'"] * 4
    texts = ("", 'let a = "1 < 2";\n', "b()")
    hashes = [f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts]
    assert rules["script-src"] == " ".join(("'self'", *hashes))
    assert only_tabs == "default-src http://*:*/studio/tabs/ https://*:*/studio/tabs/ 'unsafe-inline' data: blob:"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-src http://*:*/studio/tabs/" in client.get("/studio/").headers["content-security-policy"]
    assert client.get("/studio/tabs/TabbedShelf/1/", headers={"host": "evil.example"}).status_code == 421


def test_a_page_that_is_changed_may_run_its_new_scripts_and_not_the_old_ones(client: TestClient, folder: Path) -> None:
    def policy_with(script: str) -> str:
        (folder / "index.html").write_text(f"<script>{script}</script>")
        return client.get("/studio/tabs/TabbedShelf/1/").headers["content-security-policy"]

    hashes = [f"'sha256-{b64encode(hashlib.sha256(text).digest()).decode()}'" for text in (b"first()", b"second()")]
    before, after = policy_with("first()"), policy_with("second()")

    assert [[one in policy for one in hashes] for policy in (before, after)] == [[True, False], [False, True]]
