"""The outputs of runs: read from what is stored as the type that `on_run` declares."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.errors import InvalidResult, NotCopyable
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.copier import unjson_hook, without_object


def read_output(kind: AgentClass, text: str) -> Any:
    """Return the output of a run from JSON; `InvalidResult` if it does not fit the annotation of `on_run`."""
    method = kind.own("on_run") if kind.overrides("on_run") else None
    if method is None or method.streams:
        return msgspec.json.decode(text)
    what = f"The result of {method.full_name}()"
    try:
        return msgspec.json.decode(text, type=without_object(method.signature.returned), dec_hook=unjson_hook)
    except msgspec.ValidationError as error:
        raise InvalidResult(f"{what} does not fit: {error}.") from None
    except (TypeError, NotImplementedError) as error:
        raise NotCopyable(f"{what} is annotated with a type that cannot be copied: {error}") from None
