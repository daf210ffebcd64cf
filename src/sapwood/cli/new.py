"""`new`: create a project that runs at once, from a template.

The template `lobby` is in the folder beside this module. The other templates are the examples of sapwood: the files in
examples/NAME and the sources of the page become the project. Only the README and the markers of the documentation
differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from sapwood.errors import UsageError

NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
ENDING = ".template"
"""The suffix keeps tools from reading a template as a program."""
PAGES = "pages"
"""The folder of the examples with the sources of their pages."""
LEFT_BEHIND = {"__pycache__", "node_modules", "sapwood-data", ".pytest_cache", ".ruff_cache", "ruff.toml"}
"""Files that running an example leaves in its folder, and files for the project's own tools."""
MARK = re.compile(r"^[ \t]*(#|//|\{/\*) --8<--.*\n", re.MULTILINE)
"""A marker from which a page of the documentation includes code."""
IN_A_CHECKOUT = re.compile(r"<!-- checkout -->\n.*?<!-- /checkout -->\n", re.DOTALL)
"""Parts of an example's README for readers with a checkout; the first part says how to start it."""
START = """\
```sh
pip install 'sapwood[{{extras}}]'
sapwood dev
```
"""

CONTAINER = {
    ".dockerignore": "oci/.dockerignore",
    "Caddyfile": "caddy/Caddyfile",
    "Containerfile": "oci/Containerfile",
    "compose.yaml": "compose/compose.yaml",
}
"""The files of a project that are those of `deploy`, without a difference."""
WITH_SIGN_IN = ""
WITHOUT_SIGN_IN = """
The container stops with an error until the app has `App(authenticate=…)`: without it, every client that reaches the
port could use every agent. `authenticate` is a function that returns the user of a request, or `None` to refuse it;
`JwtAuth` and `ApiKeys` are ready-made, and `sapwood new --template rooms` makes a project with sign-in. To run it
without `authenticate`, run `sapwood serve` on this machine: it listens on 127.0.0.1, and refuses pages of other sites.
"""

Template = Literal["lobby", "chat", "rooms", "agents-as-tools", "perspectives", "gatekeeper", "sandbox"]


@dataclass(frozen=True, slots=True)
class About:
    """The description of a template."""

    what: str
    first: str
    """The first thing to do on its page."""
    address: str
    """The agent that its page connects to first."""
    extras: str = "server,chat"
    asks_who: bool = False
    """Whether its app authenticates users."""


TEMPLATES: dict[Template, About] = {
    "lobby": About(
        "a counter that all open pages share, in two files.",
        "open the page in two tabs and press a button.",
        "Lobby:main",
        extras="server",
    ),
    "chat": About(
        "an assistant that keeps reminders and posts a message when they are due.",
        "open the page and write: Remind me to stretch in 20 seconds.",
        "Assistant:main",
    ),
    "rooms": About(
        "users sign in, and each has an inbox of conversations that no other user can open.",
        "open the page and sign in as ann; in a private window, as bob.",
        "Inbox:ann",
        extras="server,chat,auth",
        asks_who=True,
    ),
    "agents-as-tools": About(
        "an assistant that delegates to helper agents, with a page to watch, message and stop them.",
        "open the page and write: Compare Rust and Go.",
        "Assistant:main",
    ),
    "perspectives": About(
        "three specialists answer in parallel, and a timeline shows which finish and which are cancelled.",
        "open the page and ask: Shall we open a second bakery?",
        "Panel:main",
    ),
    "gatekeeper": About(
        "a database that models propose changes to, and people approve, edit or reject them.",
        "open the page and write: Move Ada to Paris.",
        "Gatekeeper:main",
    ),
    "sandbox": About(
        "a model that answers with Python code, run in a sandbox; and ten escape attempts to try.",
        "open the page and ask: Which city pays most?",
        "Lab:main",
        extras="server,chat,sandbox",
    ),
}


def make(folder: Path, template: Template = "lobby") -> list[str]:
    """Write the project and return the names of its files and folders."""
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        raise UsageError(
            f"The name of a project must start with a letter, followed by letters, digits, - and _, got {name!r}."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} already exists and is not empty. Choose another name.")
    about = TEMPLATES[template]
    container = WITH_SIGN_IN if about.asks_who else WITHOUT_SIGN_IN
    holes = {"name": name, "extras": about.extras, "address": about.address, "container": container}
    files = _filled("lobby", holes) if template == "lobby" else _example(template, holes)
    for path, content in (_filled("common", holes) | _container() | files).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())


def _filled(folder: str, holes: dict[str, str]) -> dict[str, bytes]:
    """Return the files that are written for this, with the holes filled."""
    return {
        path.removesuffix(ENDING).replace("dot-", ".", 1): _fill(content.decode(), holes).encode()
        for path, content in _read(resources.files("sapwood.cli") / "templates" / folder)
    }


def _example(name: str, holes: dict[str, str]) -> dict[str, bytes]:
    """Return the files of an example, and the sources of its page, as a project has them."""
    examples = _shipped("examples")
    files = dict(_read(examples / name))
    ours = files.pop("README.md").decode().replace(f"../{PAGES}/{name}", "page-source/page")
    ours = ours.replace(f"../{PAGES}", "page-source").partition("\n")[2]
    ours = IN_A_CHECKOUT.sub("", IN_A_CHECKOUT.sub(START, ours, count=1)).rstrip()
    (rest,) = _filled("example", {}).values()
    readme = _fill(f"# {{{{name}}}}\n{ours}\n{rest.decode()}", holes)
    for path, content in _read(examples / PAGES):
        folder, _, below = path.partition("/")
        if folder == name:
            files[f"page-source/page/{below}"] = content
        elif folder == "design" or (not below and path != "README.md"):
            files[f"page-source/{path}"] = content
    clean = {path: _without_marks(content) for path, content in files.items() if path.endswith((".py", ".ts", ".tsx"))}
    return files | clean | {"README.md": readme.encode()}


def _container() -> dict[str, bytes]:
    """Return the files that a project runs with in a container."""
    deploy = _shipped("deploy")
    return {name: (deploy / path).read_bytes() for name, path in CONTAINER.items()}


def _shipped(name: str) -> Traversable:
    """Return a folder that comes with sapwood: a wheel has it in here, a checkout at its root."""
    installed = resources.files("sapwood.cli") / name
    return installed if installed.is_dir() else Path(__file__).parents[3] / name


def _read(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    """Yield the files below, with their paths."""
    for entry in folder.iterdir():
        if entry.name in LEFT_BEHIND:
            continue
        elif entry.is_dir():
            yield from ((f"{entry.name}/{path}", content) for path, content in _read(entry))
        else:
            yield entry.name, entry.read_bytes()


def _fill(text: str, holes: dict[str, str]) -> str:
    for hole, what in holes.items():
        text = text.replace(f"{{{{{hole}}}}}", what)
    return text


def _without_marks(content: bytes) -> bytes:
    return (MARK.sub("", content.decode()).rstrip() + "\n").encode()
