"""A folder of pages beside the agents: what is in it is served, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from tests.conformance.serving import Site, serving

from sapwood import Agent, App, Settings
from sapwood.cli.http_servers import page_paths
from sapwood.errors import UsageError


class PagedThing(Agent):
    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(f"the agent {self.name}")


def nobody(request: object) -> None:
    return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pages, and beside them what nobody is to see."""
    pages = tmp_path / "page"
    (pages / "deep").mkdir(parents=True)
    (pages / "index.html").write_text("<!doctype html><title>the page</title>")
    (pages / "page.js").write_text("let it = 'run';")
    (pages / "deep/index.html").write_text("deep")
    (pages / ".env").write_text("SECRET")
    (pages / ".git").mkdir()
    (pages / ".git/config").write_text("SECRET")
    (pages / "agents/paged-thing").mkdir(parents=True)
    (pages / "agents/paged-thing/main").write_text("a file")
    (pages / "healthz").write_text("a file")
    (tmp_path / "secret.txt").write_text("SECRET")
    (tmp_path / "page-secret").mkdir()
    (tmp_path / "page-secret/secret.txt").write_text("SECRET")
    (pages / "link.txt").symlink_to(tmp_path / "secret.txt")
    return pages


@pytest.fixture
async def site(folder: Path, tmp_path: Path) -> AsyncGenerator[Site, None]:
    app = App(agents=[PagedThing], pages=folder, settings=Settings(data=tmp_path / "data"))
    async with serving(app, lifespan="on") as site:
        yield site


async def test_the_files_of_the_folder_are_served_with_their_types(site: Site) -> None:
    page, script, deep = await site.http("/"), await site.http("/page.js?v=1"), await site.http("/deep/")

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "the page" in page.text
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert deep.text == "deep"


async def test_a_file_is_not_sent_again_to_a_browser_that_has_it(site: Site) -> None:
    first = await site.http("/page.js")

    again = await site.http("/page.js", headers={"if-none-match": first.headers["etag"]})

    assert (again.status, again.body) == (304, b"")
    assert {first.headers["cache-control"], again.headers["cache-control"]} == {"no-cache"}


async def test_agents_and_health_win_over_files_of_the_same_name(site: Site) -> None:
    assert (await site.http("/agents/paged-thing/main")).text == "the agent main"
    assert (await site.http("/healthz")).text == "ok"
    assert (await site.http("/agents/nobody/main")).status == 400


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/deep/../../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/deep/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/../page-secret/secret.txt",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/link.txt",
        "/.env",
        "/%2eenv",
        "/.git/config",
        "/deep/../.env",
        "/page.js%00.txt",
        "/page.js/more",
        "/nothing",
        f"/{'long' * 1000}",
        "/%ff%fe",
    ],
)
async def test_what_is_not_in_the_folder_is_not_found_whatever_the_path(site: Site, target: str) -> None:
    answer = await site.http(target)

    assert (answer.status, answer.text) == (404, "Not Found")


async def test_pages_are_read_and_not_written(site: Site) -> None:
    answer = await site.http("/page.js", method="POST", body=b"x")

    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_who_is_not_let_in_to_the_agents_still_gets_the_page(folder: Path, tmp_path: Path) -> None:
    app = App(agents=[PagedThing], pages=folder, authenticate=nobody, settings=Settings(data=tmp_path / "data"))
    async with serving(app, lifespan="on") as site:
        assert (await site.http("/")).status == 200
        assert (await site.http("/agents/paged-thing/main")).status == 401


async def test_an_app_that_is_mounted_at_the_root_keeps_its_pages_beside_the_routes_of_the_other(
    folder: Path, tmp_path: Path
) -> None:
    async def sign_in(request: Request) -> Response:
        return PlainTextResponse("come in")

    app = App(agents=[PagedThing], pages=folder, settings=Settings(data=tmp_path / "data"))
    routes = [Route("/session", sign_in), Mount("/", app)]
    async with serving(Starlette(routes=routes, lifespan=app.lifespan), lifespan="on") as site:
        assert (await site.http("/session")).text == "come in"
        assert "the page" in (await site.http("/")).text
        assert (await site.http("/page.js")).text == "let it = 'run';"
        assert (await site.http("/agents/paged-thing/main")).text == "the agent main"
        assert (await site.http("/nothing")).status == 404


async def test_an_app_that_is_mounted_leaves_the_pages_to_the_one_around_it(folder: Path, tmp_path: Path) -> None:
    app = App(agents=[PagedThing], pages=folder, settings=Settings(data=tmp_path / "data"))
    async with serving(Starlette(routes=[Mount("/agents", app)], lifespan=app.lifespan), lifespan="on") as site:
        assert (await site.http("/agents/")).status == 404
        assert (await site.http("/agents/paged-thing/main")).text == "the agent main"


def test_the_command_line_says_to_open_the_page_if_there_is_one(folder: Path) -> None:
    assert page_paths(App(agents=[PagedThing], pages=folder)) == ["/"]
    assert page_paths(App(agents=[PagedThing], pages=folder / ".git")) == ["/agents/paged-thing/main"]


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be an existing folder"):
        App(agents=[PagedThing], pages=tmp_path / "nowhere")


async def test_pages_that_have_the_data_in_them_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="every client could read it"):
        async with App(agents=[PagedThing], pages=folder, settings=Settings(data=folder / "data")):
            pass
