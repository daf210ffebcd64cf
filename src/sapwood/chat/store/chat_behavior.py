"""What the turns of a conversation ask of the class of its agent: the settings and hooks that users write."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sapwood.chat.store.chunks import Chunk
from sapwood.chat.store.turns import Turn

if TYPE_CHECKING:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.messages import ModelMessage


class ChatBehavior(Protocol):
    """The settings and hooks of `ChatAgent`, as its turns see them. `ChatAgent` documents each."""

    loop: PydanticAgent[Any, Any] | None
    tools: Sequence[Any]
    capabilities: Sequence[Any]
    output_type: Any
    model_settings: Any
    alternative_models: Mapping[str, Any]
    max_steps: int
    max_retries: int
    max_messages: int | None
    page_messages: int
    page_bytes: int
    compact_above: int | None
    stall_timeout: float | None
    concurrency: str
    debounce: float

    def get_model(self) -> Any: ...

    def get_instructions(self) -> Any: ...

    async def before_turn(self, turn: Turn[Any]) -> None: ...

    async def after_turn(self, turn: Turn[Any]) -> None: ...

    async def before_step(self, turn: Turn[Any], step: int) -> None: ...

    async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None: ...

    async def after_tool_call(self, tool: str, arguments: dict[str, Any], result: Any) -> None: ...

    async def compact(self, messages: list[ModelMessage]) -> str | None: ...

    def respond(self, turn: Turn[Any]) -> AsyncGenerator[str | Chunk, None]: ...

    def on_chunk(self, chunk: Chunk) -> None: ...
