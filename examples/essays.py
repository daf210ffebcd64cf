"""Essays that are written, reviewed by a person, and written again."""

import asyncio
import itertools
import sys

from sapwood import Agent, App, Settings


# --8<-- [start:agent]
class Essays(Agent):
    async def write(self, topic: str) -> None:
        self.start_fiber(topic, self.work_on, topic)

    async def work_on(self, topic: str) -> str:
        verdict = ""
        for number in itertools.count(1):
            draft = await self.step(f"draft {number}", self.draft, topic, verdict)
            verdict = await self.questions.ask(draft)
            if verdict == "good":
                break
        return draft

    async def draft(self, topic: str, verdict: str) -> str:
        return f"All about {topic}. {verdict}".strip()

    # --8<-- [end:agent]
    async def is_open(self, topic: str) -> bool:
        fiber = self.fibers.get(topic)
        return fiber is not None and not fiber.is_over

    async def result(self, topic: str) -> str:
        return str(await self.fibers.result(topic))


app = App(agents=[Essays])


# --8<-- [start:use]
async def main(data: str) -> None:
    verdicts = iter(["Shorter.", "good"])
    async with App(agents=[Essays], settings=Settings(data=data)) as app:
        essays = await app.get_agent(Essays, "ann")
        await essays.write("oaks")
        while await essays.is_open("oaks"):
            for question in await essays.questions.list():
                print("draft:", question.prompt)
                await essays.questions.answer(question, next(verdicts))
            await asyncio.sleep(0.05)
        print("done:", await essays.result("oaks"))


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "essays-data"))
