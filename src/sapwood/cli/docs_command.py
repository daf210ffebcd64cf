"""`sapwood docs`: the pages of the documentation, as text, for the version that is installed.

A wheel has the pages in the folder beside this module, a checkout at its root. The pages of the API reference name
objects; their signatures and docstrings take the place of these names.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sapwood.cli.terminal import say
from sapwood.errors import UsageError

OBJECT = re.compile(r"^::: ([\w.]+)\n(?:    .*\n|\n(?=    ))*", re.MULTILINE)
"""What mkdocstrings replaces: a name, and options below it."""
MARK = re.compile(r"^<!-- (?:include .*|--8<-- .*) -->\n", re.MULTILINE)
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
GROUPS = ("tutorial", "how-to", "reference", "explanation")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the documentation."""

    name: str
    """Its path without the suffix, such as `how-to/serve`."""
    source: str

    @property
    def title(self) -> str:
        found = TITLE.search(self.source)
        return found[1] if found else self.name

    @property
    def text(self) -> str:
        return OBJECT.sub(lambda found: "\n".join(_described(found[1])) + "\n", MARK.sub("", self.source))


def docs(
    topic: Annotated[
        str | None, Parameter(help="The name of a page, or words of its title or headings. Default: list all pages.")
    ] = None,
    /,
) -> None:
    """Print a page of the documentation, or the list of pages."""
    pages = read_pages()
    if topic is None:
        say("\n".join(f"{page.name}: {page.title}" for page in pages))
        return
    found = find(pages, topic)
    if not found:
        raise UsageError(f"No page of the documentation has {topic!r} in its name or headings. See: sapwood docs.")
    if len(found) > 1:
        say(
            f"Several pages fit {topic!r}:\n" + "\n".join(f"sapwood docs {page.name}    {page.title}" for page in found)
        )
        return
    say(found[0].text)


def find(pages: list[Page], topic: str) -> list[Page]:
    """Return the page of this name, or else the pages with these words in their titles, or else in their headings."""
    name = topic.removesuffix(".md").strip("/")
    words = topic.lower().split()
    ways: tuple[Callable[[Page], bool], ...] = (
        lambda page: page.name == name,
        lambda page: page.name.endswith(f"/{name}"),
        lambda page: _has(words, page.title),
        lambda page: any(_has(words, str(heading)) for heading in HEADING.findall(page.source)),
    )
    for fits in ways:
        if found := [page for page in pages if fits(page)]:
            return found
    return []


def _has(words: list[str], text: str) -> bool:
    return all(word in text.lower() for word in words)


def read_pages() -> list[Page]:
    """Return all pages, in the order of the groups of the documentation."""
    found = dict(_read(_folder()))
    groups = {name: name.partition("/")[0] if "/" in name else "" for name in found}
    order = [name for group in ("", *GROUPS) for name in sorted(found) if groups[name] == group]
    return [Page(name, found[name]) for name in order]


def _folder() -> Traversable:
    installed = resources.files("sapwood.cli") / "docs"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "docs"


def _read(folder: Traversable, below: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{below}{entry.name}/")
        elif entry.name.endswith(".md"):
            yield f"{below}{entry.name.removesuffix('.md')}", entry.read_text("utf-8")


def _described(name: str) -> Iterator[str]:
    """Yield the signature and the docstring of an object, and those of the public members of a class."""
    try:
        value = resolve(name)
    except (LookupError, AttributeError):  # its module needs an extra that is not installed
        yield f"### `{name}`\n"
        return
    yield from _entry(name.rpartition(".")[2], value, "###")
    if inspect.isclass(value):
        for member, defined in vars(value).items():
            if not member.startswith("_") and (inspect.isfunction(defined) or isinstance(defined, property)):
                yield from _entry(member, defined, "####")


def _entry(name: str, value: Any, mark: str) -> Iterator[str]:
    shown: Any = value.fget if isinstance(value, property) else value
    try:
        signature = "" if isinstance(value, property) else str(inspect.signature(shown))
    except (TypeError, ValueError):
        signature = ""
    yield f"{mark} `{name}{signature}`\n"
    if (doc := inspect.getdoc(shown)) is not None:
        yield f"{doc}\n"


def resolve(name: str) -> Any:
    """Return the object of a dotted name. Raises `LookupError` or `AttributeError` if there is none."""
    module, parts = name, list[str]()
    while module:
        try:
            value: Any = importlib.import_module(module)
        except ImportError:
            module, _, part = module.rpartition(".")
            parts.insert(0, part)
            continue
        for part in parts:
            value = getattr(value, part)
        return value
    raise LookupError(name)
