"""`sapwood new`: create a project from a template, and say what comes next."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from sapwood.cli.app_loader import EXTRA_OF
from sapwood.cli.new import TEMPLATES, Template, make
from sapwood.cli.terminal import say

new = App(
    name="new",
    help="Create a project that runs at once, without an API key: agents, a page, tests and a container."
    "\n\nTemplates:\n\n" + "\n".join(f"* `{name}`: {about.what}" for name, about in TEMPLATES.items()),
)


@new.default
def create(
    name: Annotated[Path, Parameter(help="The folder to create. Its last part is the name of the project.")],
    /,
    *,
    template: Annotated[Template, Parameter(help="The template to start from.")] = "lobby",
) -> None:
    files = make(name, template)
    about = TEMPLATES[template]
    say(f"Created {name} with {', '.join(files)}.")
    if any(extra in about.extras.split(",") and find_spec(module) is None for module, extra in EXTRA_OF.items()):
        say(f"First: pip install 'sapwood[{about.extras}]'")
    say(f"Next:  cd {shlex.quote(str(name))} && sapwood dev")
    say(f"Then:  {about.first}")
