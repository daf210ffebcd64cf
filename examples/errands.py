"""An office that starts errands: awaited, concurrent, or in the background."""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sapwood import Agent, App, ChatAgent, Refused, Run, Settings, tool
from sapwood.testing import ScriptedModel, call, text


# --8<-- [start:worker]
@dataclass(frozen=True)
class Errand:
    what: str
    minutes: float = 0


class Runner(Agent):
    """Runs errands. Each run has its own instance."""

    async def on_run(self, errand: Errand) -> str:
        if errand.what == "the moon":
            raise Refused("the moon is not for sale")
        await self.step("walk", self._walk, errand.minutes)
        self.report_progress(0.5, "in the shop")
        return f"{errand.what}, here you are"

    async def _walk(self, minutes: float) -> None:
        await asyncio.sleep(minutes * 60)


# --8<-- [end:worker]
class Office(Agent):
    migrations = ("CREATE TABLE shelf (thing TEXT NOT NULL) STRICT",)

    # --8<-- [start:give]
    async def fetch(self, what: str) -> str:
        run = await self.run_agent(Runner, Errand(what), timeout=3600)
        if not run.ok:
            return f"{run.status}: {run.error or run.reason}"
        return run.output

    # --8<-- [end:give]
    # --8<-- [start:several]
    async def fetch_all(self, *things: str) -> list[str]:
        runs = await asyncio.gather(
            *(self.run_agent(Runner, Errand(what)) for what in things)
        )
        return [run.output for run in runs if run.ok]

    # --8<-- [end:several]
    # --8<-- [start:once]
    async def fetch_once(self, order: int, what: str) -> Run[str]:
        return await self.run_agent(Runner, Errand(what), run_id=f"order-{order}")

    # --8<-- [end:once]
    # --8<-- [start:cancel]
    async def wait_at_most(self, seconds: float, what: str) -> str:
        try:
            async with asyncio.timeout(seconds):
                run = await self.run_agent(Runner, Errand(what, minutes=60))
        except TimeoutError:
            return f"{what}: cancelled after the timeout"
        return run.output

    async def recall_errand(self, id: str) -> bool:
        return self.runs.cancel(id, "no longer needed")

    # --8<-- [end:cancel]
    # --8<-- [start:detached]
    async def order(self, what: str, minutes: float) -> str:
        run = await self.start_run(
            Runner,
            Errand(what, minutes),
            on_finish=self.put_away,
            max_duration=timedelta(hours=2),
        )
        return run.id

    async def put_away(self, run: Run[str]) -> None:
        if run.ok:
            self.sql("INSERT INTO shelf VALUES (?)", run.output)
        elif run.status == "interrupted":
            print(f"  {run.input['what']}: {run.error} It may still come.")
        else:
            print(f"  {run.input['what']}: {run.reason or run.error}")

    # --8<-- [end:detached]
    # --8<-- [start:result]
    async def wait_for(self, id: str) -> str:
        run = self.runs.get(id)
        if run is None:
            return "unknown"
        run = await run.result()
        return run.output if run.ok else f"{run.status}: {run.error or run.reason}"

    # --8<-- [end:result]
    async def shelf(self) -> list[str]:
        return [str(row["thing"]) for row in self.sql("SELECT thing FROM shelf")]

    async def cancelled_errands(self) -> list[str]:
        return [run.input["what"] for run in self.runs.list("cancelled")]

    async def status(self, id: str) -> str:
        run = self.runs.get(id)
        return "unknown" if run is None else run.status

    # --8<-- [start:tidy]
    async def tidy(self) -> int:
        return await self.runs.clear(status="completed", older_than=timedelta(days=7))

    # --8<-- [end:tidy]


# --8<-- [start:notify]
class Secretary(ChatAgent):
    model = ScriptedModel(
        call("send_for", id="c1", what="tea"),
        text("It is on its way."),
        text("The tea is here."),
        each=True,
    )

    @tool(idempotent=True)
    async def send_for(self, what: str) -> str:
        """Fetch something in the background."""
        await self.start_run(Runner, Errand(what), notify=True)
        return "started"


# --8<-- [end:notify]
def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


async def last_text(agent: ChatAgent) -> str:
    return text_of((await agent.conversation.messages())[-1])


async def main(data: str) -> None:
    async with App(agents=[Office, Secretary], settings=Settings(data=data)) as app:
        office = await app.get_agent(Office, "main")
        print(await office.fetch("milk"))
        print(await office.fetch("the moon"))
        print(await office.fetch_all("bread", "the moon", "salt"))
        first, second = [await office.fetch_once(7, "a stamp") for _ in range(2)]
        print("order 7 ran once:", first == second)

        print(await office.wait_at_most(0.05, "a piano"))
        late = await office.order("ink", minutes=60)
        print("ink is", await office.status(late))
        await office.recall_errand(late)
        before = len(await office.shelf())
        ordered = await office.order("paper", minutes=0.001)
        print("paper:", await office.wait_for(ordered))
        # put_away is called shortly after the run ends.
        while len(await office.shelf()) == before:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        print("on the shelf:", await office.shelf())
        print("cancelled:", await office.cancelled_errands())

        name = f"secretary-{len(await office.shelf())}"
        secretary = await app.get_agent(Secretary, name)
        await secretary.send("Tea, please.")
        # The second turn starts when the run has ended.
        while await last_text(secretary) != "The tea is here.":  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        for message in await secretary.conversation.messages():
            print(f"  {message['role']}: {text_of(message)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "errands-data"))
