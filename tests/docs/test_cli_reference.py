"""The reference of the command line is complete, and nothing in it is made up."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from cyclopts import App, Argument

from sapwood.cli.commands import cli
from sapwood.cli.new import TEMPLATES

PAGE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
SECTIONS = {
    part.partition("`")[0]: part.partition("\n")[2] for part in re.split(r"^## `sapwood ", PAGE, flags=re.MULTILINE)[1:]
}


def commands(of: App = cli, above: tuple[str, ...] = ()) -> dict[str, App]:
    """Return every command that does something, by its words."""
    found: dict[str, App] = {}
    for word in (word for word in of if not word.startswith("-")):
        below, words = of[word], (*above, word)
        found |= {" ".join(words): below} if below.default_command else commands(below, words)
    return found


COMMANDS = commands()


def arguments(command: str) -> list[Argument]:
    """Return what a command takes; what it only explains that it does not take is hidden."""
    return [one for one in COMMANDS[command].assemble_argument_collection() if one.parameter.show is not False]


def test_every_command_is_in_the_reference_and_nothing_else_is() -> None:
    assert sorted(SECTIONS) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_parameter_of_a_command_is_in_the_reference_and_nothing_else_is(command: str) -> None:
    taken = {name for argument in arguments(command) for name in argument.names}

    described = {
        name
        for row in re.findall(r"^\| (`.+?`) \| ", SECTIONS[command], flags=re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }

    assert described == taken


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_of_a_parameter_has_its_default_and_its_variable(command: str) -> None:
    for argument in arguments(command):
        (row,) = re.findall(rf"^\| `{re.escape(argument.names[0])}`.*$", SECTIONS[command], flags=re.MULTILINE)
        default = argument.field_info.default
        if isinstance(default, str | int | float) and not isinstance(default, bool):
            assert f"Default: `{default}`" in row
        for variable in argument.parameter.env_var or ():
            assert f"`{variable}`" in row


def test_every_template_of_new_is_in_the_reference_and_nothing_else_is() -> None:
    described = re.findall(r"^- `([\w-]+)`: (.*)$", SECTIONS["new"], flags=re.MULTILINE)

    assert described == [(name, about.what) for name, about in TEMPLATES.items()]


def test_the_reference_names_each_command_that_needs_no_server() -> None:
    (told,) = re.findall(r"^Without a running server, (.*?)\n\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = {name for name in re.findall(r"`([^`]+)`", told) if not name.startswith("--")}

    works = {
        name
        for name, command in COMMANDS.items()
        if command.default_command is not None
        and re.search(r"remote\.(answer_of|ask_or_open|rows)\(", inspect.getsource(command.default_command))
    }

    assert named == works | {"tree", "verify", "dead-letters", "sql", "destroy"}  # these ask in functions of their own
