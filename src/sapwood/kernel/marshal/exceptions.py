"""What happens to an exception on its way to another agent.

sapwood's own errors arrive as what they are. An exception of the user's arrives as its
own type and as `Crashed` at once, so that callers may catch either; it is a copy, with
the path of the agent it comes from and the text of its traceback there.
"""

from __future__ import annotations

import functools
import traceback
from typing import Any, cast

from sapwood.errors import (
    CallTooDeep,
    ChildFailed,
    Crashed,
    InvalidArguments,
    InvalidName,
    NoSuchMethod,
    Path,
    SapwoodError,
    StoredDataError,
    UsageError,
)
from sapwood.kernel.marshal.copier import Copier

MAX_CAUSES = 8
MISTAKES = (Crashed, UsageError, InvalidArguments, InvalidName, NoSuchMethod, CallTooDeep)
"""Errors of sapwood's own whose place in the program has to be found."""
LOGGED = "_sapwood_logged"
"""The attribute of an error whose traceback is in the log."""
ARGUMENT = Copier(Any, "An exception's argument")


def crossing(error: BaseException, path: Path, limit: int) -> Exception:
    """Return what a caller is to catch for an error raised in the agent at `path`. Never fails."""
    try:
        return _crossing(error, path, limit)
    except Exception:  # noqa: BLE001 - the exception's own class may forbid anything
        return Crashed(describe(error), path=path)


def _crossing(error: BaseException, path: Path, limit: int) -> Exception:
    if isinstance(error, SapwoodError):
        copy = _copied(type(error), error, limit)
        if not isinstance(copy, ChildFailed):
            _say_where(copy, error, path)
        else:
            copy.path = copy.path or path
            for note in getattr(error, "__notes__", ()):
                copy.add_note(note)
        copy.__cause__ = _cause(error, limit, MAX_CAUSES)
        return copy
    copy = _copied(crashed_of(type(error)), error, limit)
    assert isinstance(copy, Crashed)
    copy.path = path
    copy.remote_traceback = "".join(traceback.format_exception(error))
    _say_where(copy, error, path)
    copy.__cause__ = _cause(error, limit, MAX_CAUSES)
    return copy


def _say_where(copy: BaseException, error: BaseException, path: Path) -> None:
    """Note where an error comes from, once: the agent it was first raised in knows best."""
    notes = getattr(error, "__notes__", None)
    if not notes and error.__traceback__ is not None:
        where = "/".join(f"{type_}:{name}" for type_, name in path)
        notes = [f"Raised in {where}:\n{''.join(traceback.format_exception(error))}"]
    for note in notes or ():
        copy.add_note(note)


def describe(error: BaseException) -> str:
    """Return an exception as one line, without its notes, also if its own `__str__` fails."""
    told = traceback.TracebackException(type(error), error, None)
    told.__notes__ = []
    return list(told.format_exception_only())[-1].strip()


def note_logged(error: BaseException) -> None:
    """Note that the traceback of an error is in the log, so that the next one who logs it leaves it out."""
    vars(error)[LOGGED] = True


def unlogged(error: BaseException) -> BaseException | None:
    """Return an internal error if its traceback is to be logged; None if it is in the log already, or says nothing."""
    return None if isinstance(error, StoredDataError) or vars(error).get(LOGGED) else error


def mistake(error: BaseException) -> BaseException | None:
    """Return an error if its traceback is to be logged; None if it is one of those that have to be expected.

    What was refused, aborted, denied, over a limit or out of reach says all there is to say in a sentence.
    """
    return None if isinstance(error, SapwoodError) and not isinstance(error, MISTAKES) else error


def _cause(error: BaseException, limit: int, left: int) -> BaseException | None:
    cause = error.__cause__
    if cause is None or left == 0:
        return None
    copy = _copied(type(cause), cause, limit)
    copy.__cause__ = _cause(cause, limit, left - 1)
    return copy


def own_type(type_: type[BaseException]) -> type[BaseException]:
    """Return the type an exception had before `crashed_of` made it `Crashed` as well."""
    bases = type_.__bases__
    return bases[1] if len(bases) == 2 and bases[0] is Crashed and crashed_of(bases[1]) is type_ else type_


@functools.cache
def crashed_of(type_: type[BaseException]) -> type[BaseException]:
    """Return a class that is both `Crashed` and the exception's own type, where Python can make one."""
    try:
        return type(type_.__name__, (Crashed, type_), {"__module__": type_.__module__, "__doc__": type_.__doc__})
    except TypeError:
        return Crashed


def _copied(type_: type[BaseException], error: BaseException, limit: int) -> Any:
    """Return a copy of an exception. Never fails: a caller is waiting for whatever comes out."""
    arguments = tuple(_value(argument, limit) for argument in error.args)
    group = cast("BaseExceptionGroup[BaseException]", error) if issubclass(type(error), BaseExceptionGroup) else None
    if group is not None:
        arguments = (str(group.message), [_copied(type(one), one, limit) for one in group.exceptions])
    elif isinstance(error, OSError):
        arguments = tuple(_value(argument, limit) for argument in reduced(error))
    copy = rebuilt(type_, arguments, error)
    vars(copy).update({name: _value(value, limit) for name, value in vars(error).items() if name != "__notes__"})
    return copy


def reduced(error: BaseException) -> tuple[Any, ...]:
    """Return the parts that an exception can be rebuilt from."""
    # The args of an OSError leave out the file names.
    return cast(Any, OSError.__reduce__(error))[1] if isinstance(error, OSError) else error.args


def rebuilt(type_: type[BaseException], arguments: tuple[Any, ...], like: BaseException | str) -> BaseException:
    """Return an exception of this type; one that says the same, if its own code does not let us. Never fails."""
    try:
        # Not type_(…): the arguments of an exception's __init__ are unknown. Those of Python itself are known.
        made = type_.__new__(type_, *arguments)
        made.args = arguments[:2] if isinstance(made, OSError) else arguments
        if isinstance(made, OSError | UnicodeError | SyntaxError):
            base = next(base for base in own_type(type_).__mro__ if base.__module__ == "builtins")
            base.__init__(cast(Any, made), *arguments)
    except Exception:  # noqa: BLE001 - the exception's own code may raise anything
        made = Crashed(like if isinstance(like, str) else describe(like))
    return made


def _value(value: object, limit: int) -> object:
    if is_path(value):
        return value
    try:
        return ARGUMENT.copy(value, limit)
    except SapwoodError:
        pass
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        return f"<{type(value).__name__}>"


def is_path(value: object) -> bool:
    """Return whether this is the path of an agent: nothing in it can change."""
    return isinstance(value, tuple) and all(
        isinstance(step, tuple) and all(isinstance(part, str) for part in cast("tuple[object, ...]", step))
        for step in cast("tuple[object, ...]", value)
    )


def again(error: SapwoodError) -> SapwoodError:
    """Return a fresh copy of an error: one instance raised twice would accumulate tracebacks."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    vars(copy).update({name: value for name, value in vars(error).items() if name != "__notes__"})
    return copy
