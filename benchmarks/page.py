"""The page "Measured": the last run as a table and a plot."""

from __future__ import annotations

import math
import re
from typing import Any

Line = dict[str, Any]

WIDTH, LEFT, ROW = 780, 420, 24
HEAD = """# Measured

What sapwood costs, beside the bare parts it is made of and beside the original, Cloudflare's Agents SDK on workerd.
Ours and the reference were run in turns in one run on one machine, and each figure is a median; with several workers
the best of the rounds, which need both cores for themselves. The machine was shared, so a ratio says more than a
figure. `just bench` measures again and writes this page; every line is in `benchmarks/last.jsonl`.

"""

LIMITS = """## What limits what

- **The slowest calls with a history** meet the thread that compresses, which has the interpreter then, after their
  commit was read from the write-ahead log once more. Where a call waits for the disk, most of that is hidden.
- **A call** is a task of its own, so that it can be aborted, cancelled and timed by itself. Awaiting the method
  directly would save most of it, and all three.
- **A durable write, one after the other**, waits for the disk, and crosses to the thread that waits for the disk and
  back, which costs about 25 µs here. The loop could wait for the disk itself and save that; then every other agent of
  the process would wait too, for as long as the disk likes. Writes that are in flight together share the wait.
- **A new sub-agent with data** is two new files, a database and its log, whose contents and names have to be on the
  disk before anybody is told. Creating files is most of it.
- **The first call to a sleeping agent** opens its database and its parents' and reads their logs. Its first write makes
  a log longer, and for that the file system commits its own journal.
- **A child among a million** is found by reading two or three pages that are not in SQLite's cache; among a thousand
  they are. That is about 4 µs.
- **A call over a socket** is the echo of a bare server, and a call: reading the frame, checking the arguments, a task,
  writing the answer. Three turns of the loop instead of one.
- **A call to come** is a row and its place in an index: most of `schedule()` is checking and packing the arguments. The
  indexes of the tree and of the node are told once before the commit, however many were written.
- **Calls that are due together** are each a task, a savepoint and a row that goes. So many begin in one turn of the
  loop, and then everybody else has a turn: more at once would fire no faster, and hold up the door.
- **A restart** reads the node's index, lists the folder of trees once, and opens those that are due. Each costs what
  opening a database costs.
- **A durable step** is one commit with one row; on disk it waits as any durable write does. What a commit of ours has
  beside a bare one is the count of its log frames, the check of every statement against what users may do, and the
  guard against statements that run too long: together as much as the row itself.
- **A schedule among a million** costs what it costs among none if it is due near others, as most are. Due at any time
  of a year, each one changes a page of the index of its own, and every changed page goes into the log whole.
- **A token of an answer** costs less than where Pydantic AI is used by itself, because it goes a shorter way: in an
  agent's stream each event takes four locks, and a turn of the event loop for each. We hear it where the model says it,
  and hand on only where parts begin and end. What we add is a row and a frame for all that came in 30 ms. With a model
  that speaks as fast as it is read these are dozens of tokens, so neither the row nor 20 watchers weigh much.
- **Tokens at 50 a second** come one or two at a time, so each row and frame is for one or two tokens: they cost a
  little more than the shorter way saves, in short answers with what it takes to begin and to end a turn. Each watcher
  more costs another frame each time, about 10 µs.
- **Many conversations on one core** wait for that core, and for nothing else: a token is late by the 30 ms for which it
  is gathered, and by what others of the process do meanwhile. The measured time counts from when the token was due, and
  turns end and begin all the while. Where other programs have the core for part of the time, as the note says, tokens
  are late by that too. A hundred at 50 tokens/s nearly fill the core of this machine, about half of it within Pydantic
  AI and the model that speaks, so the slightest wait adds up and the p99 is over the bar.
- **Reopening a long conversation** reads its messages as they are stored, as text, and sends them without looking into
  them. Copies of the whole text on its way into the socket are most of the rest.
- **The first answer in a long conversation** has to read what the model is to see, and check it: about 15 µs a message,
  with pauses for everybody else. Then Pydantic AI goes through all of it several times, in one go: `compact_above`
  keeps that short.
- **A run** is the turn of a sub-agent, and beside it: a row in the parent before the sub-agent wakes, a fiber that
  follows it, a row in the sub-agent, and its end in both.
- **A chunk of a run** is stored once, where it is said. Whoever watches the tree from above is told of it through the
  agent that said it, each reader by itself.
- **A replay** is one frame for each chunk, as clients expect it: making a frame and handing it to the server is most of
  it. Frames of one turn of the loop are written together under `sapwood serve`; other servers write each by itself.
- **A Stop** goes through all agents below it in memory, in one pass, and closes the connections to providers on its
  way; nothing waits and nothing is written in between. What it costs is the pass, the closing itself, and how long
  the processor is with others: one pass that took 90 ms had 38 ms of processor time, and 22 ms of the 90 went by in
  Python's garbage collection. Unwinding a thousand turns and writing down their ends takes seconds and comes after
  it. A connection that was used before and has not answered yet is not known: it closes as its turn unwinds.
- **A turn that Temporal drives** is a turn, one request of a worker for each step, and what any workflow costs: to be
  written down, and to wait twice until a worker is handed it. Whoever talks to the agent does not wait for the second
  time. A sub-agent is a workflow of its own, and the one above is told of it and woken after it.
- **A Stop under Temporal** does not go through Temporal: it is the same pass. The workflows learn of it after it.
- **A call to an agent of another worker** crosses twice from process to process, which alone is the bare exchange; the
  rest is Python on both sides: arguments are packed, checked and unpacked, the call is a task of its own that can be
  cancelled and timed, and what it returns passes the gate. It is packed once and written past the loop, so no turn of
  a loop is waited for that the bare exchange does not have, but the one in which the task begins.
- **Two workers beside one** share nothing but the machine. A client may be accepted by the worker that does not run its
  agent: then every message crosses to the other and back, which costs about a third of a call over a socket, and half
  of the clients are so. With durability `disk` part of the work is in threads that wait for the disk, and those run
  beside a single worker too.
- **A replicated commit** is on the disks of two of three servers, each of which waits for its own disk. Three servers
  and the node share the machine here; what a commit of ours has beside the bare message is SQLite's commit, reading
  its pages from the log of the database, and a digest over them.
- **Many agents that commit at once** share messages and the disks' waiting. A commit of ours takes three to four times
  the processor time in the node that the bare message takes there, and about the same in the three servers. All four
  processes share two cores here; where the servers have machines of their own was not measured.
- **A call to an agent on another node** is a request over NATS and its answer, each through at least one server. The
  rest is what a call to another worker has, too.
- **A hand-over** is mostly waiting for two answers of the log, one that the tree was released and one that it was
  taken, and reading what was written last. The tree itself was fetched before by the new owner, which had nothing of
  it, while the old one still ran it.
- **After the loss of a node** its lease has to be over beyond doubt: that is nearly all of the time. After the loss of
  the server that leads a part of the log, the others elect another one.
- **A tree that rests** is nothing but objects in the archive. To wake it takes several requests there, one after the
  other.
- **An open database** is mostly SQLite's: 32 KiB for the index of its log alone.
"""


