"""A state of another type."""

from __future__ import annotations

from notebooks import Stats
from sapwood import Agent


class Board(Agent[Stats]):
    initial_state = Stats()

    async def change(self) -> None:
        self.set_state(Stats(1))
        self.set_state(1)  # wrong
        number: int = self.state.notes
        text: str = self.state.notes  # wrong
