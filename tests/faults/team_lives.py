"""Kills one process after the other while agents work in teams, and checks that no branch is done twice, or lost.

    python -m tests.faults.team_lives --level process --lives 200 --seed 7

As in `run_lives`; but the roots share out their work, keep children, follow what these show, and
have somebody far down ask for approval. In the calm life whoever asks is answered.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.lives import Death, main
from tests.faults.run_checker import Left, read_folder
from tests.faults.run_lives import RunRunner
from tests.faults.run_workload import WORLD
from tests.faults.team_model import TeamLeft, TeamModel
from tests.faults.team_workload import Captain, Owner

from sapwood import App

KINDS = "btpPzqwwwshhiicCnff"
ASKED = "qqrrrRRttzhc"


class TeamRunner(RunRunner):
    """Runs lives of teams, and a calm one at the end of each folder."""

    longest = 0.6
    patience = 1.0
    root = Captain
    person = Owner
    kinds = KINDS

    def __init__(self, *how: Any) -> None:
        WORLD.root = Captain
        super().__init__(*how)

    def _death(self, life: int, random: Random) -> Death:
        """Return how this life ends; what is asked far down takes its time, and so do lives in which much is."""
        death, draw = super()._death(life, random), random.random()
        WORLD.talks, WORLD.asks = draw < 0.7, draw < 0.35
        self.kinds = ASKED if WORLD.asks else KINDS
        return replace(death, after=death.after * 2) if WORLD.asks else death

    async def run_out(self, app: App, where: Sequence[str]) -> list[str]:
        deciding = asyncio.ensure_future(Owner(app, Random(where[0] if where else ""), where, []).decide_all())
        try:
            return await super().run_out(app, where)
        finally:
            deciding.cancel()
            await asyncio.wait({deciding})

    def model(self) -> TeamModel:
        return TeamModel()

    def read(self, folder: Path) -> Mapping[str, Left]:
        return read_folder(folder, TeamLeft)


if __name__ == "__main__":
    sys.exit(main(TeamRunner, __doc__))
