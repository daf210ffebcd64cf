"""Code in a sandbox that wants more than its limits: memory that no limit of its own counts, and output without end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.machine import patience

from sapwood.sandbox import Bubblewrap, CodeLimits, CodeResult, Monty, run_code

MIB = 1024 * 1024
LIMITS = CodeLimits(seconds=20, output_bytes=2000)
CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.{function} < 0:
    raise OSError(ctypes.get_errno(), "refused")
"""
FORGED = """
import os, sys
descriptor, data = int(sys.argv[1]), {data} + b"\\n"
while data:
    data = data[os.write(descriptor, data):]
os._exit(0)
"""


async def wrapped(code: str, limits: CodeLimits = LIMITS, **bindings: Any) -> CodeResult:
    return await run_code(code, bindings, executor=Bubblewrap(), limits=limits)


def shared_memory() -> int:
    """Return the bytes of shared memory and tmpfs that this machine holds."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["Shmem"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
async def test_memory_of_the_machine_does_not_grow_with_memfds() -> None:
    seen: list[int] = []

    async def look() -> None:
        seen.append(shared_memory())

    code = """
import os
look()
held = []
try:
    for _ in range(12):
        held.append(os.memfd_create("x"))
        for _ in range(15):
            os.write(held[-1], b"x" * (4 * 1024 * 1024))
finally:
    look()
"""
    result = await wrapped(code, look=look)
    assert result.failure is not None
    assert result.failure.kind == "forbidden", result
    assert seen[-1] - seen[0] < 100 * MIB


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    "function",
    [
        'memfd_create(b"x", 0)',
        "syscall(447, 0)",  # memfd_secret
        "syscall(450, 0)",  # newer than the filter
        "shmget(0, 1 << 26, 0o1600)",
        "msgget(0, 0o1600)",
        "semget(0, 100, 0o1600)",
        'syscall(240 if __import__("platform").machine() == "x86_64" else 180, b"x", 0o102, 0o600, None)',  # mq_open
        "inotify_init1(0)",
        "prctl(4, 0, 0, 0, 0)",  # PR_SET_DUMPABLE, which would hide its files from the server
        'setxattr(b"/tmp", b"user.x", b"x", 1, 0)',
    ],
)
async def test_memory_that_no_limit_counts_is_refused(function: str) -> None:
    result = await wrapped(CALL.format(function=function))
    assert result.failure is not None
    assert "refused" in result.failure.message, result


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("opens", ["os.pipe()", "socket.socketpair()", 'open("/dev/null")', 'open("/tmp/x", "w")'])
async def test_descriptors_are_few(opens: str) -> None:
    code = f"""
import os, socket
held = []
try:
    while len(held) < 1000:
        held.append({opens})
except OSError as error:
    print(error.errno)
len(held)
"""
    result = await wrapped(code)
    assert result.printed == "24\n", result  # EMFILE
    assert result.value < 64


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
async def test_its_folder_has_a_size() -> None:
    code = """
import os
written = 0
for number in range(100):
    with open(f"/tmp/{number}", "wb", buffering=0) as file:
        written += file.write(b"x" * 1024 * 1024)
written
"""
    result = await wrapped(code, CodeLimits(seconds=20, memory_bytes=32 * MIB))
    assert result.failure is not None
    assert result.failure.kind == "limit", result


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    "makes", ["os.mkdir(str(n))", "os.symlink('x', str(n))", "os.close(os.open(str(n), os.O_CREAT))"]
)
async def test_its_folder_holds_a_number_of_files(makes: str) -> None:
    result = await wrapped(f"import os\nn = 0\nwhile n < 3_000_000:\n    {makes}\n    n += 1\n")
    assert result.failure is not None
    assert "files" in result.failure.message, result


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
async def test_asyncio_threads_and_files_still_work() -> None:
    code = """
import asyncio, tempfile, threading

async def main():
    await asyncio.sleep(0)
    return await asyncio.to_thread(lambda: 7)

with tempfile.TemporaryFile() as file:
    file.write(b"x")
thread = threading.Thread(target=print, args=("hello",))
thread.start()
thread.join()
asyncio.run(main())
"""
    assert await wrapped(code) == CodeResult(7, "hello\n", None, 0)


EXECUTORS = [
    pytest.param(Bubblewrap(), marks=pytest.mark.needs("bubblewrap"), id="bubblewrap"),
    pytest.param(Monty(), id="monty"),
]


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    print('x')",
        "while True:\n    try:\n        print('x' * 100)\n    except BaseException:\n        pass",
    ],
    ids=["plain", "caught"],
)
async def test_code_that_prints_endlessly_ends_at_its_output(executor: Any, code: str) -> None:
    limits = CodeLimits(seconds=patience(20), output_bytes=2000)
    began = time.monotonic()
    result = await run_code(code, executor=executor, limits=limits)
    assert result.failure is not None
    assert result.failure.message == "The code printed more than 2000 bytes."
    assert len(result.printed) <= 2000
    assert time.monotonic() - began < limits.seconds / 2


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
async def test_the_text_of_a_failure_is_bounded(executor: Any) -> None:
    result = await run_code("raise ValueError('y' * 300_000)", executor=executor, limits=LIMITS)
    assert result.failure is not None
    assert result.failure.kind == "raised"
    assert len(str(result)) < 2 * LIMITS.output_bytes
    assert result.failure.message.startswith("ValueError: yyy")


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    "data",
    [
        "b'{\"value\":' + b'[' * 20_000 + b']' * 20_000 + b'}'",
        "b'{\"value\":' + b'[' * 200_000",
        "b'{\"call\":[\"f\",[' + b'[' * 20_000 + b']' * 20_000 + b'],{}]}'",
        'b\'{"failure":{"kind":"raised","message":"\' + b\'y\' * 3_000_000 + b\'"}}\'',
        'b\'{"failure":{"kind":"raised","message":"x","line":\' + b\'9\' * 5000 + b\'}}\'',
        'b\'{"failure":{"kind":"raised","message":"x","line":99999999999999999999}}\'',
        "b'{\"value\":' + b'9' * 100_000 + b'}'",
        "b'{\"printed\":\"' + b'x' * 1_000_000 + b'\"}'",
        'b\'{"printed":"\\\\ud800"}\'',
        "b'\\xff\\xfe'",
        "b'x' * 60_000_000",
    ],
)
async def test_a_forged_answer_is_a_result(data: str) -> None:
    async def f(value: Any) -> Any:
        return value

    result = await wrapped(FORGED.format(data=data), f=f)
    assert len(str(result)) < 3 * LIMITS.output_bytes
