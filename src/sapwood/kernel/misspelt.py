"""Names in a class that are nearly those of the framework: as they stand, they do nothing, without an error.

A name that is only near may be honest, so it is asked about and not refused. An author who means it
can say so: an attribute with an annotation is one's own, and so is a method that is marked by
a decorator, because it is called by its name.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

NEAR = 0.9
"""How alike two names have to be, of 1: another letter in ten."""
OTHER_NAMES = {
    "on_turn_end": "after_turn",
    "on_agent_start": "before_turn",
    "on_agent_complete": "after_turn",
    "on_agent_fail": "after_turn",
    "on_turn_finish": "after_turn",
    "on_turn_complete": "after_turn",
    "on_turn_start": "before_turn",
    "on_child_finish": "on_run_finish",
    "on_run_end": "on_run_finish",
    "on_run_complete": "on_run_finish",
}
"""Names of hooks in other frameworks and in earlier versions, with the hook that is called at the same moment."""


def misspelt(owner: type, base: type, hooks: frozenset[str], settings: frozenset[str]) -> dict[str, str]:
    """Return what to ask about the names under which a class probably means to have a setting or a hook."""
    asked: dict[str, str] = {}
    annotated = inspect.get_annotations(owner)
    for name, value in owner.__dict__.items():
        if name.startswith("_") or name in hooks | settings:
            continue
        if inspect.isfunction(value):
            like = [hook for hook in hooks if _is_plain(getattr(base, hook)) == _is_plain(value)]
            if not vars(value) and (meant := _known(name, like) or _nearest(name, like)):
                asked[name] = (
                    f"{owner.__name__}.{name} is not a hook and is never called. Did you mean {meant}? If it is "
                    f"your own method, mark it with @expose, or choose a name that differs more from {meant}."
                )
        elif name not in annotated and (meant := _nearest(name, settings)):
            asked[name] = (
                f"{owner.__name__}.{name} is not a setting and has no effect. Did you mean {meant}? If it is your "
                f"own attribute, annotate it: {name}: {type(value).__name__} = …"
            )
    return asked


def _known(name: str, hooks: Iterable[str]) -> str | None:
    return next((hook for hook in hooks if hook == OTHER_NAMES.get(name)), None)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    # The plural of a name is mostly a word of its own: `models` beside `model`.
    found = difflib.get_close_matches(name, [one for one in known if name != f"{one}s"], 1, NEAR)
    return found[0] if found else None


def _is_plain(function: Any) -> bool:
    return not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
