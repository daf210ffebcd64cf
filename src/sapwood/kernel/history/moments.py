"""Which states of the past there are, and which of them is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from sapwood.address import Address
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.history.deltas import SegmentState
from sapwood.kernel.history.segments import (
    MOMENT,
    PAGES,
    PART,
    Line,
    MomentName,
    SegmentReader,
    decode_name,
    segment_path,
    segments_in,
)
from sapwood.kernel.log.restore import RestoredTree, TreeContent
from sapwood.kernel.ports.history import MomentKind
from sapwood.storage.file_reader import FileReader
from sapwood.storage.image import PAGE_SIZE

PLACE = re.compile(r"([0-9]{1,8})\.([0-9]{1,18})\.([0-9]{1,18})")
MICROSECOND = 1e-6
"""A `datetime` has no less: it may be that much before the commit whose time it is."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A state that a tree had between two commits."""

    address: Address
    """The agent that the moment was recorded for."""
    at: datetime
    """When it was."""
    kind: str
    """Why it was recorded: `mark`, `before_turn`, `after_turn`, `before_run`, `after_run` or `before_deletion`."""
    label: str
    """The name of the mark, the id of the turn or the run, or the address of the agent that was deleted."""
    place: str
    """Where it is in the history of the tree."""


@dataclass(frozen=True, slots=True)
class BeforeTurn:
    """The last moment at which a tree had no row of this turn."""

    id: str
    """The id of the turn."""


At: TypeAlias = Moment | BeforeTurn | datetime | str
"""A moment of the past: itself, the last one before a turn, the last one at a time, or the last mark of this name."""


class ClusterPast(Protocol):
    """What the archive of a cluster has of the past."""

    async def tree_at(self, root: Address, until: float) -> TreeContent | None:
        """Return a tree as it was at a time, or `None` if there was none, or it is older than what is kept."""
        ...


@dataclass(slots=True)
class PastSources:
    """What a node needs to read the past, beside what it has recorded."""

    archive: ClusterPast | None = None
    """The archive of its cluster."""
    named_files: Callable[[FileReader], Sequence[str]] = lambda file: ()
    """Returns the digests of the larger files that a database names."""


class Place(NamedTuple):
    """A state in the history of a tree."""

    segment: int
    sequence: int
    at: float


def _said(at: At) -> str:
    """Return how a moment is called in a sentence."""
    if isinstance(at, Moment):
        return f"the moment {at.label or at.place!r}"
    if isinstance(at, BeforeTurn):
        return f"a moment before turn {at.id!r}"
    return f"the time {at.isoformat()}" if isinstance(at, datetime) else f"a moment {at!r}"


def text_of(place: Place) -> str:
    """Return a place as users see it."""
    # The time as well: a past that was erased begins again with the same numbers.
    return f"{place.segment}.{place.sequence}.{_microseconds(place.at)}"


def _microseconds(at: float) -> int:
    return round(at * 1_000_000)


