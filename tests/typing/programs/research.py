"""A chat agent with a sub-agent as a tool, as a user will write it."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from sapwood import ChatAgent, agent_tool


class Question(BaseModel):
    topic: str


class Findings(BaseModel):
    summary: str


class Researcher(ChatAgent[Findings]):
    model = "openai:gpt-5"
    instructions = "Research one topic and report."
    output_type = Findings


class Lead(ChatAgent):
    model = "anthropic:claude-5-haiku"
    instructions = "Research before you guess."
    children = (agent_tool(Researcher, description="Research a topic", input=Question),)

    async def report(self) -> None:
        run = await self.run_agent(Researcher, Question(topic="last week's refunds"))
        assert_type(run.output, Findings)
