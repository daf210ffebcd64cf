"""What must have come of everything that was said in a folder, by the journals of all lives it had.

o  opened     tab, place                       a client connects
l  left       tab                              and leaves
f  frame      tab, frame                       a client was sent this
k  taken      tab, stream                      a client is about to take a replay
s  said       tab, place, request, messages    just before somebody says something; without messages: once more
d  answered   place, turn, status, message     what was said from Python has its answer
r  answer     tool call, kind, value           just before somebody answers for a tool call
R  answered   tool call                        that was acknowledged
c  cancel     place, turn                      just before a turn is cancelled
n  clear      place                            just before everything is forgotten
N  cleared    place                            it is
g  go on      place                            just before the last turn is to go on
q  asked      place, turn, step                just before the model is asked
t  begun      tool call, name                  first thing in a tool
z  ended      tool call, value                 last thing in it
a  reply      numbers                          a client heard something of an answer
e  error      text                             nothing that the workload expects
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.chats import built
from tests.faults.chat_checker import Left, requests_of
from tests.faults.chat_workload import ONCE

from sapwood.chat.store.turn_rows import TurnRow
from sapwood.wire import chat as wire

ENDED = ("completed", "failed", "cancelled", "skipped")
UNFINISHED = ("input-streaming", "input-available", "approval-requested", "approval-responded")
REFUSALS = ("The conversation is empty", "A question is open, and the request has no new message")
OUTCOMES = {
    "completed": ("completed", "waiting", "cancelled"),
    "error": ("failed",),
    "aborted": ("cancelled",),
    "skipped": ("skipped",),
}
"""What a turn may be if its last stream ended like this: one that waits for somebody is completed to its clients."""


@dataclass(slots=True)
class Stream:
    """What all clients together were sent of one stream."""

    bodies: dict[int, str] = field(default_factory=dict[int, str])
    heard: set[int] = field(default_factory=set[int])
    """What was heard in this life."""
    live: set[int] = field(default_factory=set[int])
    """What was heard in this life as it was said."""
    before: int = -1
    """The highest number of earlier lives."""
    gone: set[int] = field(default_factory=set[int])
    """What was forgotten after a crash."""


@dataclass(slots=True)
class Listening:
    """What one client was sent of one stream."""

    base: dict[str, Any] | None
    """The message that it goes on with."""
    is_replay: bool
    is_whole: bool = False
    """Whether nothing is missing: it was there from the start, or has caught up."""
    seqs: list[int] = field(default_factory=list[int])
    chunks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(slots=True)
class Tab:
    """What one client knows."""

    place: str
    messages: dict[str, dict[str, Any]] | None = None
    listening: dict[str, Listening] = field(default_factory=dict[str, Listening])


@dataclass(slots=True)
class Shown:
    """How an answer was shown to a client when its stream ended."""

    stream: str
    outcome: str
    message: dict[str, Any] | None


class Model:
    """Judges a folder."""

    def __init__(self) -> None:
        self._life = -1
        self._found: list[str] = []
        self._tabs: dict[str, Tab] = {}
        self._streams: dict[tuple[str, str], Stream] = defaultdict(Stream)
        self._begun: dict[str, list[int]] = defaultdict(list[int])
        self._values: dict[str, set[str]] = defaultdict(set[str])
        self._stored: dict[str, Any] = {}
        """Tool calls that were over when the last life ended, with what they returned."""
        self._heard: dict[str, Any] = {}
        """Tool calls that clients know to be over, with what they returned."""
        self._answers: dict[str, list[tuple[str, Any]]] = defaultdict(list[tuple[str, Any]])
        self._answered: set[str] = set()
        self._requests: dict[str, tuple[str, list[str]]] = {}
        """What was said over sockets: where, and the ids of the messages."""
        self._acknowledged: dict[str, dict[str, list[str]]] = defaultdict(dict[str, list[str]])
        """By place: the turns that somebody knows of, with the messages they have to answer."""
        self._shown: dict[str, dict[str, Shown]] = defaultdict(dict[str, Shown])
        """By place and turn: how it ended."""
        self._turns: dict[tuple[str, int], TurnRow] = {}
        self._said_at: dict[str, set[str]] = defaultdict(set[str])
        self._taken_back: set[str] = set()
        """What was said before the conversation was cleared: nobody knows whether it was heard before that, too."""
        self._asks: Counter[tuple[str, str]] = Counter()
        self._clearing: Counter[str] = Counter()
        self._ever: dict[str, set[str]] = defaultdict(set[str])
        """Places where something was ever cleared, taken back, or gone on with."""

    def _problem(self, text: str) -> None:
        self._found.append(text)

    def add(self, life: int, lines: list[list[Any]]) -> int:
        """Take the journal of a life; return how many replies it has."""
        self._life = life
        self._tabs = {}
        for stream in self._streams.values():
            stream.before = max(stream.bodies, default=-1)
            stream.heard.clear()
            stream.live.clear()
        replies = 0
        for kind, *rest in lines:
            if kind == "a":
                replies += 1
            elif kind in READERS:
                READERS[kind](self, *rest)
        for place in [place for place, count in self._clearing.items() if count]:
            self._forget(place)
        self._clearing.clear()
        return replies

    def _error(self, text: str) -> None:
        self._problem(text)

    def _opened(self, tab: str, place: str) -> None:
        self._tabs[tab] = Tab(place)

    def _said(self, tab: str | None, place: str, request: str | None, messages: list[str]) -> None:
        self._said_at[place].update(messages)
        if request is not None:
            self._requests[request] = (place, messages)
            self._said_at[place].add(request)

    def _returned(self, place: str, turn: str, status: str, message: str) -> None:
        if not self._clearing[place] and message not in self._taken_back:
            self._acknowledged[place][turn] = [message]

    def _answers_for(self, id: str, kind: str, value: Any) -> None:
        self._answers[id].append((kind, value))

    def _is_answered(self, id: str) -> None:
        self._answered.add(id)

    def _cancels(self, place: str, turn: str | None) -> None:
        self._ever["cancelled"].add(place)

    def _clears(self, place: str) -> None:
        self._clearing[place] += 1
        self._forget(place)

    def _cleared(self, place: str) -> None:
        self._clearing[place] -= 1
        self._forget(place)

    def _forget(self, place: str) -> None:
        self._ever["cleared"].add(place)
        self._taken_back |= self._said_at.pop(place, set())
        self._acknowledged.pop(place, None)
        self._shown.pop(place, None)

    def _goes_on(self, place: str) -> None:
        self._ever["gone on"].add(place)

    def _asked(self, place: str, turn: str, step: int) -> None:
        self._asks[place, turn] += 1
        for (where, _), row in self._turns.items():
            if where == place and row.id == turn and step <= row.steps and row.status == "running":
                self._problem(f"{place}: step {step} of {turn} was stored, and the model was asked again")

    def _begins(self, key: str, name: str) -> None:
        if key in self._stored or key in self._heard:
            self._problem(f"the tool call {key} ({name}) was finished, and ran again")
        if self._begun[key] and (name in ONCE or self._begun[key][-1] == self._life):
            self._problem(f"the tool call {key} ({name}) ran in life {self._begun[key]}, and again in {self._life}")
        self._begun[key].append(self._life)

    def _ends(self, key: str, value: str) -> None:
        self._values[key].add(value)

    def _frame(self, name: str, frame: dict[str, Any]) -> None:
        tab = self._tabs[name]
        kind = frame["type"]
        if kind == wire.MESSAGES:
            tab.messages = {message["id"]: message for message in frame["messages"]}
        elif kind == wire.UPDATED and tab.messages is not None:
            tab.messages[frame["message"]["id"]] = frame["message"]
        elif kind == wire.CLEAR:
            tab.messages = {}
        elif kind == wire.RESPONSE:
            self._response(tab, frame)

    def _response(self, tab: Tab, frame: dict[str, Any]) -> None:
        id = frame["id"]
        request = id if id in self._requests else id.rpartition("-")[0]
        if _is_refusal(frame) and not self._requests.get(request, ("", [""]))[1]:
            return  # nothing was said with it, and it began no turn
        if request in self._requests and request not in self._taken_back and not self._clearing[tab.place]:
            self._acknowledged[tab.place][request] = self._requests[request][1]
        if frame["done"]:
            self._done(tab, id, frame)
        elif frame.get("replayComplete"):
            self._caught_up(tab, id)
        elif "seq" in frame:
            self._chunk(tab, id, frame)
        elif (json.loads(frame["body"]), frame.get("replay"), frame.get("continuation")) != (
            {"type": "start"},
            True,
            True,
        ):
            self._problem(f"{tab.place}: a chunk of {id} has no number: {frame}")  # only what is over already has none

    def _chunk(self, tab: Tab, id: str, frame: dict[str, Any]) -> None:
        stream, seq, body = self._streams[tab.place, id], frame["seq"], frame["body"]
        where = f"{tab.place}: chunk {seq} of {id}"
        if stream.bodies.setdefault(seq, body) != body:
            self._problem(f"{where} was {stream.bodies[seq]}, and is {body}")
        chunk = json.loads(body)
        is_replay = frame.get("replay", False)
        listening = tab.listening.get(id)
        if listening is None or (is_replay and not listening.is_replay):
            listening = tab.listening[id] = self._begin(tab, chunk, is_replay)
        if listening.seqs and seq <= listening.seqs[-1]:
            self._problem(f"{where} came after {listening.seqs[-1]}")
        if is_replay:
            if seq in stream.gone:
                self._problem(f"{where} was forgotten, and is replayed")
        else:
            listening.is_replay = False
            stream.live.add(seq)
            if seq <= stream.before:
                self._problem(f"{where} is new, and its number was used before")
        stream.heard.add(seq)
        listening.seqs.append(seq)
        listening.chunks.append(chunk)
        if chunk["type"] == "tool-output-available":
            # An error may be that of a turn that is broken off, of which nobody knows yet how it ended.
            self._heard[chunk["toolCallId"]] = chunk["output"]

    def _begin(self, tab: Tab, chunk: dict[str, Any], is_replay: bool) -> Listening:
        base = None
        if chunk["type"] == "start" and "messageId" not in chunk and tab.messages:
            last = list(tab.messages.values())[-1]
            base = last if last["role"] == "assistant" else None
        is_first = chunk["type"] == "start"
        return Listening(base, is_replay, is_whole=is_first and not is_replay)

    def _caught_up(self, tab: Tab, id: str) -> None:
        stream, listening = self._streams[tab.place, id], tab.listening.get(id)
        if listening is None:
            return
        listening.is_whole, listening.is_replay = True, False
        missing = sorted(stream.heard - set(listening.seqs))
        if missing:
            self._problem(f"{tab.place}: chunks {missing} of {id} were heard in this life, and are not replayed")
        stream.gone |= {seq for seq in stream.bodies if seq not in set(listening.seqs)}

    def _done(self, tab: Tab, id: str, frame: dict[str, Any]) -> None:
        listening = tab.listening.pop(id, None)
        if frame.get("replay") or "outcome" not in frame:
            return
        outcome, request = frame["outcome"], self._turn_of(id)
        message = None
        if listening is not None and listening.is_whole:
            missing = sorted(self._streams[tab.place, id].heard - set(listening.seqs))
            if missing:
                self._problem(f"{tab.place}: chunks {missing} of {id} did not come to somebody who listened to it all")
            message = self._compare(tab, id, listening, outcome)
        if not self._clearing[tab.place]:
            self._shown[tab.place][request] = Shown(id, outcome, message)

    def _turn_of(self, id: str) -> str:
        return id if id in self._requests or id.count("-") < 2 else id.rpartition("-")[0]

    def _compare(self, tab: Tab, id: str, listening: Listening, outcome: str) -> dict[str, Any] | None:
        """Compare what a client has built of chunks with what it is shown at the end; return that."""
        if listening.base is None and listening.chunks and "messageId" not in listening.chunks[0]:
            return None
        try:
            mine = built(listening.chunks, listening.base)
        except KeyError as error:
            self._problem(f"{tab.place}: {id} says more of {error}, which nobody was told of")
            return None
        theirs = (tab.messages or {}).get(mine["id"])
        if theirs is None:
            says = any(part["type"] != "step-start" for part in mine["parts"])
            if says and tab.place not in self._ever["cleared"]:
                self._problem(f"{tab.place}: {id} said {mine}, and that is not in the conversation")
            return None
        heard = self._with_answers(mine["parts"], theirs["parts"])
        if outcome == "completed" and heard != theirs["parts"]:
            self._problem(f"{tab.place}: {id} was heard as {heard}, and is shown as {theirs['parts']}")
        elif _texts(mine) != _texts(theirs):
            self._problem(f"{tab.place}: {id} was heard as {_texts(mine)}, and is shown as {_texts(theirs)}")
        return theirs

    def _with_answers(self, heard: list[Any], shown: list[Any]) -> list[Any]:
        """Return parts with the answers of clients, which no chunk tells: they may come while a step is still told."""
        answered = {part["toolCallId"]: part for part in shown if part.get("toolCallId") in self._answers}
        return [answered.get(part.get("toolCallId"), part) for part in heard]

    def check(self, folder: dict[str, Left], *, was_cut: bool = False, is_end: bool = False) -> list[str]:
        """Return what is wrong with what a life left, and with what it did.

        After a loss of power only what somebody was told is sure to be there; what is, is as before.
        """
        if was_cut:
            self._stored.clear()
            self._turns.clear()
        for left in folder.values():
            self._found += left.problems()
            self._check_turns(left)
            self._check_promised(left)
            self._check_tools(left)
            if is_end:
                self._check_end(left)
        for place in self._acknowledged:
            if place not in folder:
                self._problem(f"{place} is gone")
        found, self._found = self._found, []
        return found

    def _check_turns(self, left: Left) -> None:
        place = left.place
        now = {row.number: row for row in left.turns}
        for (where, number), old in list(self._turns.items()):
            if where != place:
                continue
            row = now.get(number)
            if row is None:
                if place not in self._ever["cleared"]:
                    self._problem(f"{place}: the turn {old.id} was there, and is gone")
                del self._turns[where, number]
            elif (row.id, row.message) != (old.id, old.message):
                self._problem(f"{place}: turn {number} was {old.id} with {old.message}, and is {row.id}, {row.message}")
            elif row.steps < old.steps or row.next_seq < old.next_seq:
                self._problem(f"{place}: {row.id} went back from step {old.steps} to {row.steps}")
            elif old.status in ENDED and row.status != old.status and row.continues == old.continues:
                self._problem(f"{place}: {row.id} was {old.status}, and is {row.status}")
        for row in left.turns:
            self._turns[place, row.number] = row
            self._check_stream(left, row)
            self._check_answer(left, row)

    def _check_stream(self, left: Left, row: TurnRow) -> None:
        stream = self._streams.get((left.place, row.stream))
        if stream is None or row.status != "running":
            return
        stored = dict(left.chunks.get(row.number, ()))
        for seq, body in stored.items():
            if stream.bodies.get(seq, body) != body:
                self._problem(
                    f"{left.place}: chunk {seq} of {row.stream} was {stream.bodies[seq]}, is stored as {body}"
                )
        missing = sorted(stream.live - set(stored))
        if missing:
            self._problem(f"{left.place}: chunks {missing} of {row.stream} were sent, and are not stored")
        if stream.bodies and max(row.next_seq, max(stored, default=-1) + 1) <= max(stream.bodies):
            self._problem(f"{left.place}: {row.stream} has streamed {max(stream.bodies)}, and goes on before that")

    def _check_answer(self, left: Left, row: TurnRow) -> None:
        """What was used and what was said is what the conversation has."""
        if left.place in self._ever["cleared"]:
            return
        said = [one for id, one in left.model_said if id == row.message and one.kind == "response"]
        whole = [one for one in said if one.state != "interrupted"]
        used = json.loads(row.usage).get("made-up", {})
        tokens, asked = sum(one.usage.output_tokens for one in whole), self._asks[left.place, row.id]
        is_more = requests_of(row) > asked and not self._is_shortened(left.place)  # there, summaries are requests too
        if len(whole) != row.steps or used.get("output_tokens", 0) < tokens or is_more:
            times = f"{asked} requests, {len(whole)} answers with {tokens} tokens"
            self._problem(f"{left.place}: {row.id} has {times}, {row.steps} steps and used {row.usage}")
        shown = next((one for one in left.messages if one["id"] == row.message), {"parts": []})
        text = "".join(part.content for one in said for part in one.parts if part.part_kind == "text")
        if row.status in ENDED and row.status != "skipped" and "".join(_texts(shown)) != text:
            self._problem(f"{left.place}: {row.id} shows {_texts(shown)}, and the model said {text!r}")
        told = left.ends[row.id]
        most = 1 if left.place not in self._ever["gone on"] else 1 + row.continues
        if told > most or (row.status == "completed" and row.output is not None and not told):
            self._problem(f"{left.place}: {row.id} is {row.status}, and the agent was told {told} times")

    @staticmethod
    def _is_shortened(place: str) -> bool:
        return place.rpartition("/")[2].startswith("Short")

    def _check_promised(self, left: Left) -> None:
        place = left.place
        rows = {row.id: row for row in left.turns}
        said = [message["id"] for message in left.messages]
        for row in left.turns:
            said += [message["id"] for message in json.loads(row.new_messages)] if row.status == "queued" else []
        for turn, messages in self._acknowledged.get(place, {}).items():
            row = rows.get(turn)
            if row is None:
                self._problem(f"{place}: the turn {turn} was acknowledged, and is gone")
            else:
                self._check_kept(left, row, messages, said)
        for turn, shown in self._shown.get(place, {}).items():
            row = rows.get(turn)
            if row is None or row.stream != shown.stream:
                continue
            if row.status not in OUTCOMES[shown.outcome]:
                self._problem(f"{place}: {turn} ended as {shown.outcome}, and is {row.status}")
            stored = next((one for one in left.messages if one["id"] == row.message), None)
            if shown.message is None or row.status not in ENDED or _is_open(shown.message):
                continue
            if stored is None or stored["parts"] != shown.message["parts"]:
                self._problem(f"{place}: {turn} was shown as {shown.message}, and is stored as {stored}")

    def _check_kept(self, left: Left, row: TurnRow, messages: list[str], said: list[str]) -> None:
        dropped = row.status == "cancelled" or (row.status == "skipped" and _policy(left.place) == "Dropped")
        others = [one for one in left.turns if one.number > row.number and one.status == "cancelled"]
        if dropped or (row.status == "skipped" and others):
            return
        for message in messages:
            if said.count(message) != 1:
                times = said.count(message)
                self._problem(f"{left.place}: {message} of {row.id} ({row.status}) is there {times} times")

    def _check_tools(self, left: Left) -> None:
        for call in left.calls:
            if call.status in ("done", "failed"):
                self._stored[call.id] = json.loads(call.result or "null") if call.status == "done" else call.error
        for key, value in left.returned().items():
            for known in (self._stored, self._heard):
                if known.get(key, value) != value:
                    self._problem(f"{left.place}: {key} returned {known[key]!r}, and the model is told {value!r}")
            is_value = isinstance(value, str) and key in value.split(" ") and "poor" not in value
            if is_value and value not in self._values[key]:
                self._problem(f"{left.place}: the model is told {value!r}, and {key} never returned that")
            self._stored.setdefault(key, value)
        for key, count in left.runs.items():
            if count > len(self._begun[key]):
                self._problem(f"{left.place}: {key} left its mark {count} times, and ran {len(self._begun[key])} times")

    def _check_end(self, left: Left) -> None:
        place = left.place
        for row in left.turns:
            if row.is_open:
                self._problem(f"{place}: {row.id} is still {row.status}")
        if left.calls or left.fibers or left.begins:
            self._problem(f"{place}: {left.calls}, {left.fibers} and {left.begins} calls are left over")
        chunks = [number for number in left.chunks if number != max((row.number for row in left.turns), default=0)]
        failed = [row.number for row in left.turns if row.status == "failed"]
        if set(chunks) - set(failed):
            self._problem(f"{place}: the chunks of the turns {chunks} are left over")


def _texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


def _is_refusal(frame: dict[str, Any]) -> bool:
    """Return whether a request without a message was refused: there was nothing to answer, or a question is open."""
    return frame.get("error", False) and frame["body"].startswith(REFUSALS)


def _is_open(message: dict[str, Any]) -> bool:
    return any(part.get("state") in UNFINISHED for part in message["parts"])


def _policy(place: str) -> str:
    return place.rpartition("/")[2].partition(":")[0]


READERS: dict[str, Any] = {
    "o": Model._opened,
    "f": Model._frame,
    "s": Model._said,
    "d": Model._returned,
    "r": Model._answers_for,
    "R": Model._is_answered,
    "c": Model._cancels,
    "n": Model._clears,
    "N": Model._cleared,
    "g": Model._goes_on,
    "q": Model._asked,
    "t": Model._begins,
    "z": Model._ends,
    "e": Model._error,
}
