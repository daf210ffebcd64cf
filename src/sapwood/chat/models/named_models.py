"""Models by name: those that the app has named, and those of Pydantic AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sapwood.chat.models.model_check import ModelUnusable
from sapwood.clock import Clock
from sapwood.errors import UsageError
from sapwood.settings import Settings

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class NamedModels:
    """The models of one node for requests that no agent makes."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.models: Mapping[str, Any] = {}
        """`App(models=…)`."""

    def find(self, name: str) -> Model:
        """Return the model of a name. Raises `ModelUnusable` if there is none."""
        return model_of(self.models.get(name, name))


def names_of(models: Mapping[str, Any]) -> str:
    """Return the names of `App(models=…)` as a sentence, for the error of a name that is unknown."""
    return f"Names of App(models=…): {', '.join(models)}." if models else "App(models=…) has no names."


def model_of(model: Any) -> Model:
    """Return a model that is given by its name, or as it is. Raises `ModelUnusable` if the name cannot be used."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        return infer_model(model)
    except (UserError, ImportError, ValueError) as error:
        raise ModelUnusable(str(error)) from error


def check_names(models: Mapping[str, Any]) -> None:
    """Refuse `App(models=…)` that are not models by name."""
    for name, model in models.items():
        is_model = isinstance(model, str) or hasattr(model, "request_stream")
        if not isinstance(name, str) or not name or not is_model:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"App(models={{{name!r}: …}}): expected a name, and a Pydantic AI model or its name, got {model!r}."
            )
