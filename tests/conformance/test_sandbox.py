"""Code that a model wrote: it reaches the functions it is given and nothing else, and what goes wrong can be read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.conformance.worlds import Run
from tests.machine import patience

from sapwood import Agent, Refused
from sapwood.errors import UsageError
from sapwood.sandbox import CodeLimits, CodeResult, Monty, run_code

QUICK = CodeLimits(seconds=0.3, memory_bytes=16 * 1024 * 1024, depth=100, calls=5, output_bytes=2000)
"""For code that never ends."""
STRICT = replace(QUICK, seconds=20)
"""For code that ends, however busy the machine is."""


@dataclass
class Customers:
    """What the code of these tests may reach: one function."""

    asked: list[Any] = field(default_factory=list[Any])

    async def find(self, name: str, limit: int = 10) -> list[dict[str, Any]]:
        """Return customers by name."""
        assert type(name) is str
        assert type(limit) is int
        self.asked.append(name)
        if name == "nobody":
            raise LookupError("There is no such customer.")
        return [{"name": name, "city": "Trieste"}][:limit]

    def __call__(self, code: str, **options: Any) -> Any:
        return run_code(code, {"find": self.find}, limits=options.pop("limits", STRICT), **options)


@pytest.fixture
def run_with() -> Customers:
    """Return what runs code with one binding, `find`, and knows what it was asked."""
    return Customers()


ESCAPES: dict[str, list[tuple[str, str, str]]] = {
    "import what reaches the system": [
        ("import subprocess\nsubprocess.run(['id'])", "unknown", "No module named 'subprocess'"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 80))", "unknown", "No module named 'socket'"),
        ("import ctypes", "unknown", "No module named 'ctypes'"),
        ("import os\nos.system('id')", "raised", "no attribute 'system'"),
        ("import os\nos.listdir('/')", "forbidden", "Permission denied"),
        ("from sapwood import App", "unknown", "No module named 'sapwood'"),
    ],
    "open files": [
        ("open('/etc/passwd').read()", "forbidden", "Permission denied: '/etc/passwd'"),
        ("with open('/tmp/here', 'w') as file: file.write('x')", "forbidden", "Permission denied: '/tmp/here'"),
        ("import pathlib\npathlib.Path('/etc/passwd').read_text()", "forbidden", "Permission denied"),
    ],
    "make code of text": [
        ("__import__('os').system('id')", "unknown", "name '__import__' is not defined"),
        ("compile('1', 'x', 'eval')", "unknown", "name 'compile' is not defined"),
        ("eval('__import__(\"os\")')", "unknown", "name '__import__' is not defined"),
        ("exec('import socket')", "unknown", "No module named 'socket'"),
    ],
    "walk from a value to everything": [
        ("().__class__.__bases__[0].__subclasses__()", "raised", "no attribute '__class__'"),
        ("find.__globals__['sys']", "raised", "no attribute '__globals__'"),
        ("getattr(find, '__self__')", "raised", "no attribute '__self__'"),
        ("'{0.__class__}'.format(find)", "raised", "__class__"),
        ("__builtins__", "unknown", "name '__builtins__' is not defined"),
        ("globals()", "unknown", "name 'globals' is not defined"),
    ],
    "never end": [
        ("while True: pass", "limit", "The code ran longer than 0.3 seconds."),
        (
            "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
            "limit",
            "The code ran longer than",
        ),
    ],
    "take all memory": [
        ("a = []\nwhile True: a.append('x' * 100_000)", "limit", "The code used more than 16777216 bytes of memory."),
        ("'x' * 10**12", "limit", "The code used more than 16777216 bytes of memory."),
        ("2 ** (10 ** 10)", "limit", "The code used more than 16777216 bytes of memory."),
    ],
    "recurse for ever": [
        ("def f(): return f()\nf()", "limit", "The code exceeded the recursion depth of 100."),
        ("def f():\n  try: f()\n  except BaseException: f()\nf()", "limit", "The code ran longer than 0.3 seconds."),
    ],
    "flood the reader": [
        ("print('x' * 100_000)", "limit", "The code printed more than 2000 bytes."),
        ("while True: print('x')", "limit", "The code printed more than 2000 bytes."),
        ("'x' * 100_000", "limit", "The code returned more than 2000 bytes."),
    ],
    "call what was not given": [
        ("delete('alice')", "unknown", "name 'delete' is not defined"),
        ("find.delete('alice')", "raised", "no attribute 'delete'"),
        ("find = delete\nfind('alice')", "unknown", "name 'delete' is not defined"),
        ("eval('delete(1)')", "unknown", "name 'delete' is not defined"),
        ("for _ in range(6): find('alice')", "limit", "The code may call functions 5 times."),
    ],
    "pass what it must not, or answer itself": [
        ("find(open)", "binding", "find() argument 'name'"),
        ("class Evil:\n  name = 'x'\nfind(Evil())", "binding", "find() argument 'name'"),
        ("find({'name': 'x'})", "binding", "Expected `str`, got `object`"),
        ("find('x', limit=10**400)", "binding", "find() argument 'limit'"),
        ("find('x', 1, 2, 3)", "binding", "too many positional arguments"),
        ("find('x', evil=1)", "binding", "unexpected keyword argument 'evil'"),
        ("x = []\nfor _ in range(100_000): x = [x]\nfind(x)", "binding", "find() argument 'name'"),
        ("find.resume({'return_value': 1})", "raised", "no attribute 'resume'"),
    ],
}
"""Ten ways out, in variations: the code, what kind of refusal it meets, and what that says."""


@pytest.mark.promise("A-248")
@pytest.mark.slow
@pytest.mark.parametrize("way", ESCAPES)
async def test_an_escape_is_refused_and_the_refusal_says_why(run_with: Customers, way: str) -> None:
    for code, kind, says in ESCAPES[way]:
        is_endless = code.startswith("while True") or "The code ran longer" in says
        result = await run_with(code, limits=QUICK if is_endless else STRICT)

        assert result.failure is not None, code
        assert (result.failure.kind, says in result.failure.message) == (kind, True), (code, result.failure)
    assert set(run_with.asked) <= {"alice"}  # and the one function was asked nothing that does not fit it


async def test_code_calls_what_it_is_given_and_its_last_expression_is_its_value(run_with: Customers) -> None:
    result = await run_with(
        "names = ['alice', 'bob']\n"
        "found = [find(name)[0] for name in names]\n"
        "print(f'{len(found)} found')\n"
        "{one['name']: one['city'] for one in found}"
    )

    assert result == CodeResult({"alice": "Trieste", "bob": "Trieste"}, "2 found\n", None, 2)
    assert str(result) == "2 found\n=> {'alice': 'Trieste', 'bob': 'Trieste'}"
    assert run_with.asked == ["alice", "bob"]


@pytest.mark.parametrize(
    "code",
    [
        "find('alice')[0]['city']",
        "(await find('alice'))[0]['city']",
        "async def city(name): return (await find(name))[0]['city']\nawait city('alice')",
        "async def city(name): return (await find(name))[0]['city']\n"  # noqa: ISC004 - one of them
        "import asyncio\n(await asyncio.gather(city('bob'), city('alice')))[1]",
        "f = find\nf(name='alice')[0]['city']",
        "eval(\"find('alice')\")[0]['city']",
    ],
)
async def test_a_function_is_called_the_way_the_model_writes_it(run_with: Customers, code: str) -> None:
    assert (await run_with(code)).value == "Trieste"


async def test_what_a_function_raises_is_raised_in_the_code_which_may_catch_it(run_with: Customers) -> None:
    caught = await run_with("try:\n  find('nobody')\nexcept LookupError as error:\n  print(error)\n'went on'")
    uncaught = await run_with("x = 1\nfind('nobody')")

    assert (caught.value, caught.printed) == ("went on", "There is no such customer.\n")
    assert str(uncaught) == (
        "A function that the code called failed (line 2): find() raised LookupError: There is no such customer."
    )
    assert uncaught.failure is not None
    assert (uncaught.failure.kind, uncaught.failure.line) == ("binding", 2)


@pytest.mark.parametrize(
    ("error", "caught", "said"),
    [
        (ConnectionResetError("gone"), "OSError", "ConnectionResetError: gone"),
        (KeyError("key"), "KeyError", "KeyError: key"),
        (EOFError("over"), "RuntimeError", "EOFError: over"),
        (Refused("not you"), "RuntimeError", "RuntimeError: Refused: not you"),
        (type("Odd", (ValueError,), {})("so"), "ValueError", "ValueError: Odd: so"),
        (NameError("a mistake of the host"), "NameError", "NameError: a mistake of the host"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
async def test_any_error_of_a_function_becomes_one_that_code_can_catch(
    error: Exception, caught: str, said: str
) -> None:
    def fail() -> None:
        raise error

    result = await run_code(f"try:\n  fail()\nexcept {caught}:\n  print('caught')\nfail()", {"fail": fail})

    assert result.printed == "caught\n"
    assert result.failure is not None
    assert (result.failure.kind, result.failure.message) == ("binding", f"fail() raised {said}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\nx +", "This Python cannot run here (line 2): Expected an expression"),
        ("def f():\n  yield 1", "This Python cannot run here (line 2): NotImplementedError: The monty syntax"),
        ("x = 1\nnope", "Unknown name or module (line 2): NameError: name 'nope' is not defined"),
        ("def f():\n  return 1 / 0\nf()", "The code raised (line 2): ZeroDivisionError: division by zero"),
        ("x = [1]\nx.push(2)", "The code raised (line 2): AttributeError: 'list' object has no attribute 'push'"),
        ("print('so far')\nraise ValueError('bad')", "so far\nThe code raised (line 2): ValueError: bad"),
    ],
)
async def test_what_goes_wrong_is_a_sentence_with_a_line(run_with: Customers, code: str, said: str) -> None:
    assert str(await run_with(code)).startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "'\ud800'",
        "(" * 100_000,
        "-" * 100_000 + "1",
        "a" + ".a" * 100_000,
        "lambda: " * 5000 + "1",
        "x = 1\n" * 300_000,
    ],
    ids=["half a character", "parentheses", "signs", "attributes", "functions", "lines"],
)
async def test_text_that_is_meant_to_break_the_reader_is_refused_as_well(run_with: Customers, code: str) -> None:
    failure = (await run_with(code, limits=CodeLimits(seconds=5))).failure

    assert failure is not None
    assert failure.kind in ("syntax", "limit")


async def test_inputs_are_variables_and_only_copies_of_them(run_with: Customers) -> None:
    orders = [{"total": 3}, {"total": 4}]

    result = await run_with(
        "orders.append({'total': 5})\nsum(one['total'] for one in orders)", inputs={"orders": orders}
    )

    assert result.value == 12
    assert len(orders) == 2


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("(1, {2})", [1, [2]]),
        ("x = 1", None),
        ("class A: pass\nA()", "MontyClassProxy(name='A', attributes={})"),
        ("find", "find"),
        ("10 ** 5000", "a value of type int"),
    ],
)
async def test_a_value_is_plain_data_or_described(run_with: Customers, code: str, value: Any) -> None:
    assert (await run_with(code)).value == value


@pytest.mark.slow
async def test_code_may_run_for_its_seconds_in_all_however_often_it_calls(run_with: Customers) -> None:
    """Each call goes on in another process; the clock of the code does not begin anew."""
    burn = "for _ in range(1_000_000): pass\n"

    result = await run_with(f"while True:\n    find('a')\n    {burn}", limits=CodeLimits(seconds=0.4))

    assert result.failure is not None
    assert (result.failure.kind, result.calls > 0) == ("limit", True)


async def test_the_time_that_functions_take_is_not_the_code_s(run_with: Customers) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.4)
        return "at last"

    assert (await run_code("slow()", {"slow": slow}, limits=QUICK)).value == "at last"


async def test_code_cannot_hold_up_the_process_by_sleeping(run_with: Customers) -> None:
    sleep = "time.sleep(3600)\nawait asyncio.sleep(3600)\n"

    result = await run_with(f"import time, asyncio\n{sleep}find('alice')\n{sleep}'awake'")

    assert result.value == "awake"


@pytest.mark.slow
async def test_many_at_once_wait_for_each_other_but_not_for_functions() -> None:
    """With one process for all: code whose function has more code run would wait for itself, if it held one."""
    one = Monty(processes=1)

    async def deeper(levels: int) -> int:
        if levels == 0:
            return 1
        code = f"deeper({levels - 1}) + 1"
        return (await run_code(code, {"deeper": deeper}, executor=one)).value

    async with asyncio.timeout(patience()):
        assert await asyncio.gather(*(deeper(3) for _ in range(4))) == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("bindings", "inputs", "says"),
    [
        ({"no name": print}, {}, "is not a valid name for a binding"),
        ({"__import__": print}, {}, "is not a valid name for a binding"),
        ({"find": 3}, {}, "must be a function, got 3"),
        ({"find": print}, {"find": 3}, "both a binding and an input"),
    ],
)
async def test_a_binding_is_a_function_with_a_name_that_code_can_say(bindings: Any, inputs: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        await run_code("1", bindings, inputs=inputs)


async def test_a_limit_is_a_number_above_nothing() -> None:
    with pytest.raises(UsageError, match=r"CodeLimits\(seconds\) must be a number above 0, got 0"):
        CodeLimits(seconds=0)


class CustomerTable(Agent):
    """The only agent that the code of the next test reaches, and only by what its parent passes on."""

    migrations = ("CREATE TABLE customers (name TEXT NOT NULL) STRICT",)

    async def find(self, name: str) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM customers WHERE name = ?", name)]

    async def add(self, name: str) -> None:
        self.sql("INSERT INTO customers VALUES (?)", name)


class Office(Agent):
    async def ask(self, code: str) -> str:
        table = await self.sub_agent(CustomerTable, "all")
        return str(await run_code(code, {"find": table.find}, limits=STRICT))

    async def fill(self, name: str) -> None:
        await (await self.sub_agent(CustomerTable, "all")).add(name)

    async def give_stub(self) -> None:
        await run_code("1", {"table": await self.sub_agent(CustomerTable, "all")})  # pyright: ignore[reportArgumentType]


@pytest.mark.promise("A-248")
async def test_code_reaches_a_sub_agent_through_one_method_and_never_holds_its_stub(run: Run) -> None:
    async with run(Office) as world:
        office = await world.get_agent(Office, "o")
        await office.fill("alice")

        found = await office.ask("find('alice') + find('eve')")
        tried = await office.ask("find.add('eve')")
        unfit = await office.ask("find(3)")

        assert found == "=> ['alice']"
        assert "no attribute 'add'" in tried
        assert "argument 'name' does not fit: Expected `str`, got `int`" in unfit
        with pytest.raises(UsageError, match="must be a function"):
            await office.give_stub()


async def test_whoever_waits_no_longer_ends_the_code() -> None:
    begun = asyncio.Event()
    code = "begin()\nwhile True: pass"
    running = asyncio.create_task(run_code(code, {"begin": begun.set}, limits=CodeLimits(seconds=60)))
    await begun.wait()

    running.cancel()

    async with asyncio.timeout(patience()):
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.slow
def test_monty_is_imported_when_code_first_runs_and_not_before() -> None:
    program = "import sys, sapwood, sapwood.sandbox; print('pydantic_monty' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=patience()
    )

    assert done.stdout.strip() == "False"


async def test_without_monty_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)

    with pytest.raises(UsageError, match=r"pip install 'sapwood\[sandbox\]'"):
        await run_code("1")
