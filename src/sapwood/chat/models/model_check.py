"""Checks that the model of a chat agent can be used, as far as that is known without a network."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

from sapwood.errors import UsageError

CREDENTIAL_CHAINS = ("bedrock", "google-cloud", "google-vertex", "gateway/bedrock", "gateway/google-cloud")
"""Providers that look for credentials on the network when their client is made. Their models are not checked."""


class ModelUnusable(Exception):
    """The model of an agent cannot be used: its name is unknown, or its key or its package is missing."""


def check_class(cls: Any) -> None:
    """Refuse a class whose `model` cannot be used."""
    model, name = cls.model, cls.__name__
    if model is None and cls.loop is None:
        raise UsageError(
            f'{name} has no model. Set `model`, such as "openai:gpt-5", or write get_model() or respond().'
        )
    if not _is_model(model):
        got = f"the class {model.__name__}. Write {model.__name__}(…)" if isinstance(model, type) else repr(model)
        raise UsageError(
            f'{name}.model must be the name of a model, such as "openai:gpt-5", or a Model of Pydantic AI, got {got}.'
        )
    others = ((f"alternative_models[{key!r}]", one) for key, one in cls.alternative_models.items())
    for place, one in (("model", model), *others):
        try:
            check_model(one)
        except ModelUnusable as error:
            raise UsageError(f"{name}.{place} cannot be used, got {one!r}: {error}") from None


def check_alternatives(cls: Any) -> None:
    """Refuse a class whose `alternative_models` are not models by their names."""
    given, name = cls.alternative_models, cls.__name__
    if not isinstance(given, Mapping):
        raise UsageError(f"{name}.alternative_models must be models by their names, got {given!r}.")
    for key, model in cast("Mapping[Any, Any]", given).items():
        if not (isinstance(key, str) and key and model is not None and _is_model(model)):
            raise UsageError(
                f"{name}.alternative_models must have models of Pydantic AI, or their names, by names of your own, got "
                f"{key!r}: {model!r}."
            )


def _is_model(value: Any) -> bool:
    from pydantic_ai.models import Model

    # A property is known only by an agent.
    return value is None or isinstance(value, str | Model) or hasattr(value, "__get__")


def check_model(model: Any) -> None:
    """Raise `ModelUnusable` if a model is given by a name that cannot be used. Other models are not checked."""
    if isinstance(model, str) and not model.startswith(tuple(f"{one}:" for one in CREDENTIAL_CHAINS)):
        _infer(model)


@functools.cache
def _infer(name: str) -> None:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        infer_model(name)
    except (UserError, ImportError, ValueError) as error:
        raise ModelUnusable(str(error)) from error
