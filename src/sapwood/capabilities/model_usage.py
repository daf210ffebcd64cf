"""What an agent, and everything below it, has used of models: as the root of its tree knows it."""

from __future__ import annotations

from typing import Any

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.tree import tree_of
from sapwood.kernel.trees.usage import Usage, UsageMeter


class Accounts:
    """The accounts of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def used(self, *, below: bool) -> dict[str, Any]:
        """Return what it has used, by model, with all `below` it or alone."""
        spending = self._spending()
        return {model: spent.told() for model, spent in spending.by_model(self._actor.stem, below=below).items()}

    async def all(self) -> list[Usage]:
        """Return what it and those below it have used, one entry per run and model."""
        return self._spending().rows(self._actor.address)

    def _spending(self) -> UsageMeter:
        self._actor.check_use()
        tree = tree_of(self._actor)
        return tree.spending
