"""Copy code of the examples into the documentation, so that pages show it on the site and on a Git host.

To add a block, write the file and the section as its only line, and run `just include-code`:

    --8<-- "examples/auction.py:request"

or, for Python, only the comment that the script writes above a block:

    <!-- include examples/auction.py:request -->

A section is between `--8<-- [start:request]` and `--8<-- [end:request]` in the file. The script replaces the line by
the code, and writes where it is from into a comment above the block. From then on it updates the block. A comment
without a block is an error, because the page would show nothing there.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEW = re.compile(r'^```(\w+)\n--8<-- "([^"]+)"\n```$', flags=re.MULTILINE)
BARE = re.compile(r"^(<!-- include [^:\s]+\.py(?::[\w-]+)? -->)$(?!\n```)", flags=re.MULTILINE)
EMPTY = re.compile(r"^<!-- include (\S+) -->$(?!\n```\w)", flags=re.MULTILINE)
INCLUDE = re.compile(
    r"^<!-- include (?P<file>[^:\s]+)(?::(?P<section>[\w-]+))? -->\n```(?P<kind>\w+)\n(?:.*?^)?```$",
    flags=re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"--8<-- \[(start|end):([\w-]+)\]")


def code(file: str, section: str | None) -> str:
    """Return a file, or one section of it, without marks and common indentation."""
    found: list[str] = []
    is_inside = section is None
    for line in (ROOT / file).read_text().splitlines():
        mark = MARK.search(line)
        if mark is not None:
            is_inside = mark[1] == "start" if mark[2] == section else is_inside
        elif is_inside:
            found.append(line)
    if not found:
        raise SystemExit(f"{file} has no section {section!r}.")
    return textwrap.dedent("\n".join(found)).strip("\n")


def with_code(page: str) -> str:
    """Return the text of a page with the current code in its blocks."""

    def block(match: re.Match[str]) -> str:
        comment = match[0].partition("\n")[0]
        return f"{comment}\n```{match['kind']}\n{code(match['file'], match['section'])}\n```"

    new = NEW.sub(r"<!-- include \2 -->\n```\1\n```", page)
    new = BARE.sub(r"\1\n```python\n```", new)
    if empty := EMPTY.search(new):
        raise SystemExit(f"{empty[1]} is included without a code block below the comment: add ```ini, or its language.")
    return INCLUDE.sub(block, new)


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def main() -> None:
    for page in pages():
        old = page.read_text()
        new = with_code(old)
        if new != old:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
