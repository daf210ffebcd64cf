"""The one value of an agent that clients see, typed, versioned, kept in its own database."""

from __future__ import annotations

import typing
from typing import Any, cast

import msgspec

from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.copying import json_hook, unjson_hook
from sapwood.storage.migrations import Schema

STATE = Schema("sapwood.capabilities", "state")
UNREAD: Any = object()


class State:
    """The state of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        cls = actor.kind.cls
        self._initial: Any = getattr(cls, "initial_state", None)
        self._version: int = getattr(cls, "state_version", 1)
        self._type = _state_type(cls, actor.kind.base, self._initial)
        self._value: Any = UNREAD
        self._written = b""
        self._undone = actor.database.undone
        self._check = actor.host.settings.check_state
        if self._check:
            actor.after_call.append(self._refuse_change_in_place)

    def get(self) -> Any:
        self._actor.check_use()
        self._forget_if_undone()
        if self._value is UNREAD:
            self._value = self._read()
            if self._check:
                self._written = self._encode(self._value)
        elif self._check:
            self._refuse_change_in_place()
        return self._value

    def set(self, value: Any) -> None:
        self._actor.check_use()
        self._forget_if_undone()
        if self._check and value is not self._value:
            self._refuse_change_in_place()
        text, copy = self._checked(value)
        database = self._actor.database
        database.ensure(STATE)
        database.execute(
            "INSERT INTO sapwood_state VALUES (1, ?, ?)"
            " ON CONFLICT (only) DO UPDATE SET version = excluded.version, value = excluded.value",
            self._version,
            text.decode(),
        )
        self._value = copy
        self._written = text

    def _forget_if_undone(self) -> None:
        if self._undone != self._actor.database.undone:
            self._undone = self._actor.database.undone
            self._value = UNREAD

    def _read(self) -> Any:
        database = self._actor.database
        rows = database.execute("SELECT version, value FROM sapwood_state") if database.has(STATE) else []
        if not rows:
            return self._checked(self._initial)[1]
        ((version, text),) = rows
        try:
            if version == self._version:
                return self._decode(text)
            upgraded = self._actor.agent.upgrade_state(msgspec.json.decode(text), version)
            return self._decode(self._encode(upgraded))
        except (msgspec.DecodeError, msgspec.ValidationError, StoredDataError) as error:
            raise StoredDataError(
                f"The state of {self._actor.address}, written by version {version}, cannot be read by version "
                f"{self._version}: {error}. Raise state_version and write upgrade_state()."
            ) from error

    def _refuse_change_in_place(self) -> None:
        if self._value is not UNREAD and self._encode(self._value) != self._written:
            self._value = UNREAD
            raise UsageError(
                f"The state of {self._actor.address} was changed in place. Nobody is told of that and nothing is "
                "stored: make a new value and pass it to set_state()."
            )

    def _encode(self, value: Any) -> bytes:
        try:
            return msgspec.json.encode(value, enc_hook=json_hook)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(f"The state of {self._actor.address} cannot be stored: {error}") from None

    def _decode(self, text: str | bytes) -> Any:
        return msgspec.json.decode(text, type=self._type, dec_hook=unjson_hook)

    def _checked(self, value: Any) -> tuple[bytes, Any]:
        """Return a value of the program's as text, and a copy of it."""
        text = self._encode(value)
        try:
            return text, self._decode(text)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{value!r} cannot be the state of {self._actor.address}, which is a "
                f"{getattr(self._type, '__name__', self._type)}: {error}. Look at initial_state and set_state()."
            ) from None


def _state_type(cls: type, agent: type, initial: Any) -> Any:
    """Return the type given as `Agent[State]`, or that of the initial state."""
    for owner in cls.__mro__:
        for base in owner.__dict__.get("__orig_bases__", ()):
            origin, arguments = typing.get_origin(base), typing.get_args(base)
            if isinstance(origin, type) and issubclass(origin, agent) and not isinstance(arguments[0], typing.TypeVar):
                return arguments[0]
    return Any if initial is None else cast(Any, type(initial))
