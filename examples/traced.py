"""A desk and its helper in one trace. It needs the extra `otel`."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sapwood import Agent, App, ChatAgent, Settings, agent_tool, tool
from sapwood.testing import ScriptedModel, call, text


# --8<-- [start:agents]
class Helper(ChatAgent):
    """Knows about water."""

    model = ScriptedModel(text("It is wet."), each=True)


class Desk(ChatAgent):
    model = ScriptedModel(
        call("helper", id="c1", message="water?"),
        call("remind", id="c2"),
        text("Water is wet."),
        each=True,
    )
    tools = (agent_tool(Helper),)

    @tool
    async def remind(self) -> str:
        """Come back to it later."""
        self.schedule(timedelta(seconds=0.1), self.come_back)
        return "later"

    async def come_back(self) -> None:
        await self.sub_agent(Note, "note")

    async def is_coming_back(self) -> bool:
        return bool(self.schedules.list())


class Note(Agent): ...


# --8<-- [end:agents]
# --8<-- [start:setup]
def set_up(exporter: SpanExporter) -> None:
    """Call this before the app starts."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


# --8<-- [end:setup]
def print_spans(spans: Sequence[ReadableSpan]) -> None:
    """Print spans as trees."""
    children: dict[int | None, list[ReadableSpan]] = {}
    ids = {span.context.span_id for span in spans if span.context}
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        parent = span.parent.span_id if span.parent else None
        children.setdefault(parent if parent in ids else None, []).append(span)

    def show(span: ReadableSpan, depth: int) -> None:
        links = f", linked to {len(span.links)}" if span.links else ""
        print(f"{'  ' * depth}{span.name}{links}")
        assert span.context is not None
        for one in children.get(span.context.span_id, []):
            show(one, depth + 1)

    for span in children.get(None, []):
        show(span, 0)


async def main(data: str) -> None:
    exporter = InMemorySpanExporter()  # in production, export to a collector
    set_up(exporter)
    async with App(agents=[Desk], settings=Settings(data=data)) as app:
        desk = await app.get_agent(Desk, "d")
        await desk.send("What about water?")
        while await desk.is_coming_back():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    print_spans(exporter.get_finished_spans())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "traced-data"))
