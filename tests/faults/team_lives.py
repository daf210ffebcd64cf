"""Kills one process after the other while agents work in teams, and checks that no branch is done twice, or lost.

    python -m tests.faults.team_lives --level process --lives 200 --seed 7

As in `run_lives`; but the roots share out their work, keep children, and follow what these show.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.lives import main
from tests.faults.run_checker import Left, read_folder
from tests.faults.run_lives import RunRunner
from tests.faults.run_workload import WORLD
from tests.faults.team_model import TeamLeft, TeamModel
from tests.faults.team_workload import Captain, Owner

from sapwood import App


class TeamRunner(RunRunner):
    """Runs lives of teams, and a calm one at the end of each folder."""

    longest = 0.6
    patience = 1.0
    root = Captain
    person = Owner
    kinds = "btpPzqwwwshhiicCnff"

    def __init__(self, *how: Any) -> None:
        WORLD.root = Captain
        super().__init__(*how)

    async def work(self, app: App, random: Random, where: Sequence[str]) -> None:
        WORLD.talks = random.random() < 0.6
        await super().work(app, random, where)

    def model(self) -> TeamModel:
        return TeamModel()

    def read(self, folder: Path) -> Mapping[str, Left]:
        return read_folder(folder, TeamLeft)


if __name__ == "__main__":
    sys.exit(main(TeamRunner, __doc__))