def page(lines: list[Line]) -> str:
    """Return the page for these lines, the first of which tells about the machine."""
    about, *measured = lines
    shown = [line for line in measured if line["bar"] != "part"]
    text = HEAD
    text += f"Measured on {about['on']}: {about['machine']}, Python {about['python']}, SQLite {about['sqlite']}, "
    text += "uvloop.\n\n"
    text += "## Against the bars\n\n"
    text += "How far each figure is from what it may be. To the right of the line: better than asked.\n\n"
    text += plot(shown) + "\n\n" + table(shown)
    text += "\n" + LIMITS
    text += "\n## What a call pays for\n\n"
    text += "An in-tree call, built up part by part. The first three are what any task with copies costs.\n\n"
    text += parts(measured, "in-tree call: ")
    text += "\n## What a live agent weighs\n\n"
    text += parts(measured, "live agent, closed: ") + "\nWith its database open:\n\n"
    text += parts(measured, "live agent, open: ")
    return text


def table(lines: list[Line]) -> str:
    text = "| metric | ours | reference | ratio | bar | holds |\n|---|--:|--:|--:|---|---|\n"
    for line in lines:
        reference = figure(line["reference"], line["unit"]) if line["reference"] is not None else ""
        ratio = f"{line['ratio']:.2f}×" if line["ratio"] is not None else ""
        holds = "yes" if line["holds"] else "**no**"
        name = name_of(line) + (f" ({line['note']})" if line.get("note") else "")
        bar = line["bar"].replace(">=", "≥").replace("<=", "≤").replace("x", "×", 1)
        text += f"| {name} | {figure(line['ours'], line['unit'])} | {reference} | {ratio} | {bar} | {holds} |\n"
    return text


