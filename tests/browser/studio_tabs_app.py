"""The example of a tab in the studio, and an agent whose tab tries what it must not."""

from __future__ import annotations

import sys
from pathlib import Path

from sapwood import Agent, App
from sapwood.studio import StudioTab

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from studio_tab import Greenhouse


class Trespasser(Agent[dict[str, str]]):
    """Its tab tries to leave its frame."""

    initial_state = {"note": "mine"}  # noqa: RUF012 - a state is copied
    studio_tabs = (StudioTab("Hostile", "studio_tab_hostile", methods=("hello",)),)

    async def hello(self) -> str:
        return "hello"

    async def forbidden(self) -> str:
        self.set_state({"note": "stolen"})
        return "forbidden"


app = App(agents=[Greenhouse, Trespasser])
