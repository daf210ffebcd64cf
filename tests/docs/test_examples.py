"""The examples run, twice over the same data, and say what the documentation says they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

SAID: dict[str, tuple[list[str], list[str]]] = {
    "ag_ui.py": (
        ['asked: Allow pay({"euros":3})?', "result: The bread is paid.", "the same run again: The bread is paid."],
        ["result: The bread is paid.", "the same run again: The bread is paid."],
    ),
    "album.py": (
        ["A red dot.", "sent: /agents/album/ann/files/6b7fa434f92a8b80"],
        ["A red dot.", "drawn: /agents/album/ann/files/6b7fa434f92a8b80"],
    ),
    "analyst.py": (
        [
            "{'rye': 19, 'wheat': 30, 'oat': 4}",
            "=> 'wheat'",
            "Not allowed here (line 1)",
            "1 calls: May: 2 sales of rye",
        ],
        ["=> 'wheat'", "Not allowed here (line 1)", "closed after 1 calls: May: 2 sales of rye"],
    ),
    "auction.py": (
        [
            "lots in spring: 2",
            "ann says: What a chair!",
            "chair: 10 by ann",
            "ann sees: 10 going twice",
            "refused: a client without a name",
        ],
        ["lots in spring: 2", "refused: Connection is readonly", "chair: 20 by ann", "ann sees: 20 going twice"],
    ),
    "bakery.py": (
        [
            "completed, 2 steps: There are 12 loaves",
            "the baker is asked: sell",
            "The baker says: 3 loaves",
            "Come again!",
        ],
        [
            "completed, 2 steps: There are 9 loaves",
            "the baker is asked: sell",
            "The baker says: 3 loaves",
            "Come again!",
        ],
    ),
    "bank.py": (
        ["a deposit: 500", "the same error is a NotEnough: True", "after spend_carelessly: -600", "children: ['ada']"],
        ["a deposit: 800", "the same error is a NotEnough: True", "after spend_carelessly: -300", "children: ['ada']"],
    ),
    "blocking.py": (
        ["other tasks ran during it: True", "off the loop: 2000000", "on the loop: A statement exceeded sql_timeout"],
        ["other tasks ran during it: True", "off the loop: 2000000"],
    ),
    "booking.py": (
        ["look up Oslo\npay 90\npay 90\n90 euros are paid.\nlast stage: paying"],
        ["90 euros are paid.\nlast stage: paying"],
    ),
    "budgets.py": (
        [
            "answer: Hills.\nanswer: Hills.\nfailed over_limit - Expedition:north cannot call scripted: the request",
            "and of Limits(tokens=400) for Expedition:north/Scout:",
            "1 model of its own, $0.00",
            "'Scout: 5 x scripted'",
            "of the tokens are used, until Monday.",
            "of Limits(tokens=Per('week', 1000, warn_at=0.5)) for Household:home and all agents under it",
            "waiting over_limit\nOffice:berlin and all agents under it have reached their limit of $0.01 per month",
            "more in this month?\nanswer: The room is booked.",
        ],
        ["failed over_limit - Expedition:north cannot call scripted", "1 model of its own, $0.00"],
    ),
    "compatible_model.py": (
        ["completed: You asked small-model: Are you there?"],
        ["completed: You asked small-model: Are you there?"],
    ),
    "compare.py": (
        [
            "2 of 2 agents differ\nonly in the second: Course:cakes\nMenu state changed /title\n",
            "    The menu of monday -> The menu of tuesday\nCourse:soups table changed",
            "{'cents': 500} -> {'cents': 550}\n",
            "the same agent: no differences",
        ],
        ["2 of 2 agents differ\nonly in the second: Course:cakes", "the same agent: no differences"],
    ),
    "front_desk.py": (
        ['to approve: book {"nights":2}', "Room 12 is yours for 2 nights.", "response.completed"],
        ['to approve: book {"nights":2}', "Room 12 is yours for 2 nights.", "response.completed"],
    ),
    "counter.py": (["count 2, lines in the log 1"], ["count 4, lines in the log 2"]),
    "complaints.py": (
        ["approve? refund {'number': 17, 'euros': 25}\nYou get 25 euros for the vase.\nYou are welcome."],
        ["You are welcome.\nYou are welcome."],
    ),
    "continued.py": (["It was order 17."], ["It was order 17."]),
    "digest.py": (
        ["fetch Oaks\nfetch Elms\nsent: Oaks grow. Elms grow."],
        ["sent: Oaks grow. Elms grow."],
    ),
    "editors.py": (
        [
            "  ann has read 3 books",
            "printed: ['Bridges, with numbers.']",
            "'delivered': 'joined'",
            "user: [The task of your child ann was completed: Bridges, with numbers.]",
            "'result': 'One mistake.'",
            "'status': 'terminated', 'was_running': False",
            "assistant: It can be printed.",
        ],
        ["printed: ['Bridges, with numbers.']", "assistant: It can be printed."],
    ),
    "errands.py": (
        [
            "milk, here you are\nfailed: the moon",
            "['bread, here you are', 'salt, here you are']",
            "order 7 ran once: True",
            "  ink: no longer needed",
            "paper: paper, here you are",
            "on the shelf: ['paper, here you are']",
            "cancelled: ['a piano', 'ink']",
            "  assistant: The tea is here.",
        ],
        ["order 7 ran once: True", "on the shelf: ['paper, here you are', 'paper", "  assistant: The tea is here."],
    ),
    "essays.py": (
        ["draft: All about oaks.\ndraft: All about oaks. Shorter.\ndone: All about oaks. Shorter."],
        ["done: All about oaks. Shorter."],
    ),
    "files.py": (
        ["stored: ['squares.csv, text/csv, 294264 bytes']", "lines: 20000"],
        ["stored: ['squares.csv, text/csv, 294264 bytes']", "lines: 20000"],
    ),
    "mcp_tools.py": (
        [
            "100%: measured side 4",
            "survey: {'place': 'the yard', 'meters': 48}",
            'asked: Clerk wants to call order with {"what":"a desk"}. Allow it?',
            "order: The desk will come.",
            "ink: {'result': 3}",
        ],
        ["survey: {'place': 'the yard', 'meters': 48}", "order: The desk will come."],
    ),
    "reader.py": (
        [
            "library_search: at once\nlibrary_lend: a person must allow it\nOaks, by Ann Oak: 1 copy",
            "May library_lend be called with {'title': 'Trees'}?\nIt is yours.",
        ],
        ["Oaks, by Ann Oak: 1 copy\nIt is yours."],
    ),
    "payments.py": (
        [
            "order 17 is payment 1\norder 17 is payment 1\ncents in the ledger: 500",
            "key_reused: The idempotency key '17' was used before with other arguments",
            "attempt 3: The bank does not respond.\nattempt 4: circuit_open, retry after 30 s",
        ],
        ["order 17 is payment 1\norder 17 is payment 1\ncents in the ledger: 500", "attempt 4: circuit_open"],
    ),
    "purchase.py": (
        ["Department → Buyer → Clerk asks: pay {'euros': 90", "90 euros for a printer are paid.", "We have one."],
        ["Department → Buyer → Clerk asks: pay {'euros': 90", "90 euros for a printer are paid.", "We have one."],
    ),
    "image.py": (["completed: I see 1 image, image/png."], ["completed: I see 1 image, image/png."]),
    "refunds.py": (
        ["choice: Order 17", "form: How much, and why?", "text: What do we", "written: Sorry about that!"],
        ["written: Sorry about that!"],
    ),
    "bureau.py": (
        ["TravelBureau http://localhost/a2a/travel-bureau", "COMPLETED It is done: a ticket to Oslo"],
        ["COMPLETED It is done: a ticket to Oslo"],
    ),
    "journey_desk.py": (
        ["May book be called with {'where': 'Oslo'}?", "completed: It is done: a ticket to Oslo"],
        ["completed: It is done: a ticket to Oslo"],
    ),
    "four_doors.py": (
        ["from_a_page: Noted.", "from_openai: Noted.", "from_mcp: Noted.", "agent: Noted.\nwishes in the hall: 2"],
        ["wishes in the hall: 4"],
    ),
    "tailor.py": (["Which color? green, gray\nThe coat will be green."], ["The coat will be green."]),
    "guide.py": (
        ["Rome. (4 messages)", "* Plan a trip to Oslo. (2 messages)", "in Oslo: A cabin", "in another branch: A hotel"],
        ["Rome. (4 messages)", "* Plan a trip to Oslo. (2 messages)", "in Oslo: A cabin", "in another branch: A hotel"],
    ),
    "inbox.py": (["notes in shopping: 1"], ["notes in shopping: 2"]),
    "kitchen.py": (
        [
            "Recipe(dish='Porridge'",
            "parrot: Hello there",
            "Fish soup",
            "Ten eggs",
            "messages: 60\n",
            "few: True",
            "host: completed, skipped, skipped, skipped, completed",
        ],
        [
            "Recipe(dish='Porridge'",
            "parrot: Hello there",
            "Fish soup",
            "Ten eggs",
            "messages: 120\n",
            "few: True",
            "host: completed, skipped, skipped, skipped, completed",
        ],
    ),
    "erasure.py": (
        ["notes: 1\nagents: 1 of a subtree: True\nnotes: 2\nabout ann: True remains: []"],
        ["notes: 1\nagents: 1 of a subtree: True\nnotes: 2\nabout ann: True remains: []"],
    ),
    "ledger.py": (
        ["visits: 1", "balance: 250", "after the restore: 250"],
        ["visits: 2", "balance: 500", "after the restore: 500"],
    ),
    "library.py": (
        [
            "to ann, Mill Lane 1: we miss Walden",
            "dead letters: ['send after 3 attempts: ",
            "counting L to Z",
            "books: 1200",
        ],
        ["to ann, Mill Lane 1: we miss Walden", "dead letters: []", "taking stock\nbooks: 1200"],
    ),
    "limits.py": (
        ["leaves: 1", "leaves: 3", "children: ", "depth: ", "payload_bytes: ", "database_bytes: "],
        ["leaves: 3", "children: ", "depth: ", "payload_bytes: ", "database_bytes: "],
    ),
    "mill.py": (["ground: fa105ad2e0de", "in one process: True"], ["ground: fa105ad2e0de"]),
    "members.py": (
        [
            "no token: 401",
            "ann: ann finds lines: 1",
            "eve: 403",
            "a helper: otto finds lines: 1",
            "ann, expired token: 401",
        ],
        [
            "no token: 401",
            "ann: ann finds lines: 2",
            "eve: 403",
            "a helper: otto finds lines: 2",
            "ann, expired token: 401",
        ],
    ),
    "studio_tab.py": (["degrees: 17"], ["degrees: 18"]),
    "support_desk.py": (
        ["asked: book_refund {'order': 'A-99', 'euros': 25}", "ann reads: The refund was handled: 25 euros for A-99"],
        ["asked: book_refund {'order': 'A-99', 'euros': 25}", "ann reads: The refund was handled: 25 euros for A-99"],
    ),
    "newsroom.py": (
        [
            "  … ann asks around",
            "  No. 1: ",
            "  decides",
            "'2 ben: aborted']",
            "staff: ['2 ben: aborted', '3 ann: idle']",
        ],
        ["  … ann asks around", "  No. 3: ", "  decides", "'3 ann: idle']", "staff: ['2 ben: aborted', '4 ann: idle']"],
    ),
    "observatory.py": (
        ["['Vega is white', 'Mars is red']", "'Mars (pinned), 1"],
        ["['Vega is white', 'Mars is red']", "'Mars (pinned), 1"],
    ),
    "orchestrator.py": (
        ["A river carries water from the mountains to the sea.", "(On rivers; asked so far: 1)", "questions so far: 3"],
        ["A river carries water from the mountains to the sea.", "(On rivers; asked so far: 2)", "questions so far: 6"],
    ),
    "paper.py": (
        ["checked. In 1987 we had a page on rivers.", "Archive, input 'rivers': completed", "The checker was."],
        ["checked. In 1987 we had a page on rivers.", "Archive, input 'rivers': completed", "The checker was."],
    ),
    "patterns.py": (
        ["legs of the chair by worker-0 (its task 1)", "polishing: 75 %", "by apprentice (its task 1)", "  READY"],
        ["legs of the chair by worker-0 (its task 2)", "polishing: 75 %", "by apprentice (its task 2)", "  READY"],
    ),
    "opinions.py": (
        ["2 of 3 perspectives.", "accountant could not answer: I cannot judge", "the engineer has spoken 2 times"],
        ["2 of 3 perspectives.", "accountant could not answer: I cannot judge", "the engineer has spoken 4 times"],
    ),
    "remote.py": (
        ["items: 1\n1. milk\n", "says: The minimum", "other: Items(names=('milk', 'eggs'))", "I am", "not paid yet"],
        ["items: 3\n1. milk\n", "says: The minimum", "other: Items(names=('milk', 'eggs'))", "I am", "total: 42"],
    ),
    "rate_limit.py": (
        ["work: completed, Hello.\nhome: failed, The limit is 3 messages a minute."],
        ["work: failed, The limit is 3 messages a minute."],
    ),
    "user_limits.py": (
        ["ann in games: an answer\nbob in work: an answer\nbob in home: an answer", "bob in games: for the user"],
        ["ann in games: an answer\nbob in work: for the user"],
    ),
    "reports.py": (
        ["greet: ", ", 00:00 UTC", "morning: ", "month: ", "greetings were stopped: True"],
        ["greet: ", ", 00:00 UTC", "morning: ", "month: ", "greetings were stopped: True"],
    ),
    "teams.py": (
        [
            "issue 1: ['THE ROOT', 'THE STEM', 'THE BRANCH', 'THE LEAF'], judged by 2",
            "the archive: found after 0.01 s",
            "reviewed: True",
            "stopped: Judge: quorum-with 1-",
            "stopped: Archive: lost-to run-",
        ],
        ["issue 1: ['THE ROOT', 'THE STEM', 'THE BRANCH', 'THE LEAF'], judged by 2", "stopped: Archive: lost-to run-"],
    ),
    "todo.py": (
        ["found:   Todo(title='untitled', tasks=())", "tries:   2"],
        ["found:   Todo(title='House and garden', tasks=('water", "refused: Three tasks are enough.", "tries:   4"],
    ),
    "todo_v2.py": (["untitled", "[ ] plant a tree"], ["[ ] plant a tree\n[ ] plant a tree"]),
    "traced.py": (
        ["invoke_agent Desk\n", "    invoke_agent Helper\n      chat\n", "schedule Desk.come_back, linked to 1"],
        ["invoke_agent Desk\n"],
    ),
    "trips.py": (
        ["a flight to Oslo", "  tomorrow: Oslo\nplanned: SW 12, Hotel Oslo, 30000 cents", "to ann: window or aisle?"],
        ["planning\nplanned: SW 12, Hotel Oslo, 30000 cents", "to ann: window or aisle?"],
    ),
    "watching.py": (
        [
            "Desk / Writer: started {'input': 'bread', 'order': 0}",
            "Desk / Writer: progress {",
            "Desk / Writer / Checker: milestone {'name': 'looked it up'",
            "and now the rest\n",
            "Desk / Writer: completed All about bread",
        ],
        ["Desk / Writer: started", "and now the rest\n", "Desk / Writer: completed All about bread"],
    ),
    "vault.py": (
        [
            "Emil",
            "{'notes': 1}",
            "refused (sql): no such table: customers",
            "refused (forbidden_sql): ATTACH and VACUUM are not allowed",
        ],
        [
            "Emil",
            "{'notes': 2}",
            "refused (sql): no such table: customers",
            "refused (forbidden_sql): ATTACH and VACUUM are not allowed",
        ],
    ),
    "webhook.py": (
        ["forged: 401\nreceived: 204\nrepeated: 204\npayments: 1"],
        ["forged: 401\nreceived: 204\nrepeated: 204\npayments: 1"],
    ),
    "weekend.py": (
        ["approve? book {'city': 'Porto', 'nights': 2}", "completed: Booked: 2 nights in Porto."],
        ["approve? book {'city': 'Porto', 'nights': 2}", "completed: Booked: 2 nights in Porto."],
    ),
    "print_shop.py": (
        ["completed: 3", "completed: 40", "failed: remote_refused: At most 100 pages."],
        ["completed: 3", "completed: 40", "failed: remote_refused: At most 100 pages."],
    ),
    "two_servers.py": (
        ["completed: Bridges, volume one. Bridges, volume two.", "Two of them.", "failed: remote_unauthorized: http"],
        ["completed: Bridges, volume one. Bridges, volume two.", "Two of them.", "failed: remote_unauthorized: http"],
    ),
    "relocation.py": (["/agents/trip/confirmed", "['Bern']"], ["It has moved already."]),
    "manuscript.py": (
        ["drafts: {'first draft'}", "last line: They met."],
        ["drafts: {'first draft'}", "last line: They met."],
    ),
    "what_if.py": (
        [
            "the original: ['Rome']",
            "the fork: ['Rome', 'Oslo']",
            "held in the fork: 1",
            "ann: ['Rome']",
            "moved: ['Bern']",
        ],
        ["the original: ['Rome', 'Rome']", "held in the fork: 1", "moved: ['Bern']"],
    ),
}
"""What each program prints among other things, when it is run first and when it is run again."""


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python with warnings as errors; return what it printed."""
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=patience(300), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def code_of(file: str) -> str:
    """Return an example without its docstring."""
    return re.sub(r'\A""".*?"""\n+', "", (EXAMPLES / file).read_text(), flags=re.DOTALL)


