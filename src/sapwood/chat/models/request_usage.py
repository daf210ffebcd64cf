"""What one request to a model has used: tokens by kind, and their cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sapwood.chat.models.prices import Prices, cost_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse


@dataclass(frozen=True, slots=True)
class ModelRequestUsage:
    """What one request to a model has used."""

    model: str
    """Who answered, as the provider calls it."""
    input_tokens: int
    """All that the model has read, with those of the cache."""
    output_tokens: int
    cost: float | None
    """In dollars. `None` if the price is unknown, or the request was cut off before the provider reported its usage."""
    cache_read_tokens: int = 0
    """The part of the input that came from the provider's cache."""
    cache_write_tokens: int = 0
    """The part of the input that was written to the provider's cache."""

    @classmethod
    def of(cls, response: ModelResponse, asked: Any, prices: Prices) -> ModelRequestUsage:
        """Return what a response has used of the model that was `asked`."""
        usage = response.usage
        return cls(
            response.model_name or "",
            usage.input_tokens,
            usage.output_tokens,
            cost_of(response, asked, prices),
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
