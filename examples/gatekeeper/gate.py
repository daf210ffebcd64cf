"""A gate: models propose changes to a database, and only people can apply them.

The tools of the models read and propose. Changes are applied by `accept`, which is not
a tool: a page or a terminal calls it. README.md lists attacks to try.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from sapwood import ChatAgent, Connection, Question, Refused, agent_tool, expose, tool
from sapwood.types import PathSegment
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from gate_records import (
    Change,
    Customer,
    Decision,
    Field,
    Outcome,
    Records,
    describe,
    fingerprint,
)
from gate_script import Offline, as_assistant, as_auditor, as_clerk

MODEL = os.environ.get("MODEL")
CHANGE = TypeAdapter(Change)


class Proposer(ChatAgent):
    """A chat agent whose model can read the customers and propose changes."""

    @tool(idempotent=True)
    async def look(self, words: str = "") -> list[dict[str, Any]]:
        """Find customers by words in any of their fields, or list all of them."""
        gate = await self.root_agent(Gatekeeper)
        return [asdict(customer) for customer in await gate.find(words)]

    @tool(requires_approval=True, approvers="reviewer", idempotent=True)
    async def propose(
        self,
        context: RunContext[Any],
        action: Literal["add", "change", "delete"],
        why: str,
        customer: int | None = None,
        values: dict[Field, str] | None = None,
    ) -> str:
        """Propose a change to the customers. A person approves, edits or rejects it.

        Args:
            context: The tool call.
            action: The kind of change.
            why: A short reason, for the person who decides.
            customer: The id of the customer. Omit it when you add one.
            values: The fields that change: name, email, city or plan.
        """
        change = Change(action, customer, values or {}, why)
        gate = await self.root_agent(Gatekeeper)
        # The tool runs after the decision was applied. It only reads the result.
        id = proposal_id(self.address.segments[1:], context, change)
        return await gate.verdict(id)


@dataclass(frozen=True)
class Task:
    task: str


class Clerk(Proposer):
    """Proposes one change to one customer."""

    model = MODEL or Offline(as_clerk)
    instructions = (
        "Your task describes one mistake in a customer record. Propose the change "
        "that corrects it, and nothing else. Then report the result in one sentence. "
        "If the change was rejected, give the reason, and do not propose it again."
    )


class Auditor(ChatAgent):
    """Looks for mistakes in the customer list, and starts a clerk for each."""

    model = MODEL or Offline(as_auditor)
    instructions = (
        "You look for mistakes in the customer list: an email without an @, or a "
        "duplicate customer. Read the whole list once. Start one clerk for each "
        "mistake, all at once. Give each clerk the customer, the mistake and the "
        "correction. Then report the results in a short list."
    )
    tools = (agent_tool(Clerk, name="clerk", input=Task),)

    @tool(idempotent=True)
    async def look(self, words: str = "") -> list[dict[str, Any]]:
        """Find customers by words in any of their fields, or list all of them."""
        gate = await self.root_agent(Gatekeeper)
        return [asdict(customer) for customer in await gate.find(words)]


@dataclass(frozen=True)
class Waiting:
    """A proposal that waits for a decision, as the page shows it."""

    seal: str
    """A hash of the proposal and of the current customer. A decision names it."""
    by: str
    change: Change
    outcome: Outcome
    what: str


@dataclass(frozen=True)
class GateState:
    """The state that pages receive."""

    model: str = ""
    customers: tuple[Customer, ...] = ()
    decisions: tuple[Decision, ...] = ()


class Gatekeeper(Proposer):
    """Chats about the customers, and guards them: no change without a decision."""

    initial_state = GateState()
    model = MODEL or Offline(as_assistant)
    instructions = (
        "You manage a list of customers with the user. Call `look` before you propose "
        "anything. Call `propose` once per change; make several calls at once if "
        "there are several changes. A person decides on each, and may edit it. Use "
        "`audit` if the user asks you to check or tidy up the list. Report the result "
        "in a sentence or two. You cannot change the list yourself."
    )
    tools = (agent_tool(Auditor, name="audit", input=Task),)

    @expose
    async def waiting(self) -> list[Waiting]:
        """Return the undecided proposals of this agent and all its descendants."""
        proposals = [proposal async for proposal, _ in self._waiting()]
        return sorted(proposals, key=lambda one: (one.by, one.change.customer or 0))

    @expose
    async def accept(
        self, seal: str, values: dict[Field, str] | None = None
    ) -> Decision:
        """Apply a proposal, optionally with edited values."""
        proposal, question = await self._by_seal(seal)
        return await self._decide(proposal, question, values=values)

    @expose
    async def reject(self, seal: str, reason: str = "") -> Decision:
        """Reject a proposal. The model that made it gets the reason."""
        proposal, question = await self._by_seal(seal)
        return await self._decide(proposal, question, reason=reason or "No.")

    async def find(self, words: str) -> list[Customer]:
        """Return the customers that match, for the tool `look`."""
        return await (await self._records()).find(words)

    async def verdict(self, proposal: str) -> str:
        """Return the decision on a proposal, for the model that made it."""
        decision = await (await self._records()).decision(proposal)
        if decision is None:
            raise Refused("No decision was made at the gate. Nothing was changed.")
        if decision.verdict == "rejected":
            raise Refused(f"The proposal was rejected: {decision.reason}")
        edited = ", with other values" if decision.verdict == "edited" else ""
        return f"Approved{edited}. Done: {decision.what}."

    async def _waiting(self) -> AsyncIterator[tuple[Waiting, Question]]:
        records = await self._records()
        for question, change in await self._proposals():
            outcome = await records.preview(change)
            id = proposal_id(question.path, question, change)
            before = outcome.before and asdict(outcome.before)
            yield (
                Waiting(
                    seal=fingerprint(id, before),
                    by=" → ".join(step.type for step in question.path) or "Assistant",
                    change=change,
                    outcome=outcome,
                    what=describe(change, outcome),
                ),
                question,
            )

    async def _by_seal(self, seal: str) -> tuple[Waiting, Question]:
        """Return the proposal with this seal, if it has not changed since."""
        async for proposal, question in self._waiting():
            if proposal.seal == seal:
                return proposal, question
        raise Refused("The proposal was decided or has changed. Reload the gate.")

    async def _decide(
        self,
        proposal: Waiting,
        question: Question,
        *,
        values: dict[Field, str] | None = None,
        reason: str = "",
    ) -> Decision:
        """Store and apply a decision. Then answer the model that waits for it."""
        proposed = proposal.change
        change = proposed if values is None else replace(proposed, values=values)
        verdict = "edited" if change != proposed else "approved"
        records = await self._records()
        try:
            return await records.decide(
                proposal_id(question.path, question, proposed),
                proposal.outcome.before,
                change,
                verdict="rejected" if reason else verdict,
                by=proposal.by,
                reason=reason,
            )
        finally:
            await self.settle()

    async def settle(self) -> None:
        """Answer the questions whose proposals are decided, and update the page."""
        records = await self._records()
        for question, change in await self._proposals():
            id = proposal_id(question.path, question, change)
            decision = await records.decision(id)
            if decision is not None:
                if decision.verdict == "rejected":
                    await self.questions.deny(question, decision.reason or None)
                else:
                    await self.questions.approve(question)
        customers, decisions = await records.find(), await records.decisions()
        model = MODEL or "offline script"
        self.set_state(GateState(model, tuple(customers), tuple(decisions)))

    async def on_start(self) -> None:
        await self._records()
        # The server may have crashed after a decision, before the model got it.
        self.enqueue(self.settle)

    async def page_state(self) -> GateState:
        """Return the state that pages receive."""
        return self.state

    async def _proposals(self) -> list[tuple[Question, Change]]:
        """Return the open proposals of this agent and all its descendants."""
        questions = await self.questions.list()
        return [(one, parse_change(one)) for one in questions if one.tool == "propose"]

    async def _records(self) -> Records:
        return await self.sub_agent(Records, "customers")

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        """Reject clients that try to connect to the records."""
        if child.type == "Records":
            return PlainTextResponse("The records are behind the gate.", 403)
        return None

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages read the state, and change it only through the gate


def parse_change(question: Question) -> Change:
    """Return the proposed change. Its arguments were validated with the tool call."""
    arguments = question.arguments.items()
    return CHANGE.validate_python({k: v for k, v in arguments if v is not None})


def proposal_id(
    path: tuple[PathSegment, ...], call: Question | RunContext[Any], change: Change
) -> str:
    """Return an id made from the proposer, the tool call and the whole change."""
    id = call.id if isinstance(call, Question) else call.tool_call_id
    return fingerprint([list(step) for step in path], id, asdict(change))
