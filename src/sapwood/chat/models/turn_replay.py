"""Asks a model the stored requests of a turn again. Tools are answered from what they returned then: none runs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from sapwood.chat.models.prices import Prices
from sapwood.chat.models.provider_errors import in_words, retry_after
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.chat.models.stored_request import StoredRequest
from sapwood.when import Retry

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models import Model

log = logging.getLogger(__name__)

MOST_STEPS = 50
"""Steps of a replayed turn."""
PROVIDER = Retry(max_attempts=3, initial_delay=timedelta(seconds=1), max_delay=timedelta(seconds=30))
"""How often a provider is asked that cannot answer now."""
Ending: TypeAlias = Literal["completed", "unknown_call", "failed", "too_many_steps"]


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A tool call that a model asked for."""

    tool: str
    arguments: Any
    """A text if the model wrote no JSON."""

    @property
    def key(self) -> tuple[str, str]:
        """What two calls have in common that are the same."""
        return self.tool, json.dumps(self.arguments, sort_keys=True)


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """What a model answered in one step."""

    step: int
    text: str
    calls: Sequence[AskedCall] = ()
    model: str | None = None
    """Who answered, as the provider calls it."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """In dollars. `None` if it is unknown."""
    seconds: float | None = None

    def is_same(self, other: ReplayedStep) -> bool:
        """Return whether the text and the tool calls are those of another step."""
        calls, others = [one.key for one in self.calls], [one.key for one in other.calls]
        return self.text.strip() == other.text.strip() and calls == others


@dataclass(slots=True)
class TurnReplay:
    """What became of a turn when a model was asked again."""

    steps: list[ReplayedStep] = field(default_factory=list[ReplayedStep])
    ended: Ending = "completed"
    problem: str | None = None
    """Why it ended early."""


Gate: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Is entered for each request: the provider may have a limit."""


class Replayer:
    """Asks one model."""

    def __init__(self, model: Model, prices: Prices, gate: Gate, instructions: str | None = None) -> None:
        self._model = model
        self._prices = prices
        self._gate = gate
        self._instructions = instructions

    async def step(self, number: int, request: StoredRequest, replay: TurnReplay) -> None:
        """Ask one request again, and note in `replay` what became of it."""
        await self._ask(replay, number, request)

    async def turn(self, requests: Sequence[StoredRequest], replay: TurnReplay) -> None:
        """Ask the first request of a turn again, and continue with the results that its tools returned then.

        What the model answers is noted in `replay` as it comes: it costs money also if the replay is interrupted.
        """
        request, results = requests[0], ToolResults(requests)
        while (response := await self._ask(replay, len(replay.steps) + 1, request)) is not None:
            made = [part for part in response.parts if part.part_kind == "tool-call"]
            if not made or request.output_tools & {part.tool_name for part in made}:
                break
            unknown = [call for part in made if (call := asked_call(part)).key not in results]
            if unknown:
                replay.ended = "unknown_call"
                replay.problem = f"called a tool that the original did not: {', '.join(map(as_text, unknown))}"
                break
            if len(replay.steps) >= MOST_STEPS:
                replay.ended, replay.problem = "too_many_steps", f"stopped after {MOST_STEPS} steps"
                break
            following = requests[len(replay.steps)] if len(replay.steps) < len(requests) else None
            request = request.continued([response, results.answer(made, following)])

    async def _ask(self, replay: TurnReplay, number: int, request: StoredRequest) -> Any:
        """Add what the model answers; return it, or `None` if it failed."""
        asked = request if self._instructions is None else request.instructed(self._instructions)
        for failed in range(1, PROVIDER.max_attempts + 1):
            try:
                response, seconds = await self._request(asked)
                break
            except Exception as error:  # a model may be code of the user's
                wait = retry_after(error, PROVIDER.wait(failed))
                log.info("replayed request failed model=%s", self._model.model_id, exc_info=wait is None)
                if wait is None or failed == PROVIDER.max_attempts:
                    words = in_words(error, said=False) or f"{type(error).__name__}: {error}"
                    replay.ended, replay.problem = "failed", words
                    return None
            await asyncio.sleep(wait.seconds)
        else:
            raise AssertionError
        used = ModelRequestUsage.of(response, self._model, self._prices)
        replay.steps.append(
            replace(
                answered(number, response),
                model=used.model or None,
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                cost=used.cost,
                seconds=seconds,
            )
        )
        return response

    async def _request(self, asked: StoredRequest) -> tuple[Any, float]:
        """Return the response to a request, and its seconds."""
        from pydantic_ai.direct import model_request_stream

        settings: Any = asked.settings or None
        async with self._gate():
            now = asyncio.get_running_loop().time
            began = now()
            async with model_request_stream(
                self._model,
                list(asked.messages),
                model_settings=settings,
                model_request_parameters=asked.parameters,
            ) as stream:
                async for _ in stream:
                    pass
                return stream.get(), now() - began


class ToolResults:
    """What the tools of a turn returned in it, by tool and arguments."""

    def __init__(self, requests: Sequence[StoredRequest]) -> None:
        self._found: dict[tuple[str, str], list[Any]] = {}
        self._used: dict[tuple[str, str], int] = {}
        earlier = Counter(part.tool_call_id for part in _parts_of(requests[0]) if _is_result(part))
        """The results of earlier turns. Ids are unique only in a turn."""
        known: set[str] = set()
        for request in requests[1:]:
            calls, met = dict[str, AskedCall](), Counter[str]()
            for part in _parts_of(request):
                if part.part_kind == "tool-call":
                    calls[part.tool_call_id] = asked_call(part)
                elif _is_result(part):
                    id = part.tool_call_id
                    met[id] += 1
                    if id in calls and id not in known and met[id] > earlier[id]:
                        known.add(id)
                        self._found.setdefault(calls[id].key, []).append(part)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._found

    def answer(self, made: Sequence[Any], following: StoredRequest | None) -> ModelRequest:
        """Return the message that answers calls, with what else the model received then."""
        from pydantic_ai.messages import ModelRequest

        parts = [replace(self._next(asked_call(part).key), tool_call_id=part.tool_call_id) for part in made]
        more: list[Any] = []
        last = following.messages[-1] if following is not None and following.messages else None
        if isinstance(last, ModelRequest):
            more = [part for part in last.parts if part.part_kind == "user-prompt"]
        return ModelRequest(parts=[*parts, *more])

    def _next(self, key: tuple[str, str]) -> Any:
        """Return the next result of the same call; the last one again if the original made it less often."""
        at = self._used.get(key, 0)
        self._used[key] = at + 1
        found = self._found[key]
        return found[min(at, len(found) - 1)]


def _parts_of(request: StoredRequest) -> Iterator[Any]:
    for message in request.messages:
        yield from message.parts


def _is_result(part: Any) -> bool:
    return part.part_kind in ("tool-return", "retry-prompt")


def answered(number: int, response: Any) -> ReplayedStep:
    """Return what a response says."""
    text = "".join(part.content for part in response.parts if part.part_kind == "text")
    return ReplayedStep(number, text, [asked_call(part) for part in response.parts if part.part_kind == "tool-call"])


def asked_call(part: Any) -> AskedCall:
    """Return the tool call of a part."""
    given = part.args
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except ValueError:
            return AskedCall(part.tool_name, given)
    return AskedCall(part.tool_name, given or {})


def as_text(call: AskedCall) -> str:
    """Return a call as people write it."""
    arguments: Any = call.arguments
    if not isinstance(arguments, dict):
        return f"{call.tool}({arguments!r})"
    fields = cast("dict[str, Any]", arguments)
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
    return f"{call.tool}({given})"
