"""What is checked when an agent class is defined.

A name that is only near one of the framework may be honest, so it is asked about and not refused. An author
who means it can say so: an attribute with an annotation is one's own, and so is a method that is marked by
a decorator, because it is called by its name.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

from sapwood.capabilities.media_types import check_accepted
from sapwood.capabilities.spans import check_record_retention
from sapwood.capabilities.studio_tabs import check_studio_tabs
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_base import AgentBase
from sapwood.kernel.marshal.agent_class import check_type_id
from sapwood.retention import KEEP_ALL
from sapwood.runs.tables.retention import check as check_retention
from sapwood.settings import Limits

HOOKS = frozenset(
    {"on_start", "upgrade_state", "validate_state", "on_state_changed"}
    | {"on_request", "on_connect", "on_message", "on_close", "on_error"}
    | {"on_before_request", "on_before_connect", "on_before_sub_agent", "on_before_watch", "may_answer"}
    | {"connection_tags", "is_readonly", "is_watch_only", "send_protocol_frames"}
    | {"on_fiber_recovered", "on_fork"}
    | {"on_run", "on_run_start", "on_run_finish"}
    | {"on_limit_near"}
)
"""The names of `Agent` that a subclass may override."""
SETTINGS = frozenset(
    {"initial_state", "state_version", "migrations", "limits", "deps"}
    | {"create_from_url", "expose_runs", "send_identity", "input_as_state", "max_concurrent_runs", "run_retention"}
    | {"record_retention", "accept_files", "studio_tabs"}
)
"""The class attributes that a subclass may set."""
SHOWN = frozenset({"subscribe"})
"""The methods of `Agent` that can be called through a stub, beside those of its namespaces."""
MAY_BE_PLAIN = "_sapwood_may_be_plain"
"""What a method has that need not be `async def`: others await it than those who hold a stub."""
RESERVED = frozenset({"memory", "webhooks"})
"""Names that a subclass may not define: later versions add namespaces under these names."""
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


def check_class(cls: type[AgentBase]) -> None:
    """Refuse a class that cannot work, and warn about what probably does nothing."""
    check_type_id(cls.__name__)
    # Not by cls._base: a user's class may have hidden it.
    base = next(owner for owner in cls.__mro__ if owner.__dict__.get("_base") is owner)
    hooks: frozenset[str] = base.__dict__["_hooks"]
    settings: frozenset[str] = base.__dict__["_settings"]
    for owner in cls.__mro__[: cls.__mro__.index(base)]:
        asked = _misspelt(owner, base, hooks, settings)
        for name, value in owner.__dict__.items():
            if name == "__init__":
                raise UsageError(f"{cls.__name__} must not define __init__. Initialize the agent in on_start().")
            if name in RESERVED or name.startswith("_sapwood_"):
                raise UsageError(f"{cls.__name__}.{name} is a name reserved for sapwood. Choose another name.")
            if name in ("_actor", "name") or (
                hasattr(base, name) and not name.startswith("__") and name not in hooks | settings
            ):
                raise UsageError(
                    f"{cls.__name__}.{name} would hide an attribute of Agent. Choose another name; "
                    f"only these can be overridden: {', '.join(sorted(hooks))}."
                )
            if inspect.isfunction(value) and not name.startswith("__") and name not in settings:
                _check_method(cls, name, value, hooks | asked.keys())
        # What an agent class above has was asked about when that was made.
        if owner is cls or not issubclass(owner, base):
            for text in asked.values():
                warn_at_class(text)
    if isinstance(getattr(cls, "migrations", ()), str):
        raise UsageError(
            f"{cls.__name__}.migrations must be a tuple of SQL scripts or the Path of a folder of .sql files, got a "
            "string. For a single script, write (script,)."
        )
    check_retention(cls.__name__, getattr(cls, "run_retention", KEEP_ALL))
    check_record_retention(cls.__name__, getattr(cls, "record_retention", None))
    check_accepted(cls.__name__, getattr(cls, "accept_files", {}))
    check_studio_tabs(cls, base)
    limits = getattr(cls, "limits", None)
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"{cls.__name__}.limits must be Limits(…), got a {type(limits).__name__}.")


def _check_method(cls: type, name: str, function: Any, hooks: frozenset[str]) -> None:
    if not inspect.signature(function).parameters:
        raise UsageError(f"{cls.__name__}.{name} has no parameters. Add self as the first parameter.")
    plain = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
    if name == "on_start" and not inspect.iscoroutinefunction(function):
        raise UsageError(f"{cls.__name__}.on_start must be `async def`.")
    if plain and name not in hooks and not name.startswith("_") and not getattr(function, MAY_BE_PLAIN, False):
        warn_at_class(
            f"{cls.__name__}.{name} is not `async def`, but calls through a stub must be awaited, which type checkers "
            f"cannot see. Write `async def`, or rename it _{name} if only the agent itself calls it."
        )


def warn_at_class(text: str) -> None:
    """Warn about the class that is being made, where it is written."""
    frame = definition()
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "")
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def definition() -> FrameType:
    """Return where the class is written that is being made."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_name != "__init_subclass__" and frame.f_back is not None:
        frame = frame.f_back
    # Each class that the new one extends may have one of its own.
    while frame.f_code.co_name == "__init_subclass__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _misspelt(owner: type, base: type, hooks: frozenset[str], settings: frozenset[str]) -> dict[str, str]:
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
    # The plural of a name is mostly another word: `models` beside `model`.
    found = difflib.get_close_matches(name, [one for one in known if name != f"{one}s"], 1, NEAR)
    return found[0] if found else None


def _is_plain(function: Any) -> bool:
    return not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
