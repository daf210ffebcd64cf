"""An editor with a team: many translators, three judges, the faster of two archives."""

import asyncio
import sys

from sapwood import Agent, App, Branch, Retry, Run, Settings, Unavailable

PAGES = ["The root", "The stem", "The branch", "The leaf"]


class Translator(Agent):
    """Translates a page. It may be temporarily unavailable."""

    # --8<-- [start:passing]
    async def on_run(self, page: str) -> str:
        if page == "The stem" and "~" not in self.name:
            raise Unavailable("All desks are taken.")  # retried with `retry=`
        return page.upper()

    # --8<-- [end:passing]


class Judge(Agent):
    async def on_run(self, text: str) -> bool:
        if self.name.endswith("-slow"):
            await asyncio.sleep(3600)
        return "LEAF" in text


class Archive(Agent):
    async def on_run(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"found after {seconds:g} s"


class Editor(Agent):
    # --8<-- [start:map]
    async def translate(self, pages: list[str]) -> list[str]:
        runs = await self.runs.map(
            Translator, pages, concurrency=2, retry=Retry(max_attempts=3)
        )
        return [run.output if run.ok else f"({run.error})" for run in runs]

    # --8<-- [end:map]
    # --8<-- [start:gather]
    async def judge(self, issue: int, text: str) -> list[Run[bool]]:
        return await self.runs.gather(
            Branch(Judge, text, run_id=f"{issue}-ann", timeout=60),
            Branch(Judge, text, run_id=f"{issue}-slow"),
            Branch(Judge, text, run_id=f"{issue}-eve"),
            quorum=2,
        )

    # --8<-- [end:gather]
    # --8<-- [start:race]
    async def look_up(self) -> str:
        run = await self.runs.race(Branch(Archive, 60), Branch(Archive, 0.01))
        return run.output if run.ok else "in no archive"

    # --8<-- [end:race]
    # --8<-- [start:pipeline]
    async def review(self, page: str) -> bool:
        """Translate a page, then judge the translation."""
        run = await self.runs.pipeline(page, Translator, Branch(Judge, timeout=60))
        return run.output

    # --8<-- [end:pipeline]
    # --8<-- [start:fiber]
    async def publish(self, issue: int) -> str:
        """Produce an issue once, even if the server crashes."""
        self.start_fiber(f"issue-{issue}", self.make, issue)
        return await self.fibers.result(f"issue-{issue}")

    async def make(self, issue: int) -> str:
        pages = await self.translate(PAGES)
        votes = await self.judge(issue, " ".join(pages))
        return f"{pages}, judged by {sum(vote.ok for vote in votes)}"

    # --8<-- [end:fiber]
    async def cancelled_runs(self) -> list[str]:
        return [
            f"{run.agent.type}: {run.reason}" for run in self.runs.list("cancelled")
        ]


async def main(data: str) -> None:
    async with App(agents=[Editor], settings=Settings(data=data)) as app:
        editor = await app.get_agent(Editor, "botany")
        print("issue 1:", await editor.publish(1))
        print("the archive:", await editor.look_up())
        print("reviewed:", await editor.review("The leaf"))
        # The other archive is cancelled shortly after.
        while len(await editor.cancelled_runs()) < 2:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        for line in await editor.cancelled_runs():
            print("stopped:", line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "teams-data"))
