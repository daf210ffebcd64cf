"""`sapwood docs` prints the pages of the documentation, with what the reference names, and finds them by words."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import llms

from sapwood.cli.commands import cli
from sapwood.cli.docs_command import OBJECT, Page, find, read_pages, resolve
from sapwood.errors import UsageError

ROOT = Path(__file__).parents[2]


def names(topic: str) -> list[str]:
    return [page.name for page in find(read_pages(), topic)]


@pytest.mark.parametrize(
    ("topic", "page"),
    [
        ("how-to/serve", "how-to/serve"),
        ("how-to/serve.md", "how-to/serve"),
        ("budgets", "how-to/budgets"),
        ("dead letters", "how-to/dead-letters"),
        ("Platforms", "explanation/versions"),
    ],
)
def test_a_page_is_found_by_its_name_its_title_or_a_heading(topic: str, page: str) -> None:
    assert names(topic) == [page]


def test_several_pages_that_fit_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cli(["docs", "agents"])

    assert capsys.readouterr().out.startswith("Several pages fit")


def test_without_a_topic_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cli(["docs"])

    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(list((ROOT / "docs").rglob("*.md")))
    assert listed[0].startswith(("gallery", "index"))


def test_a_topic_that_no_page_has_is_an_error() -> None:
    with pytest.raises(UsageError, match="sapwood docs"):
        cli(["docs", "xyzzy plugh"])


def test_a_page_of_the_reference_has_signatures_and_docstrings() -> None:
    (page,) = [page for page in read_pages() if page.name == "reference/api/children"]

    assert ":::" not in page.text
    assert "### `run_agent(self, cls:" in page.text
    assert "fail" in page.text
    assert "include examples" not in Page("x", "<!-- include examples/x.py -->\n# X\n").text


@pytest.mark.nightly  # it imports all of sapwood
def test_every_object_that_a_page_names_is_found() -> None:
    named = [name for page in read_pages() for name in OBJECT.findall(page.source)]

    assert len(named) > 100
    for name in named:
        resolve(name)  # raises if there is none


def test_the_list_for_coding_agents_is_current() -> None:
    assert llms.FILE.read_text() == llms.content(), "run `just llms`"
