"""The one value of an agent that clients see, typed, versioned, kept in its own database."""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from sapwood.errors import InvalidArguments, StoredDataError, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.copier import to_json, unjson_hook
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.node.upgrade_check import Misfit, Nobody, NotChecked, StoredAgent
from sapwood.storage.migrations import Schema
from sapwood.wire import frames

log = logging.getLogger(__name__)

STATE = Schema("sapwood.capabilities", "state")
UNREAD: Any = object()


class Unfit(Exception):
    """A stored state does not fit its class."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why, remedy)
        self.why = why
        """What is wrong, as the rest of a sentence that begins with the state."""
        self.remedy = remedy
        """What to do, in a sentence."""


class Form:
    """How the states of one class are stored."""

    __slots__ = ("type", "version")

    def __init__(self, kind: AgentClass) -> None:
        self.type = kind.state_type
        self.version: int = getattr(kind.cls, "state_version", 1)

    @property
    def name(self) -> str:
        """What the type is called."""
        return getattr(self.type, "__name__", str(self.type))

    def decode(self, text: str | bytes) -> Any:
        return msgspec.json.decode(text, type=self.type, dec_hook=unjson_hook)

    def read(self, version: int, text: str, upgrade: Callable[[Any, int], Any]) -> Any:
        """Return a stored state, upgraded if it is an older one; `Unfit` if it cannot be read."""
        if version > self.version:
            raise Unfit(
                f"was written by a newer version of the program: it has state_version {version}, but the class has "
                f"{self.version}.",
                "Run the newer version again.",
            )
        try:
            if version == self.version:
                return self._read_own(text)
            old = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise Unfit(f"is damaged: {error}.", "Restore a backup.") from error
        return self._upgraded(upgrade(old, version), version)

    def _read_own(self, text: str) -> Any:
        """Read what this version of the class wrote, unless the class changed and the version did not."""
        try:
            value = self.decode(text)
        except msgspec.ValidationError as error:
            raise self._class_changed(f"cannot be read: {error}") from error
        again = to_json(value)
        # Read back and written again it is nearly always the same, and nothing has to be looked for.
        if again != text.encode() and (lost := self._fields_lost(text, again)):
            raise self._class_changed(f"has a field that its class does not have: `{lost}`")
        return value

    def _class_changed(self, what: str) -> Unfit:
        return Unfit(
            f"{what.removesuffix('.')}.",
            f"The class changed without a new state_version: increase it to {self.version + 1} and write "
            "upgrade_state(), or change the class back.",
        )

    def _fields_lost(self, text: str, again: bytes) -> str | None:
        """Return the outermost field that was stored and is not there when it is written again."""
        lost = _fields(msgspec.json.decode(text)) - _fields(msgspec.json.decode(again))
        if lost:
            # A struct may leave out what has its default, and the default may be another one now.
            left_out = _left_out(msgspec.inspect.type_info(self.type), set())
            lost = {place for place in lost if place.rpartition(".")[2] not in left_out}
        return min(lost, key=lambda place: (len(place), place), default=None)

    def _upgraded(self, value: Any, version: int) -> Any:
        what = f"has state_version {version}, and the result of upgrade_state()"
        try:
            return self.decode(to_json(value))
        except TypeError as error:
            raise Unfit(f"{what} cannot be stored: {error}", "Correct upgrade_state().") from error
        except msgspec.ValidationError as error:
            why = f"{what} does not match version {self.version}: {error}."
            raise Unfit(why, "Correct upgrade_state().") from error


class State:
    """The state of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._form = Form(actor.kind)
        self._initial: Any = getattr(actor.kind.cls, "initial_state", None)
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
        # None is what an agent without a state has, and a state like any other once it was set.
        return None if value is None and not self._stored() else self._encode(value)

    def read(self, text: bytes) -> Any:
        """Return a state that `text` returned, as the class has it."""
        return self._form.decode(text)

    def set(self, value: Any, source: object = None, sender: Socket | None = None) -> None:
        """Replace the state. `source` is the connection that wants it, `sender` its socket."""
        self._actor.check_use()
        self._forget_if_undone()
        if self._check and value is not self._value:
            self._refuse_change_in_place()
        text, copy = self._checked(value)
        if self._actor.kind.overrides("validate_state"):
            self._actor.agent.validate_state(copy, source)
        self._actor.hooks.state_changes()
        self._store(text, copy)
        self._tell(text, sender)
        if self._actor.kind.overrides("on_state_changed"):
            self._announce(copy, source)

    def start_with(self, text: bytes, what: str) -> None:
        """Make what is given as JSON the first state. An agent that has stored a state keeps it."""
        self._forget_if_undone()
        if self._stored():
            return
        try:
            value = self._form.decode(text)
        except msgspec.ValidationError as error:
            raise InvalidArguments(
                f"{what} must match the state of {self._actor.address}, a {self._form.name}: {error}. The class "
                "has input_as_state = True, so the input of its first run becomes its state."
            ) from None
        self.set(value)

    def set_text(self, text: bytes, source: object, sender: Socket) -> None:
        """Replace the state with what a client sent as JSON."""
        self.set(self._form.decode(text), source, sender)

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
            who = self._actor.address
            log.warning("on_state_changed failed address=%s: %s", who, describe(error), exc_info=mistake(error))

    def _store(self, text: bytes, copy: Any) -> None:
        database = self._actor.database
        database.ensure(STATE)
        database.execute(
            "INSERT INTO sapwood_state VALUES (1, ?, ?)"
            " ON CONFLICT (singleton) DO UPDATE SET version = excluded.version, value = excluded.value",
            self._form.version,
            text.decode(),
        )
        self._value = copy
        if self._check:
            # Not the text: of the copy, the same set or a whole number among fractions may be written otherwise.
            self._written = self._encode(copy)

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
        try:
            return self._form.read(version, text, self._actor.agent.upgrade_state)
        except Unfit as unfit:
            raise StoredDataError(f"The state of {self._actor.address} {unfit.why} {unfit.remedy}") from unfit.__cause__

    def _refuse_change_in_place(self) -> None:
        if self._value is not UNREAD and self._encode(self._value) != self._written:
            self._value = UNREAD
            raise UsageError(
                f"The state of {self._actor.address} was changed in place. Such a change is not stored or sent to "
                "clients. Pass a new value to set_state()."
            )

    def _encode(self, value: Any) -> bytes:
        try:
            return to_json(value)
        except TypeError as error:
            raise UsageError(f"The state of {self._actor.address} cannot be stored: {error}") from None

    def _checked(self, value: Any) -> tuple[bytes, Any]:
        """Return a value of the program's as text, and a copy of it."""
        text = self._encode(value)
        try:
            return text, self._form.decode(text)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"The state of {self._actor.address} must be a {self._form.name}, got {value!r}: {error}. "
                "Check initial_state and the calls of set_state()."
            ) from None


