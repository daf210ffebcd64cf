"""A gate: models propose changes of a database, people decide, and nothing else does.

The tools of the models read and propose. What changes the database is `accept`, which
no tool leads to: it is called by a page, or from a terminal. See README.md for what
one may try instead.
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
    fingerprint,
    in_words,
)
from gate_script import Offline, as_assistant, as_auditor, as_clerk

MODEL = os.environ.get("MODEL")
CHANGE = TypeAdapter(Change)


class Proposer(ChatAgent):
    """Has a model that may read the customers, and propose changes of them."""

    @tool(idempotent=True)
    async def look(self, words: str = "") -> list[dict[str, Any]]:
        """Find customers by words in any of their fields; without words, all."""
        gate = await self.root_agent(Gatekeeper)
        return [asdict(one) for one in await gate.find(words)]

    @tool(requires_approval=True, approvers="reviewer", idempotent=True)
    async def propose(
        self,
        context: RunContext[Any],
        action: Literal["add", "change", "delete"],
        why: str,
        customer: int | None = None,
        values: dict[Field, str] | None = None,
    ) -> str:
        """Propose a change of the customers. A person decides what becomes of it.

        Args:
            context: The call.
            action: What to do.
            why: The reason, in a few words, for the person who decides.
            customer: The id of the customer; not for a new one.
            values: The new name, email, city and plan, as far as they differ.
        """
        change = Change(action, customer, values or {}, why)
        gate = await self.root_agent(Gatekeeper)
        # It has been decided by now, and done. This only reads what came of it.
        return await gate.verdict(proposal(self.address.segments[1:], context, change))


@dataclass(frozen=True)
class Task:
    task: str


class Clerk(Proposer):
    """Prepares one change of one customer, and proposes it."""

    model = MODEL or Offline(as_clerk)
    instructions = (
        "You are given one thing that is wrong with a customer. Propose the change "
        "that puts it right, and nothing else. Then say in one sentence what came of "
        "it. If it was rejected, say why, and do not propose it again."
    )


class Auditor(ChatAgent):
    """Looks for mistakes among the customers, and has a clerk see to each."""

    model = MODEL or Offline(as_auditor)
    instructions = (
        "You look for mistakes among the customers: an email without an @, the same "
        "customer twice. Look at all of them once. Send one clerk for each mistake, "
        "all at once, and tell it which customer it is about, what is wrong, and what "
        "would be right. Then say in a short list what came of each."
    )
    tools = (agent_tool(Clerk, name="clerk", input=Task),)

    @tool(idempotent=True)
    async def look(self, words: str = "") -> list[dict[str, Any]]:
        """Find customers by words in any of their fields; without words, all."""
        gate = await self.root_agent(Gatekeeper)
        return [asdict(one) for one in await gate.find(words)]


@dataclass(frozen=True)
class Waiting:
    """A proposal, as a person is shown it."""

    seal: str
    """Names the proposal, and the customer as it is now: what is decided about."""
    by: str
    change: Change
    outcome: Outcome
    what: str


@dataclass(frozen=True)
class Shown:
    """What pages see of the gate."""

    model: str = ""
    customers: tuple[Customer, ...] = ()
    decisions: tuple[Decision, ...] = ()


class Gatekeeper(Proposer):
    """Talks to people about the customers, and keeps what is proposed from them."""

    initial_state = Shown()
    model = MODEL or Offline(as_assistant)
    instructions = (
        "You keep a list of customers together with the user. `look` before you "
        "propose anything. `propose` each change by itself, several at once if there "
        "are several; a person decides about each, and may edit it. Use `audit` if "
        "the user wants the list checked or tidied up. Say in a sentence or two what "
        "came of it. You have no way to change anything yourself."
    )
    tools = (agent_tool(Auditor, name="audit", input=Task),)

    @expose
    async def waiting(self) -> list[Waiting]:
        """Return what was proposed, here and anywhere below, and is not decided."""
        found = [one async for one, _ in self._waiting()]
        return sorted(found, key=lambda one: (one.by, one.change.customer or 0))

    @expose
    async def accept(
        self, seal: str, values: dict[Field, str] | None = None
    ) -> Decision:
        """Have what was proposed be done, perhaps with other values."""
        found, wish = await self._sealed(seal)
        return await self._decide(found, wish, values=values)

    @expose
    async def reject(self, seal: str, reason: str = "") -> Decision:
        """Have what was proposed not be done. Whoever proposed it is told why."""
        found, wish = await self._sealed(seal)
        return await self._decide(found, wish, reason=reason or "No.")

    async def find(self, words: str) -> list[Customer]:
        """Return customers, for models to look at."""
        return await (await self._records()).find(words)

    async def verdict(self, proposal: str) -> str:
        """Return what became of a proposal, for the model that made it."""
        decision = await (await self._records()).decision(proposal)
        if decision is None:
            raise Refused("Nobody has decided this at the gate. Nothing was changed.")
        if decision.verdict == "rejected":
            raise Refused(f"This was rejected: {decision.reason}")
        edited = ", with other values" if decision.verdict == "edited" else ""
        return f"Approved{edited}. Done: {decision.what}."

    async def _waiting(self) -> AsyncIterator[tuple[Waiting, Question]]:
        records = await self._records()
        for wish, change in await self._proposals():
            outcome = await records.foresee(change)
            names = proposal(wish.path, wish, change)
            before = outcome.before and asdict(outcome.before)
            yield (
                Waiting(
                    seal=fingerprint(names, before),
                    by=" → ".join(step.type for step in wish.path) or "Assistant",
                    change=change,
                    outcome=outcome,
                    what=in_words(change, outcome),
                ),
                wish,
            )

    async def _sealed(self, seal: str) -> tuple[Waiting, Question]:
        """Return the proposal that somebody was shown, if it is still the same."""
        async for found, wish in self._waiting():
            if found.seal == seal:
                return found, wish
        raise Refused("This was decided, or is not what you were shown. Look again.")

    async def _decide(
        self,
        found: Waiting,
        wish: Question,
        *,
        values: dict[Field, str] | None = None,
        reason: str = "",
    ) -> Decision:
        """Have a decision be kept and carried out; then let whoever proposed go on."""
        proposed = found.change
        change = proposed if values is None else replace(proposed, values=values)
        verdict = "edited" if change != proposed else "approved"
        records = await self._records()
        try:
            return await records.decide(
                proposal(wish.path, wish, proposed),
                found.outcome.before,
                change,
                verdict="rejected" if reason else verdict,
                by=found.by,
                reason=reason,
            )
        finally:
            await self.settle()

    async def settle(self) -> None:
        """Tell everybody who waits for a decision that was made; and show it."""
        records = await self._records()
        for wish, change in await self._proposals():
            decision = await records.decision(proposal(wish.path, wish, change))
            if decision is not None:
                approved = decision.verdict != "rejected"
                reason = decision.reason or None
                if approved:
                    await self.questions.approve(wish)
                else:
                    await self.questions.deny(wish, reason)
        customers, decisions = await records.find(), await records.decisions()
        model = MODEL or "offline script"
        self.set_state(Shown(model, tuple(customers), tuple(decisions)))

    async def on_start(self) -> None:
        await self._records()
        # A crash may have come between a decision and those who wait for it.
        self.enqueue(self.settle)

    async def shown(self) -> Shown:
        """Return what pages see."""
        return self.state

    async def _proposals(self) -> list[tuple[Question, Change]]:
        """Return what the models of this agent and of all below it wait for."""
        asked = await self.questions.list()
        return [(one, change_of(one)) for one in asked if one.tool == "propose"]

    async def _records(self) -> Records:
        return await self.sub_agent(Records, "customers")

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        """Let nobody from outside go to the records themselves."""
        if child.type == "Records":
            return PlainTextResponse("The records are behind the gate.", 403)
        return None

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages see the state, and change nothing but by the gate


def change_of(wish: Question) -> Change:
    """Return what a model wants; its arguments have been checked when it asked."""
    given = {name: value for name, value in wish.arguments.items() if value is not None}
    return CHANGE.validate_python(given)


def proposal(
    path: tuple[PathSegment, ...], call: Question | RunContext[Any], change: Change
) -> str:
    """Return the name of a proposal: who made it, in which call, and all it says."""
    id = call.id if isinstance(call, Question) else call.tool_call_id
    return fingerprint([list(step) for step in path], id, asdict(change))