class TreePast:
    """The recorded past of one tree. Reads files: not for the event loop."""

    def __init__(self, folder: Path, root: Address) -> None:
        self.folder = folder
        self.root = root

    def moments(self, since: float, limit: int) -> list[Moment]:
        """Return the last moments since a time, oldest first."""
        found: list[Moment] = []
        for segment in reversed(segments_in(self.folder)):
            named = self._named(segment)
            found = [self._moment(place, at, name) for place, at, name in named if at >= since] + found
            if len(found) >= limit or (named and named[0][1] < since):
                break
        return found[-limit:] if limit else []

    def find(self, at: At) -> Place:
        """Return the state that is meant; `NotFound` if it is not in the history."""
        if isinstance(at, Moment):
            place = self._of_moment(at)
        elif isinstance(at, datetime):
            place = self._at_time(at.timestamp())
        elif isinstance(at, BeforeTurn):
            place = self._before_turn(at.id)
        else:
            place = self._last(lambda name: name.kind == MomentKind.MARK and name.label == at)
        if place is not None:
            return place
        first = self._first()
        begins = (
            "It has none yet: it begins with the next write"
            if first is None
            else f"It begins at {datetime.fromtimestamp(first.at, UTC).isoformat(timespec='milliseconds')}"
        )
        raise NotFound(
            f"The history does not have {_said(at)} of {self.root}. {begins}, and Settings(history=…) says how long "
            "it is kept. `sapwood moments` lists the moments.",
            path=self.root.segments,
        )

    def read(self, place: Place) -> TreeContent:
        """Return the files of the tree in this state; `StoredDataError` if the history is damaged.

        `FileNotFoundError` if it was removed.
        """
        reader = SegmentReader(segment_path(self.folder, place.segment))
        lines = [line for line in reader.lines() if line.kind in (PART, PAGES) and line.sequence <= place.sequence]
        if not lines:
            raise FileNotFoundError(reader.path)
        state = SegmentState()
        for body in reader.bodies(lines):
            state.apply(body)
        files = state.files()
        size = sum(map(len, files.values()))
        tail = RestoredTree(place.sequence, b"", 1, frozenset(files), None, 0, 0, None, size, root=str(self.root))
        return TreeContent(dict(files), dict.fromkeys(files, PAGE_SIZE), tail)

    def _of_moment(self, moment: Moment) -> Place | None:
        if (parts := PLACE.fullmatch(moment.place)) is None:
            raise UsageError(f"A moment of a recorded history was expected, got one at {moment.place!r}.")
        number, sequence, at = map(int, parts.groups())
        if moment.address.root != self.root and not self._had_address(number, moment.address.root):
            raise UsageError(f"The moment is one of {moment.address.root}, not of {self.root}.")
        for place in self._places(segment_path(self.folder, number)):
            if place.sequence == sequence:
                return place if _microseconds(place.at) == at else None
        return None

    def _had_address(self, segment: int, root: Address) -> bool:
        """Return whether the tree had this address, as a moment of a segment says."""
        named = self._named(segment_path(self.folder, segment))
        return any(Address.parse(name.agent).root == root for _, _, name in named)

    def _at_time(self, at: float) -> Place | None:
        for segment in reversed(segments_in(self.folder)):
            places = [place for place in self._places(segment) if place.at <= at + MICROSECOND]
            if places:
                return places[-1]
        return None

    def _before_turn(self, turn: str) -> Place | None:
        found = [
            (place, name)
            for segment in segments_in(self.folder)
            for place, _, name in self._named(segment)
            if name.kind == MomentKind.BEFORE_TURN and name.label == turn
        ]
        agents = sorted({name.agent for _, name in found})
        if len(agents) > 1:
            raise UsageError(
                f"Several agents have a turn {turn!r}: {', '.join(agents)}. Pass one of the moments that "
                "`app.moments` returns."
            )
        return found[-1][0] if found else None

    def _last(self, fits: Callable[[MomentName], bool]) -> Place | None:
        for segment in reversed(segments_in(self.folder)):
            found = [place for place, _, name in self._named(segment) if fits(name)]
            if found:
                return found[-1]
        return None

    def _first(self) -> Place | None:
        for segment in segments_in(self.folder):
            for place in self._places(segment):
                return place
        return None

    def _places(self, segment: Path) -> Iterator[Place]:
        reader = SegmentReader(segment)
        for line in reader.lines():
            if line.kind == PAGES:
                yield Place(reader.number, line.sequence, line.at)

    def _named(self, segment: Path) -> list[tuple[Place, float, MomentName]]:
        reader = SegmentReader(segment)
        states: dict[int, Place] = {}
        names: list[Line] = []
        for line in reader.lines():
            if line.kind == PAGES:
                states[line.sequence] = Place(reader.number, line.sequence, line.at)
            elif line.kind == MOMENT and line.sequence in states:
                names.append(line)
        bodies = reader.bodies(names) if names else ()
        return [(states[line.sequence], line.at, decode_name(body)) for line, body in zip(names, bodies, strict=True)]

    def _moment(self, place: Place, at: float, name: MomentName) -> Moment:
        # The tree may have had another address then.
        agent = Address((*self.root.segments, *Address.parse(name.agent).segments[1:]))
        return Moment(agent, datetime.fromtimestamp(at, UTC), name.kind.value, name.label, text_of(place))
