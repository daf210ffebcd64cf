"""The program of the fixtures for real servers of several releases: what was interrupted comes to an end."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from tests.compat.office_app import (
    MODELS,
    SETTINGS,
    CompatLead,
    CompatLong,
    CompatOffice,
    CompatServed,
    CompatTalker,
)

from sapwood import Agent, App, RemoteSubAgent
from sapwood.testing import ScriptedModel, call, text

MODELS["interrupted"] = ScriptedModel(call("look_up", {"word": "bark"}, id="l2"), text("It is a skin."), each=True)


class CompatRemote(RemoteSubAgent):
    """`CompatServed` of another server."""

    url: ClassVar[str] = os.environ.get("COMPAT_REMOTE", "http://127.0.0.1:1") + "/agents/compat-served"


class CompatCaller(Agent):
    """Uses it."""

    async def ask(self, words: str) -> list[Any]:
        run = await self.run_agent(CompatRemote, words)
        return [run.status, run.output]


app = App(agents=[CompatOffice, CompatTalker, CompatLong, CompatLead, CompatServed, CompatCaller], settings=SETTINGS)
