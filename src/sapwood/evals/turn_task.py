"""The task of a dataset that is one turn of a chat agent, or several, in a tree made for the case."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias
from unittest.mock import patch

from sapwood.address import Address
from sapwood.app import App
from sapwood.chat.agent import ChatAgent
from sapwood.chat.store.turns import Turn
from sapwood.errors import UsageError
from sapwood.kernel.history.moments import At
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.data_folder import roots_in
from sapwood.randomness import new_id
from sapwood.runs.dispatch.lifecycle import Runs

NEW = "eval"
"""What the names of trees have that are made for a case."""
INSTALL = (
    "Run: pip install 'sapwood[server,chat,evals]'. If pip finds no versions that fit together, run: "
    "pip install 'sapwood[server,chat]' pyyaml && pip install --no-deps pydantic-evals"
)
"""Pydantic Evals demands the Pydantic AI of its own number, which may be older than what `chat` needs."""
METRICS = ("requests", "input_tokens", "output_tokens")
NONE = (0, 0, 0)
Used: TypeAlias = tuple[int, int, int]
"""What is counted of an agent: the metrics, in their order."""
Inputs: TypeAlias = str | Sequence[str]
"""What the user says in a case: one message, or several, each after the answer to the one before."""


class TurnTask:
    """What `turn_task` returns: call it with the inputs of a case."""

    def __init__(self, app: App, cls: type[ChatAgent[Any, Any]], name: str | None, at: At | None) -> None:
        self.app = app
        self.cls = cls
        self.name = name
        self.at = at
        self.__name__ = f"{cls.__name__}:{name}" if name is not None else cls.__name__

    async def __call__(self, inputs: Inputs) -> Any:
        """Send the inputs to a tree of their own, and return the output of the last turn."""
        messages = [inputs] if isinstance(inputs, str) else list(inputs)
        if not messages:
            raise UsageError("The inputs of a case must be a message, or several.")
        name = f"{_prefix(self)}{new_id(self.app.node.random)}"
        agent = await self._tree(name)
        try:
            before = await _used(agent)
            turns: list[Turn[Any]] = []
            for message in messages:
                turns.append(await agent.send(message))
                _check(turns[-1])
            await self._tell(agent, turns[-1], before)
            return turns[-1].output
        finally:
            await _destroy(self, name)

    async def _tree(self, name: str) -> Any:
        """Return the agent that answers one case."""
        if self.name is not None:
            await self.app.fork(self.cls, self.name, to=name, at=self.at, work="drop")
        return await self.app.get_agent(self.cls, name)

    async def _tell(self, agent: Any, turn: Turn[Any], before: Mapping[tuple[str, ...], Used]) -> None:
        """Tell evaluators how the turn came to its answer."""
        from pydantic_evals import increment_eval_metric, set_eval_attribute

        after = await _used(agent)
        used = {path: one for path, one in after.items() if one != before.get(path)}
        set_eval_attribute("turn", turn.id)
        set_eval_attribute("calls", _calls(await agent.conversation.messages()))
        set_eval_attribute("agents", sorted("/".join(path) for path in used if path))
        for at, metric in enumerate(METRICS):
            increment_eval_metric(metric, sum(one[at] - before.get(path, NONE)[at] for path, one in used.items()))


async def destroy_leftovers(task: TurnTask) -> None:
    """Destroy the trees of cases that were interrupted. No case may run."""
    kind, made = known(task.cls), re.compile(rf"{re.escape(_prefix(task))}[0-9a-f]{{32}}")
    for root in list(roots_in(task.app.node.folder)):
        if root.type == kind.type and made.fullmatch(root.name):
            await _destroy(task, root.name)


async def _destroy(task: TurnTask, name: str) -> None:
    kind = known(task.cls)
    actor = await task.app.node.reach(Address.root_of(kind.type, name), kind, None)
    await actor.of(Runs).destroy()


def _prefix(task: TurnTask) -> str:
    """Return how the names of the trees of a task begin."""
    return f"{'' if task.name is None else f'{task.name}~'}{NEW}-"


class TurnNotCompleted(Exception):
    """The turn of a case has no answer."""


def _check(turn: Turn[Any]) -> None:
    if turn.status == "waiting":
        raise TurnNotCompleted("The turn waits for an answer to a question or an approval.")
    if turn.status != "completed":
        raise TurnNotCompleted(f"The turn is {turn.status}: {turn.error or 'no error is known'}")


async def _used(agent: Any) -> dict[tuple[str, ...], Used]:
    """Return what the agents of a tree have used of models, by the types of the agents below the root."""
    found: dict[tuple[str, ...], Used] = {}
    for one in await agent.spending.list():
        path = tuple(segment.type for segment in one.agent[1:])
        known = found.get(path, NONE)
        found[path] = known[0] + one.requests, known[1] + one.input_tokens, known[2] + one.output_tokens
    return found


def _calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool calls of the last answer."""
    parts: list[dict[str, Any]] = messages[-1]["parts"] if messages and messages[-1]["role"] == "assistant" else []
    return [
        {"tool": part["type"].removeprefix("tool-"), "arguments": part.get("input")}
        for part in parts
        if "toolCallId" in part
    ]


def turn_task(app: App, cls: type[ChatAgent[Any, Any]], name: str | None = None, *, at: At | None = None) -> TurnTask:
    """Return a task for `Dataset.evaluate` that asks a chat agent. The app must be running.

    Each case has a tree of its own, which is destroyed after it: a new root of this class or, with `name`, a fork of
    that root with all agents below it, as they are then, or with `at` as they were at a moment of their history.
    Unfinished work is not copied. The inputs of a case are a message, or a sequence of messages. The output is that of
    the last turn. A turn that does not complete is a failure of the case.

    Evaluators find in `ctx.attributes` the id of the last `turn`, its tool `calls`, and the types of the `agents`
    below the root that asked a model, such as `Guide/Scout`; in `ctx.metrics`, the `requests`, `input_tokens` and
    `output_tokens` of the whole tree.
    """
    if find_spec("pydantic_evals") is None:
        raise UsageError(f"turn_task() needs pydantic_evals. {INSTALL}")
    if not (isinstance(cls, type) and issubclass(cls, ChatAgent)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"turn_task() needs a chat agent class, got {cls!r}.")
    if at is not None and name is None:
        raise UsageError("turn_task(at=…) needs the name of the root that is forked.")
    return TurnTask(app, cls, name, at)


@contextmanager
def model_of_class(cls: type[ChatAgent[Any, Any]], model: Any) -> Generator[None]:
    """Let the agents of a class, and not those of classes derived from it, use another model in this block."""
    original = cls.get_model

    def get_model(agent: ChatAgent[Any, Any]) -> Any:
        return model if type(agent) is cls else original(agent)

    with patch.object(cls, "get_model", get_model):
        yield