def unfit(stored: StoredAgent) -> Iterator[Misfit]:
    """Read the state of an agent that sleeps as its class would."""
    if not stored.file.has(STATE):
        return
    for version, text in stored.file.rows("SELECT version, value FROM sapwood_state"):
        stored.counts["states"] += 1
        form, upgrade = Form(stored.kind), _tried_upgrade(stored)
        try:
            form.read(version, text, upgrade)
            if version < form.version:
                stored.counts["states to be upgraded"] += 1
        except NotChecked:
            stored.counts["states whose upgrade could not be tried"] += 1
        except Unfit as unfit:
            yield stored.misfit("state", f"It {unfit.why}", unfit.remedy)
        except Exception as error:  # noqa: BLE001 - whatever upgrade_state() raises
            why = f"It has state_version {version}, and upgrade_state() raised {describe(error)}."
            yield stored.misfit("state", why, "Correct upgrade_state().")


def _tried_upgrade(stored: StoredAgent) -> Callable[[Any, int], Any]:
    """Return the class's upgrade_state, bound to an agent that is not there: it can do nothing but answer."""
    if not stored.kind.overrides("upgrade_state"):

        def missing(old: Any, version: int) -> Any:
            now = getattr(stored.kind.cls, "state_version", 1)
            why = f"has state_version {version}, but the class has {now}."
            raise Unfit(why, "Write upgrade_state(old, version).")

        return missing
    cls: Any = stored.kind.cls
    agent = cls.__new__(cls)
    agent._actor = agent.deps = Nobody(stored.address)

    def tried(old: Any, version: int) -> Any:
        try:
            return agent.upgrade_state(old, version)
        except AttributeError as error:
            if error.obj is agent:  # something that on_start prepares
                raise NotChecked from error
            raise

    return tried


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
