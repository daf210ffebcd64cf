"""Tabs that a class adds to the studio: what its author declares, and where their pages are."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from sapwood.errors import UsageError

TabScope: TypeAlias = Literal["content", "answer", "call", "sql", "write", "admin"]
SCOPES: tuple[TabScope, ...] = get_args(TabScope)
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class StudioTab:
    """A tab of the studio for the agents of a class: a page of your own.

    List it in `Agent.studio_tabs`. The page runs in a sandbox: it has no token, and can reach neither the server nor
    the studio. It asks the studio for the state of the agent, and to call the methods that are listed here.
    """

    title: str
    """The name of the tab. Two tabs of a class have different titles."""
    page: str | os.PathLike[str]
    """An HTML file, or a folder with an `index.html`. Relative to the folder of the module that defines the class."""
    methods: tuple[str, ...] = ()
    """The methods of the agent that the page may call. They are `async def` and return one value."""
    scope: TabScope | None = None
    """Another scope that a token needs to call these methods, beside `act`."""

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.title), str) or not self.title.strip():
            raise UsageError(f"StudioTab(title={self.title!r}): expected a string that is not empty.")
        if not isinstance(cast(object, self.page), str | os.PathLike):
            raise UsageError(f"StudioTab(page={self.page!r}): expected the path of an HTML file or of a folder.")
        if isinstance(self.methods, str) or not all(isinstance(cast(object, name), str) for name in self.methods):
            raise UsageError(f"StudioTab(methods={self.methods!r}): expected a tuple of names of methods.")
        object.__setattr__(self, "methods", tuple(self.methods))
        if self.scope is not None and self.scope not in SCOPES:
            raise UsageError(f"StudioTab(scope={self.scope!r}): expected one of {', '.join(map(repr, SCOPES))}.")


def tabs_of(cls: type) -> tuple[StudioTab, ...]:
    """Return the tabs of an agent class."""
    return tuple(getattr(cls, "studio_tabs", ()))


def page_of(cls: type, tab: StudioTab) -> Path:
    """Return the file or folder of a tab. A relative path starts at the module of the class that lists the tab."""
    owner = next((one for one in cls.__mro__ if "studio_tabs" in vars(one)), cls)
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return ((Path(file).parent if file else Path.cwd()) / tab.page).resolve()


def check_studio_tabs(cls: type, base: type) -> None:
    """Raise `UsageError` if `studio_tabs` of a class is invalid. It extends `base`, a class of the framework."""
    given: object = getattr(cls, "studio_tabs", ())
    if not isinstance(given, tuple | list):
        raise UsageError(f"{cls.__name__}.studio_tabs must be a tuple of StudioTab(…), got {given!r}.")
    titles = set[str]()
    for tab in cast("Iterable[object]", given):
        if not isinstance(tab, StudioTab):
            raise UsageError(f"{cls.__name__}.studio_tabs must be a tuple of StudioTab(…), got {tab!r} in it.")
        if tab.title in titles:
            raise UsageError(f"{cls.__name__}.studio_tabs has two tabs with the title {tab.title!r}.")
        titles.add(tab.title)
        _check_page(cls, tab)
        for name in tab.methods:
            _check_method(cls, base, tab, name)


def _check_page(cls: type, tab: StudioTab) -> None:
    page = page_of(cls, tab)
    if page.is_dir() and not (page / INDEX).is_file():
        raise UsageError(f"{cls.__name__}.studio_tabs: the folder {str(page)!r} of {tab.title!r} has no {INDEX}.")
    if not page.is_dir() and not (page.is_file() and page.suffix == ".html"):
        raise UsageError(
            f"{cls.__name__}.studio_tabs: the page of {tab.title!r} must be a folder or an .html file, "
            f"got {str(page)!r}."
        )


def _check_method(cls: type, base: type, tab: StudioTab, name: str) -> None:
    where = f"{cls.__name__}.studio_tabs: {tab.title!r} lists the method {name!r}"
    function: Any = inspect.getattr_static(cls, name, None)
    if function is None:
        raise UsageError(f"{where}, which does not exist.")
    if name.startswith("_") or hasattr(base, name):
        raise UsageError(f"{where}, which is not a public method of the class.")
    if not inspect.iscoroutinefunction(function):
        raise UsageError(f"{where}, which must be `async def` and return one value.")
