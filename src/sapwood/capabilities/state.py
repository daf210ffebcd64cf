"""The one value of an agent that clients see, typed, versioned, kept in its own database."""

from __future__ import annotations

import logging
from asyncio import Future
from typing import Any, cast

import msgspec

from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.copying import to_json, unjson_hook
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.sockets import Socket
from sapwood.storage.migrations import Schema
from sapwood.wire import frames

log = logging.getLogger(__name__)

STATE = Schema("sapwood.capabilities", "state")
UNREAD: Any = object()


class State:
    """The state of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        cls = actor.kind.cls
        self._initial: Any = getattr(cls, "initial_state", None)
        self._version: int = getattr(cls, "state_version", 1)
        self._type = actor.kind.state_type
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

    def text(self) -> bytes | None:
        """Return the state as clients see it, as JSON; None if the agent has none."""
        value = self.get()
        # None is what an agent without a state has, and a state like any other once somebody set it.
        return None if value is None and not self._stored() else self._encode(value)

    def set(self, value: Any, source: object = None, sender: Socket | None = None) -> None:
        """Replace the state. `source` is the connection that wants it, `sender` its socket."""
        self._actor.check_use()
        self._forget_if_undone()
        if self._check and value is not self._value:
            self._refuse_change_in_place()
        text, copy = self._checked(value)
        if self._actor.kind.overrides("validate_state"):
            self._actor.agent.validate_state(copy, source)
        self._store(text, copy)
        self._tell(text, sender)
        if self._actor.kind.overrides("on_state_changed"):
            self._announce(copy, source)

    def set_text(self, text: bytes, source: object, sender: Socket) -> None:
        """Replace the state with what a client sent as JSON."""
        self.set(self._decode(text), source, sender)

    def _tell(self, text: bytes, sender: Socket | None) -> None:
        """Tell every client of the new state but the one that sent it."""
        frame = ""
        for socket in self._actor.host.sockets.of(self._actor.address):
            if socket.is_protocol and socket is not sender:
                frame = frame or frames.state(text)
                self._actor.of(Outbox).put(socket, frame)

    def _announce(self, state: Any, source: object) -> None:
        hook = self._actor.agent.on_state_changed
        _, told = self._actor.handle("on_state_changed", hook, state, source, client=source)
        told.add_done_callback(self._announced)

    def _announced(self, told: Future[Any]) -> None:
        if not told.cancelled() and (error := told.exception()) is not None:
            log.warning("on_state_changed of %s failed", self._actor.address, exc_info=error)

    def _store(self, text: bytes, copy: Any) -> None:
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

    def _stored(self) -> list[Any]:
        database = self._actor.database
        return list(database.execute("SELECT version, value FROM sapwood_state")) if database.has(STATE) else []

    def _read(self) -> Any:
        rows = self._stored()
        if not rows:
            return self._checked(self._initial)[1]
        ((version, text),) = rows
        if version > self._version:
            raise StoredDataError(
                f"The state of {self._actor.address} was written by a newer version of the program: it has "
                f"state_version {version}, and the class has {self._version}. Run the newer program again."
            )
        try:
            if version == self._version:
                return self._read_own(text)
            old = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise StoredDataError(
                f"The state of {self._actor.address} is damaged: {error}. Restore a backup."
            ) from error
        return self._upgraded(old, version)

    def _read_own(self, text: str) -> Any:
        """Read what this version of the class wrote, unless the class changed and the version did not."""
        try:
            value = self._decode(text)
        except msgspec.ValidationError as error:
            raise self._class_changed(f"cannot be read: {error}") from error
        again = self._encode(value)
        # Read back and written again it is nearly always the same, and nothing has to be looked for.
        if again != text.encode() and (lost := self._fields_lost(text, again)):
            raise self._class_changed(f"has a field that its class does not have: `{lost}`")
        return value

    def _class_changed(self, what: str) -> StoredDataError:
        return StoredDataError(
            f"The state of {self._actor.address} {what.removesuffix('.')}. The class changed without a new "
            f"state_version: raise it to {self._version + 1} and write upgrade_state(), or change the class back."
        )

    def _fields_lost(self, text: str, again: bytes) -> str | None:
        """Return the outermost field that was stored and is not there when it is written again."""
        lost = _fields(msgspec.json.decode(text)) - _fields(msgspec.json.decode(again))
        if lost:
            # A struct may leave out what has its default, and the default may be another one now.
            left_out = _left_out(msgspec.inspect.type_info(self._type), set())
            lost = {place for place in lost if place.rpartition(".")[2] not in left_out}
        return min(lost, key=lambda place: (len(place), place), default=None)

    def _upgraded(self, old: Any, version: int) -> Any:
        text = self._encode(self._actor.agent.upgrade_state(old, version))
        try:
            return self._decode(text)
        except msgspec.ValidationError as error:
            raise StoredDataError(
                f"The state of {self._actor.address} was written by version {version}, and what upgrade_state() makes "
                f"of it does not fit version {self._version}: {error}. Correct upgrade_state()."
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
            return to_json(value)
        except TypeError as error:
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


def _fields(value: Any, at: str = "") -> set[str]:
    """Return where in a JSON value there are fields. All items of a list count as one: a set has no order."""
    if isinstance(value, dict):
        places: set[str] = set()
        for name, inner in cast("dict[str, Any]", value).items():
            place = f"{at}.{name}" if at else name
            places |= {place} | _fields(inner, place)
        return places
    if isinstance(value, list):
        return set[str]().union(*(_fields(item, f"{at}[...]") for item in cast("list[Any]", value)))
    return set()


def _left_out(kind: object, seen: set[int]) -> set[str]:
    """Return the names of the fields that msgspec does not write when they have their default."""
    if id(kind) in seen:
        return set()
    seen.add(id(kind))
    names: set[str] = set()
    if isinstance(kind, msgspec.inspect.StructType) and kind.cls.__struct_config__.omit_defaults:
        names = {field.encode_name for field in kind.fields}
    if isinstance(kind, msgspec.inspect.Type | msgspec.inspect.Field):
        return names.union(*(_left_out(getattr(kind, part), seen) for part in kind.__struct_fields__))
    if isinstance(kind, tuple):
        return names.union(*(_left_out(part, seen) for part in cast("tuple[object, ...]", kind)))
    return names
