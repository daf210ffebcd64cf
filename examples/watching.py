"""A desk with writers and checkers, and a subscriber to the events of their runs.

Run it to print the events. To see them in a browser, run `sapwood serve watching.py`
and open http://127.0.0.1:8000/agents/desk/main.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sapwood import Agent, App, Settings, expose
from sapwood.types import Event


# --8<-- [start:agents]
class Checker(Agent):
    """Checks one fact."""

    async def on_run(self, fact: str) -> str:
        self.report_progress(milestone="looked it up")
        return f"{fact}: true"


class Writer(Agent):
    """Writes about a topic, word by word, and runs a checker."""

    async def on_run(self, topic: str) -> AsyncGenerator[str, None]:
        for number, word in enumerate(["All", "about", topic], 1):
            yield f"{word} "
            self.report_progress(number / 3, f"{number} of 3 words")
        await self.run_agent(Checker, topic)


class Desk(Agent):
    """Runs several writers in parallel."""

    @expose
    async def publish(self, *topics: str) -> list[str]:
        runs = await asyncio.gather(
            *(self.run_agent(Writer, topic) for topic in topics)
        )
        return [run.summary for run in runs]

    # --8<-- [end:agents]
    async def on_request(self, request: Request) -> Response:
        if request.method == "POST":
            return Response(", ".join(await self.publish("bread", "salt")))
        return HTMLResponse(PAGE)


PAGE = """<!doctype html>
<!-- --8<-- [start:page] -->
<title>Desk</title>
<button onclick="fetch(location.href, {method: 'POST'})">Publish</button>
<div id="runs"></div>
<script>
  const panels = {}
  const source = new EventSource(location.pathname + "/events?depth=tree")
  source.onmessage = ({data}) => {
    const event = JSON.parse(data)
    if (event.kind === "started") {
      const panel = panels[event.runId] = document.createElement("fieldset")
      const legend = event.path.slice(1).map((step) => step.type).join(" / ")
      panel.innerHTML = "<legend></legend><p></p><small>running</small>"
      panel.querySelector("legend").textContent = legend
      const parent = panels[event.parentRunId] ?? document.getElementById("runs")
      parent.append(panel)
    }
    const panel = panels[event.runId]
    if (event.kind === "chunk" && event.body.type === "text-delta")
      panel.querySelector("p").textContent += event.body.delta
    if (event.kind === "progress")
      panel.querySelector("small").textContent = event.body.message
    if (["completed", "failed", "cancelled", "interrupted"].includes(event.kind))
      panel.querySelector("small").textContent = event.kind
  }
</script>
<!-- --8<-- [end:page] -->
"""

app = App(agents=[Desk])


def describe(event: Event) -> str:
    where = " / ".join(step.type for step in event.path)
    return f"{where}: {event.kind} {event.body}"


async def main(data: str) -> None:
    async with App(agents=[Desk], settings=Settings(data=data)) as app:
        # --8<-- [start:watch]
        desk = await app.get_agent(Desk, "main")
        publishing = asyncio.create_task(desk.publish("bread"))
        cursor = None
        async for event in desk.subscribe("tree"):
            print(describe(event))
            cursor = event.cursor
            if event.kind == "milestone":
                break
        # --8<-- [end:watch]
        await publishing
        print("and now the rest")
        # --8<-- [start:again]
        async for event in desk.subscribe("tree", after=cursor):
            print(describe(event))
            if event.kind == "completed" and event.path[-1].type == "Writer":
                break
        # --8<-- [end:again]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
