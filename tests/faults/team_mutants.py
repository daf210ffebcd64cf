"""Ways to break teams on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from collections.abc import Callable

from sapwood.agent import Agent
from sapwood.capabilities.child_states import ChildStates
from sapwood.capabilities.fibers import OWNER
from sapwood.chat.steering import Steering
from sapwood.runs.contract import Steered
from sapwood.runs.fanning import Fan
from sapwood.runs.runner import Runs


def losers_go_on() -> None:
    """What is not needed any more is not stopped."""

    def stop(self: Fan, reason: str) -> None:
        self._stopped = reason

    Fan._stop = stop


def unowned() -> None:
    """What a fiber has others do goes on without it."""
    wants = Agent._wants

    def want(self: Agent, work: str) -> bool:
        return work.startswith(OWNER) or wants(self, work)

    def let_go(self: Runs, work: str, *, is_done: bool) -> None:
        pass

    Agent._wants, Runs.let_go = want, let_go


def heard_twice() -> None:
    """What is said to a child again, after a crash, is heard again."""
    say = Steering.say
    count = 0

    def say_again(self: Steering, run: str, key: str, text: str) -> Steered:
        nonlocal count
        count += 1
        return say(self, run, f"{count}:{key}", text)

    Steering.say = say_again


def owed_apart() -> None:
    """A child owes its parent its state in another commit than the state."""
    changed = ChildStates.changed

    def change_later(self: ChildStates) -> None:
        loop = self._actor.host.loop
        loop.call_later(0.003, lambda: None if self._actor.detached else changed(self))

    ChildStates.changed = change_later


MUTANTS: dict[str, Callable[[], None]] = {
    "losers-go-on": losers_go_on,
    "unowned": unowned,
    "heard-twice": heard_twice,
    "owed-apart": owed_apart,
}
