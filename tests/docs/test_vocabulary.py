"""The prose that users read names its actors and uses the words of the field.

Checked are the documentation, the pages at the root of the repository, error messages (the strings inside `raise`
statements) and the docstrings of public names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.sources import parsed, statements

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src/sapwood"
REMEDIES = {
    "whoever": "name the actor: user, client, caller, parent, child, node, operator",
    "somebody": "name the actor: user, client, caller, parent, child, node, operator",
    "nobody": "name the actor: user, client, caller, parent, child, node, operator",
    "everybody": "name the actor: user, client, caller, parent, child, node, operator",
    "anybody": "name the actor: user, client, caller, parent, child, node, operator",
    "anew": "write “again”, or name what is created",
    "for ever": "write “permanently”, “never deleted” or “without a limit”",
    "meanwhile": "write “during …” and name the event",
    "; None:": "write a sentence: “`None` means no limit.”",
}
REFUSED = re.compile(
    r"\b(?:"
    + "|".join(word.replace(" ", r"\s+") for word in REMEDIES if word[0] != ";")
    + r")\b|;\s+`{0,2}None`{0,2}:",
    re.IGNORECASE,
)
CODE = re.compile(r"(?ms)^[ ]*```.*?^[ ]*```|`[^`\n]+`")
"""Code in prose: fenced blocks and spans. Its words are names and the output of programs."""

Public: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A refused word and its line."""

    line: int
    word: str


def found(text: str, first_line: int = 1) -> Iterator[Finding]:
    """Yield the refused words in a text."""
    for match in REFUSED.finditer(text):
        word = "; None:" if match[0].startswith(";") else " ".join(match[0].lower().split())
        yield Finding(first_line + text.count("\n", 0, match.start()), word)


def in_prose(text: str) -> Iterator[Finding]:
    """Yield the refused words on a page, outside its code."""
    yield from found(CODE.sub(lambda code: "`None`" if code[0] == "`None`" else re.sub(r"[^\n]", "x", code[0]), text))


def documented(node: Public) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module or class and of the public names in it.

    A string after an assignment in a class or module documents a setting or a constant.
    """
    for place, statement in enumerate(node.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str()) as text) if place == 0 or names_something_public(
                node.body[place - 1]
            ):
                yield text
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if not statement.name.startswith("_"):
                if isinstance(node, ast.Module | ast.ClassDef):
                    yield from documented(statement)
            case _:
                pass


def names_something_public(statement: ast.stmt) -> bool:
    """Return whether a statement assigns a public name."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return not name.startswith("_")
        case _:
            return False


def in_source(text: str, *, public: bool = True) -> Iterator[Finding]:
    """Yield the refused words in the error messages of a module and, if it is public, in its docstrings."""
    tree = parsed(text)
    strings = [
        string
        for statement in statements(tree)
        if isinstance(statement, ast.Raise)
        for string in ast.walk(statement)
        if isinstance(string, ast.Constant) and isinstance(string.value, str)
    ]
    for string in (*strings, *(documented(tree) if public else ())):
        if isinstance(string.value, str) and REFUSED.search(string.value):
            yield from found(ast.get_source_segment(text, string) or string.value, string.lineno)


def pages() -> list[Path]:
    """Return the documentation and the pages at the root, without decisions and measurements: both are records."""
    docs = REPOSITORY / "docs"
    return sorted(REPOSITORY.glob("*.md")) + [
        page
        for page in sorted(docs.rglob("*.md"))
        if page.name != "measured.md" and docs / "explanation/decisions" not in page.parents
    ]


def findings(file: Path) -> list[Finding]:
    """Return the refused words in a file that users read."""
    text = file.read_text()
    if file.suffix == ".md":
        return list(in_prose(text))
    public = not any(part.startswith("_") and part != "__init__.py" for part in file.relative_to(SOURCE).parts)
    return sorted(set(in_source(text, public=public)))


CHECKED = {file.relative_to(REPOSITORY).as_posix(): file for file in (*pages(), *sorted(SOURCE.rglob("*.py")))}


def test_prose_has_no_refused_word() -> None:
    refused = [
        f"{name}:{line}: “{word}”: {REMEDIES[word]}" for name, file in CHECKED.items() for line, word in findings(file)
    ]

    assert not refused, "\n" + "\n".join(refused)


def test_a_refused_word_is_found_on_a_page_outside_code() -> None:
    page = "Nobody waits for\never.\n```text\nmeanwhile\n```\nThe user `nobody`; `None`: any\nMEANWHILE.\n"

    assert list(in_prose(page)) == [(1, "nobody"), (1, "for ever"), (6, "; None:"), (7, "meanwhile")]


def test_a_refused_word_is_found_in_errors_and_public_docstrings() -> None:
    module = '''"""Made anew."""
LIMIT = 3
"""The limit; None: any."""
def work(name):
    """Call somebody."""
    "not a docstring of anybody"
    log("whoever")
    raise ValueError(f"Nobody has {name}.")
def _private():
    """Call everybody."""
class Public:
    def method(self):
        """Wait.

        It lasts for
        ever."""
'''

    assert sorted(in_source(module)) == [
        (1, "anew"),
        (3, "; None:"),
        (5, "somebody"),
        (8, "nobody"),
        (15, "for ever"),
    ]
    assert list(in_source(module, public=False)) == [(8, "nobody")]
