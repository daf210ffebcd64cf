"""Keeps a tree in memory for as long as a caller needs it there."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sapwood.kernel.actors.actor import Actor


class KeepAlive:
    """Keeps a tree in memory until it is released. Releasing it twice does nothing."""

    def __init__(self, actor: Actor) -> None:
        actor.check_use()
        self._held = actor.home.kept_awake
        self._held[self] = actor

    def release(self) -> None:
        """Let the tree sleep again when it is idle."""
        self._held.pop(self, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
