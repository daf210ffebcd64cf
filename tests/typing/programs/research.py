"""A research team: a lead runs researchers and a checker, and a model may use the researchers too."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sapwood import Agent, App, Branch, ChatAgent, Limits, Retry, Run, agent_tool, expose


@dataclass(frozen=True)
class Topic:
    """What to research."""

    title: str
    depth: int = 1


@dataclass(frozen=True)
class Findings:
    """What a researcher found."""

    summary: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    sound: bool
    reason: str = ""


@dataclass(frozen=True)
class Board:
    """What the team has done so far. Pages show it."""

    done: int = 0
    rejected: tuple[str, ...] = ()


class Researcher(ChatAgent[Findings]):
    """Researches one topic."""

    model = "openai:gpt-5"
    instructions = "Research the topic. Name your sources."
    limits = Limits(dollars=0.5)


class Checker(Agent):
    """Checks findings without a model."""

    async def on_run(self, findings: Findings) -> Verdict:
        if not findings.sources:
            return Verdict(sound=False, reason="It names no sources.")
        return Verdict(sound=True)


class Lead(ChatAgent[str, Board]):
    """Leads a team of researchers."""

    model = "anthropic:claude-5-haiku"
    instructions = "Research before you answer."
    tools = (agent_tool(Researcher, input=Topic, output=Findings),)
    initial_state = Board()

    @expose
    async def survey(self, titles: list[str]) -> list[Findings]:
        """Research several topics, and return the findings that are sound."""
        runs = await self.runs.map(Researcher, map(Topic, titles), concurrency=5, retry=Retry(max_attempts=3))
        findings = [run.output for run in runs if run.ok]
        checks = await self.runs.map(Checker, findings)
        self.set_state(replace(self.state, done=self.state.done + len(findings)))
        return [one for one, check in zip(findings, checks, strict=True) if check.ok and check.output.sound]

    async def fastest(self, title: str) -> Findings | None:
        """Ask two researchers, and return what the first one finds."""
        run = await self.runs.race(
            Branch(Researcher, Topic(title), timeout=60), Branch(Researcher, Topic(title, depth=2), timeout=60)
        )
        return run.output if run.ok else None

    async def check_later(self, findings: Findings) -> str:
        """Start a check, and do not wait for it."""
        run = await self.start_run(Checker, findings, on_finish=self.checked)
        return run.id

    async def checked(self, run: Run[Verdict]) -> None:
        if run.ok and not run.output.sound:
            self.set_state(replace(self.state, rejected=(*self.state.rejected, run.output.reason)))


app = App(agents=[Lead])
