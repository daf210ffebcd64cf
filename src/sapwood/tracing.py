"""One trace through everything that one cause brings about, if the program has set up OpenTelemetry.

What is stored for later carries the W3C trace context of what stored it. Without a tracer
provider nothing here costs more than a look at a variable.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

tracer: Any = None
"""Makes the spans. `None` means that tracing is off."""


def begin() -> None:
    """See whether the program has set up OpenTelemetry. An app does so when it starts."""
    global tracer  # noqa: PLW0603 - OpenTelemetry has one for the process too
    try:
        from opentelemetry import trace
    except ImportError:
        return
    provider = trace.get_tracer_provider()
    nobody = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    tracer = None if nobody else trace.get_tracer("sapwood")


class Span:
    """A span that has begun; without tracing it records nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **attributes: Any) -> None:
        """Note more about it; a double underscore stands for a dot, and None for nothing."""
        if self._span is not None:
            self._span.set_attributes(_attributes(attributes))

    def fail(self, why: str) -> None:
        """Note that it went wrong."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, why))


NOBODYS = Span()


@contextmanager
def span(
    name: str, *, parent: str | None = None, links: Sequence[str | None] = (), is_new: bool = False, **attributes: Any
) -> Generator[Span, None, None]:
    """Have what the block does be a span: below `parent`, of a trace that is new, or else below the current one.

    Names of attributes are written with a double underscore for a dot.
    """
    if tracer is None:
        yield NOBODYS
        return
    from opentelemetry.context import Context
    from opentelemetry.trace import Link

    above = context_of(parent) if parent is not None else Context() if is_new else None
    found = [Link(context) for text in links if (context := _parsed(text)) is not None]
    with tracer.start_as_current_span(name, context=above, links=found, attributes=_attributes(attributes)) as one:
        yield Span(one)


def spanned(name: str, function: Callable[..., Awaitable[Any]], **attributes: Any) -> Callable[..., Awaitable[Any]]:
    """Return a function whose every call is a span."""
    if tracer is None:
        return function

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        with span(name, **attributes):
            return await function(*args, **kwargs)

    return run


def carried() -> Any:
    """Return what a call takes along, so that what it does belongs to the same trace."""
    if tracer is None:
        return None
    from opentelemetry.context import get_current

    return get_current()


def enter(context: Any) -> None:
    """Have the rest of this task belong to the trace that was carried here."""
    from opentelemetry.context import attach

    attach(context)


def text() -> str | None:
    """Return the W3C trace context of the current span, to be stored, or `None` if there is none."""
    if tracer is None:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, or `None` if there is none."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def context_of(text: str | None) -> Any:
    """Return the context of a stored W3C trace context, or `None` if tracing is off."""
    if tracer is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    found = _parsed(text)
    return Context() if found is None else set_span_in_context(NonRecordingSpan(found), Context())


def _parsed(text: str | None) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    parts = text.split("-") if text else []
    try:
        trace, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    found = SpanContext(trace, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return found if found.is_valid else None


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in given.items() if value is not None}