def parts(lines: list[Line], prefix: str) -> str:
    text = "| what | cost |\n|---|--:|\n"
    for line in lines:
        if line["name"].startswith(prefix):
            text += f"| {line['name'].removeprefix(prefix)} | {figure(line['ours'], line['unit'])} |\n"
    return text


def name_of(line: Line) -> str:
    """Return the metric with whom it is compared to; "as fast" is always said of the original."""
    return line["name"] + (", beside workerd" if line["bar"].endswith("as fast") else "")


def figure(value: float, unit: str) -> str:
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def headroom(line: Line) -> float | None:
    """Return how many times better than its bar a line is; below 1, how far it misses."""
    asked = re.search(r"([\d.]+)", line["bar"])
    if line["ratio"] is None or asked is None:
        return None
    if line["bar"].startswith(">="):
        return line["ratio"] / float(asked[1])
    if line["bar"].endswith("x"):
        return float(asked[1]) / line["ratio"]
    return 1 / line["ratio"] if line["ratio"] else None


def plot(lines: list[Line]) -> str:
    """Return a drawing of how far every line is from its bar, on a logarithmic scale."""
    known = [(line, room) for line in lines if (room := headroom(line)) is not None]
    height = ROW * len(known) + 30
    most = max(2.0, *(room for _, room in known))
    unit = (WIDTH - LEFT - 150) / math.log2(most)
    start = LEFT + 60
    drawn = [
        f'<svg viewBox="0 0 {WIDTH} {height}" style="max-width:100%;font:13px sans-serif" fill="currentColor">',
        "<title>How far each figure is from its bar</title>",
        f'<line x1="{start}" x2="{start}" y1="4" y2="{height - 22}" stroke="currentColor" opacity="0.5"/>',
        f'<text x="{start}" y="{height - 6}" text-anchor="middle" font-size="12">the bar</text>',
    ]
    for number, (line, room) in enumerate(known):
        y = 8 + ROW * number
        length = max(min(math.log2(room) * unit, WIDTH), -55.0)
        x, color = (start, "#2e7d32") if room >= 1 else (start + length, "#c62828")
        name = name_of(line).replace("&", "&amp;")
        drawn += [
            f'<text x="{LEFT - 4}" y="{y + 13}" text-anchor="end" font-size="11">{name}</text>',
            f'<rect x="{x:.1f}" y="{y + 2}" width="{max(abs(length), 1.5):.1f}" height="14" rx="2" fill="{color}"/>',
            f'<text x="{start + max(length, 0) + 6:.1f}" y="{y + 13}" font-size="12">{room:.2g}×</text>',
        ]
    return "\n".join([*drawn, "</svg>"])
