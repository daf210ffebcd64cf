"""What models cost: by the prices of the app's settings, else by published prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

MILLION = 1_000_000

Prices = Mapping[str, tuple[float, float]]
"""Dollars for a million tokens that a model reads, and writes, by its name."""


def cost_of(response: ModelResponse, asked: Any, prices: Prices) -> float | None:
    """Return the cost of a response in dollars. `None` if the price or the usage is unknown."""
    usage = response.usage
    if not usage.has_values():
        return None
    for name in (response.model_name or "", *(name for _, name in models_of(asked))):
        if (price := prices.get(name)) is not None:
            return _at(price, usage.input_tokens, usage.output_tokens)
    try:
        return float(response.cost().total_price)
    except (LookupError, AssertionError, ValueError, AttributeError, TypeError):
        return None


def most(asked: Any, input_tokens: int, output_tokens: int, prices: Prices) -> float | None:
    """Return the most a request may cost in dollars: of several models, the dearest. `None` if a price is unknown."""
    costs = [
        _at(prices[name], input_tokens, output_tokens)
        if name in prices
        else _known(provider, name, input_tokens, output_tokens)
        for provider, name in models_of(asked)
    ]
    known = [cost for cost in costs if cost is not None]
    return max(known) if known and len(known) == len(costs) else None


def models_of(asked: Any) -> list[tuple[str | None, str]]:
    """Return provider and name of the models that may answer: several, if one stands in for another."""
    if isinstance(asked, str):
        provider, _, name = asked.rpartition(":")
        return [(provider or None, name)]
    if models := getattr(asked, "models", None):
        return [one for model in models for one in models_of(model)]
    return [] if asked is None else [(getattr(asked, "system", None), getattr(asked, "model_name", ""))]


def _at(price: tuple[float, float], input_tokens: int, output_tokens: int) -> float:
    reads, writes = price
    return (input_tokens * reads + output_tokens * writes) / MILLION


def _known(provider: str | None, name: str, input_tokens: int, output_tokens: int) -> float | None:
    from genai_prices import Usage, calc_price

    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    for of in (provider, None):  # Pydantic AI has other names for some
        try:
            return float(calc_price(usage, name, provider_id=of).total_price)
        except (LookupError, ValueError, AttributeError, TypeError):
            continue
    return None
