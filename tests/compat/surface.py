"""What is public, by kind: names with members and parameters, settings, commands, codes, metrics, frames, endpoints.

It is read from the pages of the reference, which other tests hold to the code, and from the signatures of the objects.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from sapwood.cli.docs_command import resolve

REFERENCE = Path(__file__).parents[2] / "docs/reference"
OBJECT = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def surface() -> dict[str, list[str]]:
    """Return what programs, operators and clients may rely on."""
    return {
        "names": sorted(
            {name for page in sorted((REFERENCE / "api").glob("*.md")) for name in _names(page.read_text())}
        ),
        "settings": _headings("settings.md", 3),
        "commands": sorted(_commands()),
        "codes": _headings("errors.md", 3),
        "metrics": sorted(re.findall(r"^\| `(\w+)` \|", _page("metrics.md"), re.MULTILINE)),
        "frames": _headings("wire.md", 3),
        "endpoints": _headings("admin.md", 2),
    }


def _page(name: str) -> str:
    return (REFERENCE / name).read_text()


def _headings(page: str, level: int) -> list[str]:
    return sorted(set(re.findall(rf"^#{{{level}}} `([^`]+)`", _page(page), re.MULTILINE)))


def _commands() -> Iterator[str]:
    for part in re.split(r"^## `sapwood ", _page("cli.md"), flags=re.MULTILINE)[1:]:
        command, _, text = part.partition("`")
        yield command
        for cell in re.findall(r"^\| (`.+?`) \| ", text, re.MULTILINE):
            yield from (f"{command} {option}" for option in re.findall(r"`(-[^`]+)`", cell))


def _names(page: str) -> Iterator[str]:
    """Yield the objects of a page, their public members, and the parameters of each."""
    for path in OBJECT.findall(page):
        value, name = resolve(path), path.rpartition(".")[2]
        name = f"Agent.{name}" if ".agent.Agent." in path else name
        yield from _with_parameters(name, value)
        own = [one for one in getattr(value, "__mro__", ()) if one is value or one.__name__ == f"{name}Trees"]
        for member, defined in ((member, it) for one in own for member, it in vars(one).items()):
            if not member.startswith("_"):
                yield from _with_parameters(f"{name}.{member}", defined)


def _with_parameters(name: str, value: Any) -> Iterator[str]:
    yield name
    # The signature of an enumeration is that of Python's own class.
    if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Enum)):
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError):
            return
        yield from (f"{name}({one.name})" for one in parameters if one.name not in ("self", "cls", "args", "kwargs"))


def missing(released: dict[str, list[str]], now: dict[str, list[str]], told: str) -> list[str]:
    """Return what is gone and no entry of the changelog about breaking changes names."""
    gone = [name for kind, names in released.items() for name in sorted({*names} - {*now.get(kind, ())})]
    return [name for name in gone if not re.search(rf"`[^`]*{re.escape(_word(name))}[^`]*`", told)]


def _word(name: str) -> str:
    """Return the word that an entry has to name: the parameter, the option, or the last part of the name."""
    return re.split(r"[. (]", name.removesuffix(")"))[-1]
