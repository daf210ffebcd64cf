"""Chat completions: turns of an agent, found again by the history that the client sends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

from sapwood.protocols.exchange import Exchange
from sapwood.protocols.openai_chat import ChatRequest
from sapwood.protocols.openai_create import CreateRequest
from sapwood.protocols.openai_errors import ApiError, error_body
from sapwood.protocols.openai_formats import check_format
from sapwood.protocols.openai_ids import conversation_id
from sapwood.protocols.openai_input import Input
from sapwood.protocols.openai_items import ASK_PERSON, Json
from sapwood.protocols.openai_responses import NewTurn, Responses
from sapwood.protocols.openai_table import ResponseRow
from sapwood.runs.tables.question import Answer

KEEP = timedelta(days=1)
"""How long an agent is kept that no later request can name."""
BETWEEN = "\n\n"
"""What stands between two texts of one answer."""
BEGUN_AGAIN = "The answer was interrupted and begins again. Send the request again."


class Completions:
    """The chat completions of one agent, for one client."""

    def __init__(self, exchange: Exchange, responses: Responses, model: str) -> None:
        self._exchange = exchange
        self._responses = responses
        self._model = model

    async def create(self, asked: ChatRequest, key: str | None, *, resends: bool, is_single: bool) -> ResponseRow:
        """Start a turn, or find the one that the request has started before.

        `resends` says that the client sends the whole history each time. `is_single` says that no later request can
        name the agent.
        """
        id = self._responses.id_for(key)
        known = self._responses.known(id, asked.digest)
        check_format(asked.format, self._exchange.output_type, "response_format")
        if asked.history.answers:
            return await self._responses.continued(self._answers(asked), id)
        if known is not None:
            return known
        new = self._placed(asked, resends=resends)
        if isinstance(new, ResponseRow):
            return new
        row = await self._responses.begin(new, id, asked.digest, self._repeated(asked))
        self._exchange.delete_after(KEEP if is_single else None)
        return row

    def _repeated(self, asked: ChatRequest) -> Json:
        return {**asked.repeated, "functions": [tool["name"] for tool in asked.tools]}

    def _answers(self, asked: ChatRequest) -> CreateRequest:
        """Return the results of tools as the request for the response that follows them."""
        answers = [(id, Answer("done", text), where) for id, text, where in asked.history.answers]
        if asked.called is None and asked.conversation is None:
            id, _, where = asked.history.answers[0]
            raise ApiError(f"No tool call has the id `{id[:80]}`.", param=where, code="no_tool_call_found")
        return CreateRequest(
            model=asked.model,
            input=Input(answers=answers),
            tools=asked.tools,
            conversation=asked.conversation,
            previous=None,
            previous_id=None,
            called=asked.called,
            format={"type": "text"},
            streams=asked.streams,
            in_background=False,
            hints=asked.hints,
            settings={},
            instructions=None,
            digest=asked.digest,
            repeated=asked.repeated,
        )

    def _placed(self, asked: ChatRequest, *, resends: bool) -> NewTurn | ResponseRow:
        place = self._responses.placed(asked.history, asked.called, resends=resends)
        if isinstance(place, ResponseRow):
            return place
        instructions = "\n\n".join(asked.history.instructions) or None
        parts = asked.history.last(with_earlier=place.with_earlier)
        return NewTurn(parts, asked.tools, asked.hints, asked.settings, instructions, place)

    # What is returned.

    async def finished(self, row: ResponseRow) -> tuple[Json, int]:
        """Return the completion once it has ended, and the status of the HTTP response."""
        response = await self._responses.finished(row)
        if (failure := _failure(response)) is not None:
            return failure, 429 if failure["error"]["code"] == "rate_limit_exceeded" else 500
        calls = self._calls(response)
        said = {"role": "assistant", "content": _text(response) or None, "refusal": None}
        message = {**said, "tool_calls": calls} if calls else said
        choice = {"index": 0, "message": message, "finish_reason": _reason(calls), "logprobs": None}
        about = {"choices": [choice], "usage": _usage(response["usage"])}
        return {**self._about(row, "chat.completion"), **about}, 200

    async def chunks(self, row: ResponseRow, *, with_usage: bool) -> AsyncGenerator[Json | None, None]:
        """Yield the chunks of a completion to its end; `None` as a keep-alive."""
        about = self._about(row, "chat.completion.chunk") | ({"usage": None} if with_usage else {})

        def chunk(delta: Json, reason: str | None = None) -> Json:
            return {**about, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

        yield chunk({"role": "assistant", "content": ""})
        said: set[str] = set()
        last: Json = {}
        async for event in self._responses.events(row):
            if event is None:
                yield None
            elif event["type"] == "response.output_text.delta":
                is_next = bool(said) and event["item_id"] not in said
                said.add(event["item_id"])
                yield chunk({"content": (BETWEEN if is_next else "") + event["delta"]})
            elif event["type"] == "response.output_item.done" and event["item"]["id"] in said:
                if event["item"]["status"] == "incomplete":  # these words cannot be taken back
                    yield error_body(503, BEGUN_AGAIN, code="answer_interrupted")
                    return
            elif "response" in event:
                last = event["response"]
        if (failure := _failure(last)) is not None:
            yield failure
            return
        if notice := _notice(last):
            yield chunk({"content": (BETWEEN if said else "") + notice})
        calls = self._calls(last)
        if calls:
            yield chunk({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]})
        yield chunk({}, _reason(calls))
        if with_usage:
            yield {**about, "choices": [], "usage": _usage(last["usage"])}

    def _about(self, row: ResponseRow, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{row.id}",
            "object": kind,
            "created": int(row.created_at),
            "model": self._model,
            "conversation": {"id": conversation_id(self._exchange.address)},
        }

    def _calls(self, response: Json) -> list[Json]:
        """Return the tool calls for the client."""
        return [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            for item in response["output"]
            if item["type"] == "function_call" and item["name"] != ASK_PERSON
        ]


def _text(response: Json) -> str:
    texts = [part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return BETWEEN.join([*texts, *filter(None, [_notice(response)])])


def _notice(response: Json) -> str:
    """Return what the user is told of questions that a chat completion has no form for."""
    lines: list[str] = []
    for item in response["output"]:
        if item["type"] == "mcp_approval_request":
            lines.append(f"[Waiting for an approval of {item['name']} {item['arguments']} by {item['server_label']}]")
        elif item["type"] == "function_call" and item["name"] == ASK_PERSON:
            lines.append(f"[Waiting for an answer to {item['arguments']}]")
    return "\n".join(lines)


def _reason(calls: Sequence[Json]) -> str:
    return "tool_calls" if calls else "stop"


def _failure(response: Json) -> Json | None:
    """Return the error of a completion without an answer."""
    if response["status"] == "completed":
        return None
    error: Json = response["error"] or {"message": "The answer was cancelled.", "code": "cancelled"}
    return error_body(429 if error["code"] == "rate_limit_exceeded" else 500, error["message"], code=error["code"])


def _usage(usage: Json) -> Json:
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
    }
