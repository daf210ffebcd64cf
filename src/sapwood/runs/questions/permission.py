"""Who may see and answer the questions of an agent: what the gates, the tool, and the agents themselves say.

A hook that raises refuses. An exception is logged, and neither shown to the client nor passed on to other clients.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from sapwood.address import Address
from sapwood.errors import Refused, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.trees.tree import tree_of
from sapwood.roles import ANY_CLIENT
from sapwood.runs.execution.access_gates import Gates, Path, Shut, report_failed_hook
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import class_hooks
from sapwood.runs.tables.question import (
    NOT_ALLOWED,
    Answer,
    Approvers,
    Question,
    name_of,
    refusal_of,
    refused_by,
    roles_of,
)

log = logging.getLogger(__name__)


class Permission:
    """Who may see and answer the questions of one agent and of those below it."""

    def __init__(self, actor: Actor) -> None:
        tree = tree_of(actor)
        self._actor, self._tree = actor, tree

    def is_open_to_all(self, owner: Address, questions: Sequence[Question]) -> bool:
        """Return whether every client above may see the questions of an agent, so that no hook has to be asked."""
        try:
            kinds = [self._tree.kind_of(step.type) for step in owner.segments]
        except UsageError:
            return False
        return (
            not any(kind.overrides("may_answer") or kind.overrides("on_before_sub_agent") for kind in kinds)
            and not kinds[-1].overrides("on_before_connect")
            and all(self._is_for_anyone(owner, one) for one in questions)
        )

    def _is_for_anyone(self, owner: Address, question: Question) -> bool:
        approvers = self._approvers(owner, question)
        return approvers is ANY_CLIENT or (approvers is None and self._actor.host.authentication is None)

    async def visible_to(self, request: Any, path: Path, questions: Sequence[Question]) -> list[Question]:
        """Return the questions at the end of a path that a client of this agent may see. No agent is woken.

        A client sees what it may answer. If an agent sleeps whose hooks would have to be asked, a question is shown
        only if its tool names approvers, or if the app does not authenticate clients. The answer passes all hooks.
        """
        user, owner = request.scope.get("user"), Address((*self._actor.address.segments, *path))
        try:
            is_sure = await Gates(self._actor, request, "connect", "/", wakes=False).pass_to(path)
            return [one for one in questions if await self._is_visible(owner, user, one, is_sure=is_sure)]
        except (Shut, UsageError):  # a gate refuses, or a class on the way is no longer known
            return []

    async def _is_visible(self, owner: Address, user: Any, question: Question, *, is_sure: bool) -> bool:
        is_checked, approvers = self._is_checked(user), self._approvers(owner, question)
        if is_checked and await self._refused_by_approvers(owner, approvers, user, question) is not None:
            return False
        is_allowed = await self._awake_allow(owner, user, question)
        is_named = approvers is not None and approvers is not ANY_CLIENT
        return is_allowed is not False and (is_named or not is_checked or (is_sure and is_allowed is True))

    def _is_checked(self, user: Any) -> bool:
        """Return whether it matters who answers: without authentication all clients are alike."""
        return self._actor.host.authentication is not None or user is not None

    def _approvers(self, owner: Address, question: Question) -> Approvers | None:
        """Return who may approve, also if the agent that asks sleeps."""
        if question.kind == "client":
            return ANY_CLIENT
        if question.is_from_code and question.remote is None:
            return ANY_CLIENT if question.roles == () else question.roles
        asker = self._tree.actors.get(owner)
        if asker is not None and asker.ready:
            return asker.of(RunExecutor).worker.approvers(question.tool)
        kind = self._tree.kind_of(owner.type)
        named = class_hooks(kind).approvers_of(kind, question.tool)
        if named is None and question.roles is not None:
            return question.roles or ANY_CLIENT
        return named

    async def _refused_by_approvers(
        self, owner: Address, approvers: Approvers | None, user: Any, question: Question
    ) -> str | None:
        """Return why what the tool says, or does not say, refuses a user."""
        if approvers is not None:
            try:
                return await refused_by(approvers, user, question)
            except Exception as error:  # noqa: BLE001 - a function of the user's
                report_failed_hook(owner, "approvers", error)
                return NOT_ALLOWED
        if self._actor.host.authentication is None or self._tree.kind_of(owner.type).overrides("may_answer"):
            return None
        if question.is_from_code:
            return "The question does not say who may answer it, so no user may."
        return f"The tool {question.tool} has no `approvers`, so no user may approve it."

    async def _awake_allow(self, owner: Address, user: Any, question: Question) -> bool | None:
        """Ask `may_answer` of the agent that asks and of all above it that are awake; `None` if one sleeps."""
        is_sure = True
        for depth in range(len(owner.segments), 0, -1):
            address = Address(owner.segments[:depth])
            if not self._tree.kind_of(address.type).overrides("may_answer"):
                continue
            actor = self._tree.actors.get(address)
            if actor is None or not actor.ready:
                is_sure = False
            elif await _asked(actor, user, replace(question, path=owner.segments[depth:])) is not None:
                return False
        return True if is_sure else None

    async def check(self, user: Any, id: str, answer: Answer, digest: str | None = None) -> Question | None:
        """Return the open question of this agent that a client may answer so; `None` if it is not open.

        A question with another digest than the one that was shown is not the one that the client answers. Raises
        `Refused` if the client may not answer. Other arguments than were shown are asked about as well. The question
        may be answered as long as `is_open` says that it is the same one.
        """
        served = self._actor.of(RunExecutor)
        question = served.question(id)
        if question is None or digest not in (None, question.digest):
            return None
        wanted = [question]
        if answer.kind == "approved" and answer.value is not None:
            wanted.append(Question.about(id, question.tool, answer.value, question.kind))
        for one in wanted:
            if (why := await self._refusal(user, one)) is not None:
                facts = (self._actor.address, id, one.tool, name_of(user), self._roles_that_differ(user, one), why)
                log.info("answer refused address=%s question=%s tool=%s user=%s%s: %s", *facts)
                raise Refused(why)
        return question if self.is_open(question) else None

    def _roles_that_differ(self, user: Any, question: Question) -> str:
        """Return for the log the roles that may answer and those of a user, if none is among them."""
        approvers = self._approvers(self._actor.address, question)
        if question.kind == "client" or approvers is None or callable(approvers) or approvers is ANY_CLIENT:
            return ""
        wanted = {approvers} if isinstance(approvers, str) else set(cast("Sequence[str]", approvers))
        has = roles_of(user)
        return "" if wanted & has else f" approvers={','.join(sorted(wanted))} roles={','.join(sorted(has)) or 'none'}"

    def is_open(self, question: Question) -> bool:
        """Return whether this very question of the agent is open."""
        return self._actor.of(RunExecutor).question(question.id) == question

    async def _refusal(self, user: Any, question: Question) -> str | None:
        """Return why the tool, the agent that asks, or one above it refuses; all are woken that have to be asked."""
        actor: Actor | None = self._actor
        if question.kind != "client" and self._is_checked(user):
            approvers = self._approvers(actor.address, question)
            if (why := await self._refused_by_approvers(actor.address, approvers, user, question)) is not None:
                return why
        path: Path = ()
        while actor is not None:
            if actor.kind.overrides("may_answer"):
                live = await self._tree.reach(actor.address, None, current.get())
                why = NOT_ALLOWED if live is None else await _asked(live, user, replace(question, path=path))
                if why is not None:
                    return why
            path = (actor.address.segments[-1], *path)
            actor = actor.parent
        return None


async def _asked(actor: Actor, user: Any, question: Question) -> str | None:
    """Ask `may_answer` of an agent; return why it refuses."""
    _, reply = actor.handle("may_answer", actor.agent.may_answer, user, question)
    try:
        return refusal_of(await reply)
    except Exception as error:  # noqa: BLE001 - a hook of the user's
        report_failed_hook(actor.address, "may_answer", error)
        return NOT_ALLOWED