def test_every_example_is_run_here() -> None:
    programs = {file.name for file in EXAMPLES.glob("*.py") if not file.name.startswith("test_")}

    assert programs == {*SAID, "endless.py", "importing.py", "rivers.py", "river_evals.py"}


COSTLY = frozenset(
    {
        "blocking.py",
        "budgets.py",
        "compatible_model.py",
        "kitchen.py",
        "mcp_tools.py",
        "print_shop.py",
        "purchase.py",
        "rate_limit.py",
        "relocation.py",
        "studio_tab.py",
        "traced.py",
        "two_servers.py",
        "user_limits.py",
        "weekend.py",
    }
)
"""Programs that start servers or wait, about what other tests show too: they run in `just nightly`."""


def costly(name: str) -> Any:
    """Return the name of a program as a parameter."""
    return pytest.param(name, marks=pytest.mark.nightly) if name in COSTLY else name


@pytest.mark.promise("A-243", "A-244", "A-252")
@pytest.mark.slow
@pytest.mark.parametrize("name", [costly(name) for name in SAID])
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(EXAMPLES / name, cwd=tmp_path)

    assert [text for text in SAID[name][0] if text not in printed] == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_again_on_what_it_left(name: str, tmp_path: Path) -> None:
    _, again = SAID[name]
    run(EXAMPLES / name, cwd=tmp_path)

    if name == "inbox.py":  # as short as can be: it takes no folder
        printed = run(EXAMPLES / name, cwd=tmp_path)
    else:
        (left,) = tmp_path.iterdir()
        printed = run(EXAMPLES / name, left.rename(tmp_path / "elsewhere"), cwd=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert [text for text in again if text not in printed] == []


SHOWN = {
    "tutorial/state.md": ["todo.py", "todo.py", "todo_v2.py"],
    "tutorial/children.md": ["newsroom.py"],
    "tutorial/errors.md": ["bank.py"],
    "how-to/branches.md": ["guide.py"],
    "how-to/forks.md": ["what_if.py"],
    "tutorial/later.md": ["library.py"],
    "tutorial/chat.md": ["bakery.py"],
    "tutorial/agents-as-tools.md": ["paper.py"],
    "how-to/serve-clients.md": ["auction.py"],
}
"""The programs a page has its reader run, one after the other, and whose output it shows."""


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN)
def test_a_page_shows_what_its_programs_print(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text()
    shown = re.findall(r"^```text\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)

    printed = [run(EXAMPLES / name, cwd=tmp_path) for name in SHOWN[page]]

    assert [output for output in printed if output not in shown] == []


@pytest.mark.slow
def test_the_endless_example_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    counts: list[int] = []
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, EXAMPLES / "endless.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            counts += [int(program.stdout.readline().removeprefix("notes in diary: ")) for _ in range(3)]
            program.kill()

    assert counts[:3] == [1, 2, 3]
    assert counts[3:] == list(range(counts[3], counts[3] + 3))
    assert counts[3] >= 4


@pytest.mark.promise("B-19")
@pytest.mark.slow
def test_the_import_goes_on_where_it_was_killed_and_imports_every_line_once(tmp_path: Path) -> None:
    lines = 200_000
    command = [sys.executable, "-W", "error", EXAMPLES / "importing.py", tmp_path / "data", str(lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        reached = int(program.stdout.readline().removesuffix(" %\n"))
        program.kill()
    assert 10 <= reached < 100

    printed = run(*command[3:], cwd=tmp_path)

    (found,) = re.findall(r"found: ([\d,]+) bytes are imported already", printed)
    size = (tmp_path / "data/measured.csv").stat().st_size
    assert size * reached // 100 <= int(found.replace(",", "")) < size
    assert f"{lines:,} rows, {lines:,} different ones" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.nightly  # `.ci/run` runs them in the projects that are made of the templates
def test_the_tests_among_the_examples_pass() -> None:
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples", cwd=ROOT)


@pytest.mark.nightly  # `.ci/run` runs them in the projects that are made of the templates
def test_the_tests_among_the_examples_can_be_collected_and_run_beside_others() -> None:
    one_of_each = "test_notes_survive_a_crash or test_an_address_knows_its_root"
    others = "tests/unit/test_address.py"

    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples", others, "-k", one_of_each, cwd=ROOT)

    assert "\n2 passed" in said


def test_the_programs_in_the_readme_are_the_examples() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)

    assert blocks == [code_of("inbox.py"), code_of("test_inbox.py")]
