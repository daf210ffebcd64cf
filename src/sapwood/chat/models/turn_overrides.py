"""The model, its settings and instructions that one request asks for, over those of the class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from sapwood.chat.models.model_check import ModelUnusable
from sapwood.chat.store.chat_behavior import ChatBehavior

MOST = "max_tokens"
"""The setting that a request can only lower."""


class TurnOverrides(msgspec.Struct, omit_defaults=True):
    """What a request asks for in its turn."""

    settings: dict[str, Any] = {}
    """Fields of the `ModelSettings` of Pydantic AI."""
    instructions: str | None = None
    """Instructions beside those of the class."""
    model: str | None = None
    """The name of one of the alternative models of the class."""

    def model_of(self, agent: ChatBehavior) -> Any:
        """Return the model that answers."""
        if self.model is None:
            return agent.get_model()
        if self.model not in agent.alternative_models:
            raise ModelUnusable(
                f"The message asks for the model {self.model!r}, which is not in `alternative_models` of "
                f"{type(agent).__name__}."
            )
        return agent.alternative_models[self.model]

    def settings_over(self, own: Any) -> Any:
        """Return the settings of the class with those of the request."""
        if not self.settings:
            return own
        return partial(self._computed, own) if callable(own) else self._merged(own)

    def _computed(self, own: Callable[[Any], Any], context: Any) -> dict[str, Any]:
        return self._merged(own(context))

    def instructions_after(self, own: Any) -> Any:
        """Return the instructions of the class, followed by those of the request."""
        if self.instructions is None:
            return own
        if own is None:
            return self.instructions
        first = cast("Sequence[Any]", own) if isinstance(own, list | tuple) else [own]
        return [*first, self.instructions]

    def _merged(self, own: Any) -> dict[str, Any]:
        mine: Mapping[str, Any] = own or {}
        merged = {**mine, **self.settings}
        if mine.get(MOST) is not None and MOST in self.settings:
            merged[MOST] = min(mine[MOST], self.settings[MOST])
        return merged


def read_overrides(text: str | None) -> TurnOverrides:
    """Return what a turn has stored."""
    return TurnOverrides() if text is None else msgspec.json.decode(text, type=TurnOverrides)
