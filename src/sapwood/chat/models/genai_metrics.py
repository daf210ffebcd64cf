"""The metrics of model requests, tools and turns of one node, by the names of OpenTelemetry's GenAI conventions.

The labels are the class of the agent, the model and the tool. Addresses and users are not labels: their number has
no limit. Counting is a sum in memory. A new process starts at zero, as with every counter of Prometheus.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sapwood.chat.models.prices import models_of
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.clock import Clock
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.metric_families import CounterFamily, HistogramFamily, MetricFamilies
from sapwood.settings import Settings

AGENT, MODEL, ANSWERED_BY = "gen_ai_agent_name", "gen_ai_request_model", "gen_ai_response_model"
TOKENS = tuple(4**power for power in range(14))
SECONDS = tuple(0.01 * 2**power for power in range(14))
"""The bounds of buckets that the conventions recommend."""
CANCELLED = "cancelled"
"""The `error_type` of a request that was cancelled, by a person or because its agent was deleted."""

DEFERRED = ("ApprovalRequired", "CallDeferred")
"""What Pydantic AI raises for a tool call that is not executed now."""


class GenAiMetrics:
    """Counts what the chat agents of one node do with models."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._tokens = HistogramFamily(
            "gen_ai_client_token_usage",
            "Tokens of a model request, by type. Those of the cache are a part of the input.",
            (AGENT, MODEL, ANSWERED_BY),
            ("gen_ai_token_type",),
            bounds=TOKENS,
        )
        self._requests = HistogramFamily(
            "gen_ai_client_operation_duration_seconds",
            "Duration of model requests, with the reason if they failed.",
            (AGENT, MODEL, "error_type"),
            bounds=SECONDS,
        )
        self._first_chunks = HistogramFamily(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "Time from a model request to the first chunk of its response.",
            (AGENT, MODEL),
            bounds=SECONDS,
        )
        self._tools = HistogramFamily(
            "gen_ai_execute_tool_duration_seconds",
            "Duration of tool calls, with the reason if they failed.",
            (AGENT, "gen_ai_tool_name", "error_type"),
            bounds=SECONDS,
        )
        self._cost = CounterFamily(
            "sapwood_model_cost_dollars",
            "Cost of the model requests with a known price, in dollars.",
            (AGENT, MODEL, ANSWERED_BY),
        )
        self._unpriced = CounterFamily(
            "sapwood_model_requests_unpriced", "Model requests with an unknown cost.", (AGENT, MODEL, ANSWERED_BY)
        )
        self._turns = CounterFamily("sapwood_turns", "Turns that ended, by outcome.", (AGENT,), ("outcome",))

    def register(self, families: MetricFamilies) -> None:
        """Let the server read these metrics."""
        families.histograms += (self._tokens, self._requests, self._first_chunks, self._tools)
        families.counters += (self._cost, self._unpriced, self._turns)

    def used(self, agent: str, model: str, usage: ModelRequestUsage) -> None:
        """Count the tokens and the cost of a request."""
        names = (agent, model, usage.model)
        tokens = {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        }
        for kind, count in tokens.items():
            if count > 0:  # a provider that reports none has not counted them
                self._tokens.note(count, *names, kind)
        if usage.cost is None:
            self._unpriced.add(1, *names)
        else:
            self._cost.add(usage.cost, *names)

    def requested(self, agent: str, model: str, seconds: float, error: str) -> None:
        """Count a request that ended; `error` says why it failed."""
        self._requests.note(seconds, agent, model, error)

    def answered_first(self, agent: str, model: str, seconds: float) -> None:
        """Count the first chunk of a response."""
        self._first_chunks.note(seconds, agent, model)

    def called(self, agent: str, tool: str, seconds: float, error: str) -> None:
        """Count a tool call that ended; `error` says why it failed."""
        self._tools.note(seconds, agent, tool, error)

    def ended(self, agent: str, outcome: str) -> None:
        """Count a turn that ended."""
        self._turns.add(1, agent, outcome)


class RequestTimer:
    """Counts one model request."""

    def __init__(self, actor: Actor, asked: Any) -> None:
        self._metrics = actor.host.shared(GenAiMetrics)
        models = models_of(asked)
        self._names = (actor.kind.type, models[0][1] if models else "")  # with fallbacks, the first one's
        self._time = actor.host.loop.time
        self._sent_at = self._time()

    def first_chunk(self) -> None:
        """The model began to answer."""
        self._metrics.answered_first(*self._names, self._time() - self._sent_at)

    def used(self, usage: ModelRequestUsage) -> None:
        """Its usage is known."""
        self._metrics.used(*self._names, usage)

    def end(self, error: str) -> None:
        """The request is over; `error` says why it failed."""
        self._metrics.requested(*self._names, self._time() - self._sent_at, error)


@contextmanager
def timed_tool(actor: Actor, name: str) -> Generator[None, None, None]:
    """Count the tool call in this block, unless it is left to a person, a client or a run."""
    metrics, time = actor.host.shared(GenAiMetrics), actor.host.loop.time
    began, problem = time(), CANCELLED
    try:
        yield
        problem = ""
    except Exception as error:
        problem = type(error).__name__
        raise
    finally:
        if problem not in DEFERRED:
            metrics.called(actor.kind.type, name, time() - began, problem)
