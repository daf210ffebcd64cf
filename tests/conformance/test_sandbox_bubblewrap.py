"""Code behind Bubblewrap: the whole of Python with its packages, and as little to reach as in Monty."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

from sapwood.errors import StoredDataError, UsageError
from sapwood.sandbox import Answer, Bubblewrap, CodeLimits, CodeResult, Paused, Task, run_code
from sapwood.sandbox.seccomp import filter_for

QUICK = CodeLimits(seconds=1, depth=100, output_bytes=2000)
BUSY = CodeLimits(seconds=20, depth=100, output_bytes=2000)
"""For what meets another limit first, also on a machine that has a lot else to do."""


async def double(number: int) -> int:
    if number < 0:
        raise ValueError("not below nothing")
    return number * 2


def wrapped(code: str, limits: CodeLimits = QUICK, **options: Any) -> Any:
    return run_code(code, {"double": double}, limits=limits, executor=Bubblewrap(), **options)


@pytest.mark.needs("bubblewrap")
async def test_code_may_use_the_packages_of_its_python_and_all_of_the_language() -> None:
    code = (
        "import msgspec\n"
        "def numbers():\n  yield from range(3)\n"
        "print('doubling')\n"
        "doubled = [double(number) for number in numbers()]\n"
        "print('doubled')\n"
        "msgspec.json.encode(doubled + data).decode()"
    )

    result = await wrapped(code, inputs={"data": [7]})

    assert result == CodeResult("[0,2,4,7]", "doubling\ndoubled\n", None, 3)


MOUNT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)
raise OSError(ctypes.get_errno(), "refused")
"""
DEAF = """
import signal
for one in (2, 14, 15):
    signal.signal(one, signal.SIG_IGN)
while True:
    try:
        while True: pass
    except BaseException: pass
"""
VALUES = {
    "{1: {2}}": {"1": [2]},
    "float('nan')": "nan",
    "b'x'": "b'x'",
    "class A:\n  def __repr__(self): return 'an A'\nA()": "an A",
    "import datetime\ndatetime.date(2026, 5, 1)": "2026-05-01",
    "x = 1": None,
}


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
async def test_a_value_is_plain_data_or_described() -> None:
    assert [(await wrapped(code)).value for code in VALUES] == list(VALUES.values())


ESCAPES = {
    "read a file of the host": (f"open({str(Path(__file__).resolve())!r})", "raised", "No such file"),
    "read what users there are": ("open('/etc/passwd')", "raised", "No such file"),
    "write to the system": ("open('/usr/here', 'w')", "forbidden", "Read-only file system"),
    "write beside it": ("open('/here', 'w')", "forbidden", "Read-only file system"),
    "reach the network": ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "forbidden", "not permitted"),
    "have a shell": ("import subprocess\nsubprocess.run(['true'])", "forbidden", "not permitted"),
    "be many": ("import os\nwhile True: os.fork()", "forbidden", "not permitted"),
    "see other processes": (f"import os\nos.kill({os.getpid()}, 0)", "raised", "No such process"),
    "mount something": (MOUNT, "forbidden", "refused"),
    "never end": ("while True: pass", "limit", "The code ran longer than 1 seconds."),
    "never end, deaf": (DEAF, "limit", "The code ran longer than 1 seconds."),
    "take all memory": ("a = []\nwhile True: a.append('x' * 100_000)", "limit", "bytes of memory"),
    "fill the disk": ("with open('/tmp/x', 'w') as f:\n  while True: f.write('x' * 10**6)", "limit", "bytes of memory"),
    "recurse for ever": ("def f(): return f()\nf()", "limit", "exceeded the recursion depth of 100"),
    "flood the reader": ("print('x' * 100_000)", "limit", "The code printed more than 2000 bytes."),
    "return too much": ("'x' * 100_000", "limit", "The code returned more than 2000 bytes."),
    "call what was not given": ("delete(1)", "unknown", "name 'delete' is not defined"),
    "pass what does not fit": ("double('1')", "binding", "double() argument 'number' does not fit"),
    "pass what is no data": ("double(open)", "raised", "expected plain data, got a builtin_function_or_method"),
    "pass no number": ("double(float('nan'))", "raised", "not JSON compliant"),
    "leave without a word": ("import os\nos._exit(0)", "crashed", "exited without a result"),
}


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("way", ESCAPES)
async def test_an_escape_is_refused_and_the_refusal_says_why(way: str) -> None:
    code, kind, says = ESCAPES[way]

    failure = (await wrapped(code, QUICK if "1 seconds" in says else BUSY)).failure

    assert failure is not None
    assert (failure.kind, says in failure.message) == (kind, True), failure


@pytest.mark.needs("bubblewrap")
async def test_it_has_a_folder_of_its_own_that_nobody_has_after_it() -> None:
    write = "with open('/tmp/note', 'w') as file: file.write('kept')\nopen('/tmp/note').read()"

    assert (await wrapped(write)).value == "kept"
    assert (await wrapped("import os\nos.path.exists('/tmp/note')")).value is False


