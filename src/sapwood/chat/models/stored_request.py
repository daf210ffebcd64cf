"""A request to a model that was stored in the form of Pydantic AI, so that a model can be asked it again."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.errors import StoredDataError

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters

NAMED_FILE = re.compile(rb'"<file sha256:[0-9a-f]{64}, [0-9]+ bytes>"')
"""What a record has in the place of a file."""


class _Body(msgspec.Struct):
    model: str
    settings: dict[str, Any]
    parameters: msgspec.Raw
    messages: msgspec.Raw


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """One request."""

    model: str
    """The model that was asked, with its provider."""
    settings: dict[str, Any]
    parameters: ModelRequestParameters
    messages: Sequence[Any]

    @classmethod
    def read(cls, body: str) -> StoredRequest:
        """Return a stored request."""
        from pydantic import ValidationError
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        try:
            form = msgspec.json.decode(body, type=_Body)
            messages = ModelMessagesTypeAdapter.validate_json(bytes(form.messages))
            parameters = _parameters().validate_json(bytes(form.parameters))
        except (msgspec.DecodeError, ValidationError) as error:
            raise StoredDataError(f"The record of this request cannot be read: {error}") from None
        return cls(form.model, form.settings, parameters, messages)

    def instructed(self, text: str) -> StoredRequest:
        """Return the request with other instructions."""
        from pydantic_ai.messages import InstructionPart, ModelRequest

        last = max((at for at, one in enumerate(self.messages) if isinstance(one, ModelRequest)), default=-1)
        messages = [
            replace(one, instructions=text)
            if isinstance(one, ModelRequest) and (at == last or one.instructions is not None)
            else one
            for at, one in enumerate(self.messages)
        ]
        parameters = replace(self.parameters, instruction_parts=[InstructionPart(content=text)])
        return replace(self, messages=messages, parameters=parameters)

    def continued(self, messages: Sequence[Any]) -> StoredRequest:
        """Return the request after further messages."""
        return replace(self, messages=[*self.messages, *messages])

    @property
    def output_tools(self) -> set[str]:
        """The names of the tools that end a turn."""
        return {tool.name for tool in self.parameters.output_tools}


def has_files(body: str) -> bool:
    """Return whether a stored request names files, whose bytes are not in the record."""
    return NAMED_FILE.search(body.encode()) is not None


@functools.cache
def _parameters() -> Any:
    from pydantic import TypeAdapter
    from pydantic_ai.models import ModelRequestParameters

    return TypeAdapter(ModelRequestParameters)
