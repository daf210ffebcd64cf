"""What failures of model providers mean: a sentence for users, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass


def in_words(error: BaseException, *, said: bool) -> str | None:
    """Return a sentence for users about a failure of a provider, whose own words are in the log; else `None`."""
    from pydantic_ai import exceptions as theirs

    if isinstance(error, theirs.FallbackExceptionGroup):
        last = in_words(error.exceptions[-1], said=said)
        return "No model could answer." + (f" The last error: {last}" if last is not None else "")
    sentences: dict[type[BaseException], str] = {
        theirs.ModelTimeoutError: "The model did not answer in time.",
        theirs.ModelConnectionError: "The connection to the model was lost during its answer."
        if said
        else "The model could not be reached.",
        theirs.ModelRateLimitError: "The rate limit of the model was reached. Try again later.",
        theirs.ModelQuotaExceededError: "The quota of the account with the model's provider is exhausted.",
        theirs.ModelOverloadedError: "The model is overloaded. Try again later.",
        theirs.ModelUnavailableError: "The model is not available now. Try again later.",
        theirs.ModelServerError: "The model's provider failed. Try again later.",
        theirs.ModelContextWindowExceededError: "The conversation is too long for the model.",
        theirs.ModelAuthenticationError: "The model's provider rejected the API key.",
        theirs.ModelNotFoundError: "The model's provider does not know this model.",
        theirs.ModelRequestRejectedError: "The model's provider rejected the request.",
    }
    return next((sentence for kind, sentence in sentences.items() if isinstance(error, kind)), None)


@dataclass(frozen=True, slots=True)
class ProviderDelay:
    """How long to wait before a provider is asked again."""

    seconds: float
    for_all: bool
    """Whether the provider is overloaded; otherwise only this one request failed."""


def retry_after(error: BaseException, otherwise: float) -> ProviderDelay | None:
    """Return the delay before the next request to a provider, or `None` if a retry cannot succeed."""
    from pydantic_ai.exceptions import (
        FallbackExceptionGroup,
        ModelAPIError,
        ModelConnectionError,
        ModelRateLimitError,
        ModelServerError,
        ModelUnavailableError,
    )

    if isinstance(error, FallbackExceptionGroup):
        waits = [wait for one in error.exceptions if (wait := retry_after(one, otherwise)) is not None]
        return ProviderDelay(min(wait.seconds for wait in waits), for_all=False) if waits else None
    if not isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError | ModelConnectionError):
        return None
    assert isinstance(error, ModelAPIError)
    seconds = otherwise if error.retry_after is None else error.retry_after
    return ProviderDelay(seconds, for_all=isinstance(error, ModelRateLimitError | ModelUnavailableError))
