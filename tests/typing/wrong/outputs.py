"""Inputs and outputs of another type, in chats and runs."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood import Agent, Branch, ChatAgent, Run


@dataclass(frozen=True)
class Verdict:
    sound: bool


class Counter(ChatAgent[int, Verdict]):
    async def change(self) -> None:
        self.set_state(Verdict(True))
        self.set_state(1)  # wrong


class Checker(Agent):
    async def on_run(self, claim: str) -> Verdict:
        return Verdict(True)


class Caller(Agent):
    async def call(self, counter: Counter) -> None:
        number: int = (await counter.send("text")).output
        text: str = (await counter.send("text")).output  # wrong
        waited: str = (await counter.turns.wait("id")).output  # wrong
        await counter.send(3)  # wrong

    async def run(self) -> None:
        verdict: Verdict = (await self.run_agent(Checker, "claim")).output
        other: str = (await self.run_agent(Checker, "claim")).output  # wrong
        counted: str = (await self.run_agent(Counter, "claim")).output  # wrong
        await self.run_agent(Checker, 3)  # wrong
        await self.run_agent(Verdict, "claim")  # wrong
        await self.start_run(Checker, 3)  # wrong
        await self.start_run(Checker, "claim", on_finish=self.checked)
        await self.start_run(Checker, "claim", on_finish=self.counted)  # wrong

    async def run_several(self) -> None:
        verdicts: list[Run[Verdict]] = await self.runs.map(Checker, ["claim"])
        texts: list[Run[str]] = await self.runs.map(Checker, ["claim"])  # wrong
        await self.runs.map(Checker, [3])  # wrong
        await self.runs.gather(Branch(Checker, 3))  # wrong
        winner: Run[str] = await self.runs.race(Branch(Checker, "claim"))  # wrong

    async def checked(self, run: Run[Verdict]) -> None: ...

    async def counted(self, run: Run[int]) -> None: ...
