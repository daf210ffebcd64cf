"""Write docs/llms.txt from the navigation: what each page is about, for coding agents. `just llms` runs it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FILE = DOCS / "llms.txt"
HEAD = """# sapwood

> Durable AI agents with sub-agents, in Python: an agent is a class, and each instance an actor with a SQLite database.

An installed sapwood prints each page as text: `sapwood docs how-to/serve`, and `sapwood docs` lists all of them. The
paths below are those of the site.
"""
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def main() -> None:
    FILE.write_text(content())


def content() -> str:
    nav: list[Any] = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    return HEAD + "\n".join(_lines(nav, 2, _listed())) + "\n"


def _lines(nav: list[Any], level: int, listed: dict[str, str]) -> Iterator[str]:
    for entry in nav:
        title, target = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(target, list):
            yield f"\n{'#' * level} {title}\n"
            yield from _lines(target, level + 1, listed)
        else:
            yield _line(title, target, listed)


def _line(title: str, target: str, listed: dict[str, str]) -> str:
    text = (DOCS / target).read_text()
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    url = target.removesuffix("index.md") if target.endswith("index.md") else f"{target.removesuffix('.md')}/"
    about = listed.get(target) or _first_sentence(text)
    return f"- [{title or (heading[1] if heading else target)}]({url or './'}): {about}"


def _listed() -> dict[str, str]:
    """Return what the index of the how-to guides says of each page."""
    lines = re.findall(r"^- \[.+?\]\(([\w-]+\.md)\): (.+)$", (DOCS / "how-to/index.md").read_text(), re.MULTILINE)
    return {f"how-to/{name}": about for name, about in lines}


def _first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph below the title."""
    below = re.split(r"^# .+$", text, maxsplit=1, flags=re.MULTILINE)[-1]
    paragraphs = [part.strip() for part in below.split("\n\n")]
    prose = next((part for part in paragraphs if part and part[0] not in "#<|`-:![>"), "")
    sentence = re.split(r"(?<=\.)\s", " ".join(LINK.sub(r"\1", prose).split()), maxsplit=1)[0]
    return sentence.replace("**", "").rstrip(":")


if __name__ == "__main__":
    main()
