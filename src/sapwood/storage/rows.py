"""What a statement returned: rows, already read, by column name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

import msgspec

from sapwood.errors import UsageError

SqlValue = None | int | float | str | bytes
Row = dict[str, SqlValue]

T = TypeVar("T")


class Rows(Sequence[Row]):
    """The rows of one statement, in order. They are values: nothing is read later."""

    __slots__ = ("_columns", "_values")

    def __init__(self, columns: tuple[str, ...], values: list[tuple[SqlValue, ...]]) -> None:
        self._columns = columns
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Row]:
        for values in self._values:
            yield self._row(values)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        if isinstance(index, slice):
            return Rows(self._columns, self._values[index])
        return self._row(self._values[index])

    def _row(self, values: tuple[SqlValue, ...]) -> Row:
        row = dict(zip(self._columns, values, strict=True))
        if len(row) != len(values):
            twice = next(name for name in self._columns if self._columns.count(name) > 1)
            raise UsageError(f"The statement returned two columns named {twice!r}. Rename one with AS.")
        return row

    def __repr__(self) -> str:
        return f"Rows({list(self)!r})"

    def one(self) -> Row:
        """Return the only row; anything but exactly one is an error."""
        if len(self._values) != 1:
            raise UsageError(f"one() expected exactly one row, got {len(self._values)}.")
        return self[0]

    def first(self) -> Row | None:
        """Return the first row, or None when there is none."""
        return self[0] if self._values else None

    def scalar(self, type: type[T]) -> T:
        """Return the only column of the only row, as this type."""
        if len(self._values) != 1 or len(self._columns) != 1:
            raise UsageError(
                f"scalar() expected one row with one column, got {len(self._values)} rows with "
                f"{len(self._columns)} columns."
            )
        return _convert(self._values[0][0], type)

    def into(self, type: type[T]) -> list[T]:
        """Return each row as an instance of a dataclass, struct or typed dict."""
        return [_convert(row, type) for row in self]


def _convert(value: object, type: type[T]) -> T:
    try:
        # Not strict: SQLite has no booleans, dates or decimals of its own.
        return msgspec.convert(value, type, strict=False)
    except msgspec.ValidationError as error:
        name = getattr(type, "__name__", type)
        raise UsageError(f"Expected a value of type {name}, got {value!r}: {error}") from None