@pytest.mark.needs("bubblewrap")
async def test_it_sees_no_variable_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "s3cr3t")

    assert "A_SECRET" not in (await wrapped("import os\ndict(os.environ)")).value


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = [1]\nx.push(2)", "The code raised (line 2): AttributeError: 'list' object has no attribute 'push'"),
        ("def f(a):\n return a.b\nf(1)", "The code raised (line 2): AttributeError: 'int' object has no attribute 'b'"),
        ("x = 1\nassert x == 2", "The code raised (line 2): AssertionError"),
    ],
)
async def test_a_mistake_is_told_by_its_type_its_words_and_its_line(code: str, said: str) -> None:
    assert str(await wrapped(code)) == said


@pytest.mark.needs("bubblewrap")
async def test_what_a_function_raises_is_raised_in_the_code() -> None:
    caught = await wrapped("try:\n  double(-1)\nexcept ValueError as error:\n  print(error)")
    uncaught = await wrapped("double(-1)")

    assert str(caught) == "not below nothing\n"
    assert (
        str(uncaught)
        == "A function that the code called failed (line 1): double() raised ValueError: not below nothing"
    )


@pytest.mark.needs("bubblewrap")
async def test_code_that_does_something_else_when_it_goes_on_is_stopped() -> None:
    """It runs again from its start with the answers there are; they may not be given to other questions."""
    code = "import random\ndouble(random.SystemRandom().randrange(10**9))\ndouble(1)"

    result = await wrapped(code)

    assert result.failure is not None
    assert "The code made different calls when it was run again" in result.failure.message


@pytest.mark.needs("bubblewrap")
async def test_a_set_has_the_same_order_each_time_the_code_runs() -> None:
    result = await wrapped("[double(len(one)) for one in {'a', 'bb', 'ccc', 'dddd', 'eeeee'}]")

    assert sorted(result.value) == [2, 4, 6, 8, 10]


@pytest.mark.needs("bubblewrap")
async def test_a_python_may_be_reached_by_links(tmp_path: Path) -> None:
    """As environments are made: a link to a link to the Python, each in another folder."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there/python").symlink_to(Path(sys.base_prefix) / "bin/python3")
    (tmp_path / "here").symlink_to(tmp_path / "there/python")

    assert (await run_code("6 * 7", executor=Bubblewrap(python=tmp_path / "here"))).value == 42


@pytest.mark.needs("bubblewrap")
async def test_what_it_forges_as_a_call_is_checked_like_one() -> None:
    """The code can write to its own pipe what it likes; it is believed no more than it is."""
    forged = '\\n{"call": ["delete", ["alice"], {}], "printed": ""}\\n'
    code = (
        f"import os\nfor one in range(3, 1000):\n  try: os.write(one, b'{forged}')\n  except OSError: pass\nos._exit(0)"
    )

    result = await wrapped(code)

    assert result.failure is not None
    assert (result.failure.message, result.calls) == ("NameError: name 'delete' is not defined", 0)


@pytest.mark.needs("bubblewrap")
async def test_a_snapshot_that_is_none_is_said_to_be() -> None:
    one, task = Bubblewrap(), Task("double(1)", frozenset({"double"}))
    paused = await one.start(task)

    assert isinstance(paused, Paused)
    for damaged in (b"", b"[]", paused.snapshot[:-2]):
        with pytest.raises(StoredDataError):
            await one.resume(task, damaged, Answer(2))


@pytest.mark.needs("bubblewrap")
async def test_whoever_waits_no_longer_ends_the_code() -> None:
    begun = asyncio.Event()
    code = "begin()\nwhile True: pass"
    bindings = {"begin": begun.set}
    running = asyncio.create_task(run_code(code, bindings, limits=CodeLimits(seconds=60), executor=Bubblewrap()))
    await begun.wait()

    running.cancel()

    async with asyncio.timeout(patience()):
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_without_bubblewrap_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match="apt-get install bubblewrap"):
        await wrapped("1")


async def test_where_namespaces_are_not_allowed_it_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Bubblewrap itself says it in such a container."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(UsageError, match=r"cannot run code on this machine: bwrap: No permissions.*allow namespaces"):
        await wrapped("1")


async def test_a_python_that_does_not_run_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match="expected a Python executable"):
        await run_code("1", executor=Bubblewrap(python=tmp_path / "python"))


def test_every_jump_of_the_filter_lands_in_it() -> None:
    """The kernel refuses one that does not; that for another machine is never shown to this one's."""
    for machine in ("x86_64", "aarch64"):
        program = filter_for(machine)
        assert program is not None
        lines = [program[at : at + 8] for at in range(0, len(program), 8)]
        for at, line in enumerate(lines):
            jumps = line[2], line[3]
            assert at + 1 + max(jumps) < len(lines) or line[0] == 0x06
    assert filter_for("abacus") is None
