"""What `sapwood top` shows, whatever there is to see."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from sapwood.cli.quantities import lasted
from sapwood.cli.top import Top


def worker(name: str = "", pool: str = "", **more: Any) -> dict[str, Any]:
    waiting = dict.fromkeys(("due", "waking", "disk", "threads", "clients", "workers"), 0)
    return {
        "worker": name,
        "pool": pool,
        "process": 4711,
        "ready": True,
        "uptime": 3725.0,
        "restarts": 2,
        "cpu_seconds": 1.0,
        "memory": 60 * 1024 * 1024,
        "trees": 3,
        "agents": 12,
        "calls": 1,
        "calls_done": 100,
        "sockets": 2,
        "databases": 3,
        **more,
        "waiting": waiting | more.get("waiting", {}),
    }


def tree(address: str, name: str = "", **more: Any) -> dict[str, Any]:
    nothing = {"agents": 1, "calls": 0, "per_second": 0.0, "queued": 0, "more": False, "sockets": 0}
    return {"address": address, "worker": name, **nothing, **more}


def seen(*workers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"workers": list(workers), "busiest": [], "slow": [], **more}


def shown(what: dict[str, Any], *, width: int = 80, before: dict[str, Any] | None = None) -> list[str]:
    console = Console(width=width, color_system=None)
    top = Top(20, width)
    if before is not None:
        top(before)
    with console.capture() as capture:
        console.print(top(what))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_one_process_that_does_nothing_says_so() -> None:
    lines = shown(seen(worker(trees=0, agents=0, calls=0, sockets=0)))

    assert lines == [
        "one process, 0 trees awake, 0 sockets",
        "",
        "process  up memory trees agents calls sockets",
        "   4711 1 h 60 MiB     0      0     0       0",
        "",
        "All queues are empty.",
        "",
        "No tree is busy.",
    ]


def test_workers_are_shown_in_the_order_of_their_numbers_with_pool_and_restarts() -> None:
    lines = shown(seen(worker("10", "heavy"), worker("2"), worker("0", restarts=0)))

    assert lines[0] == "3 workers, 9 trees awake, 6 sockets"
    assert lines[2].split()[:5] == ["worker", "pool", "process", "up", "restarts"]
    assert [line.split()[0] for line in lines[3:6]] == ["0", "2", "10"]
    assert lines[5].split()[:6] == ["10", "heavy", "4711", "1", "h", "2"]


def test_what_waits_is_shown_for_each_process_as_soon_as_something_does() -> None:
    waits = {"due": 3, "disk": 12, "clients": 5000, "workers": 1}

    lines = shown(seen(worker("0"), worker("1", waiting=waits)))

    at = lines.index("waiting in due waking disk threads to clients to workers")
    assert lines[at + 1].split() == ["0", "0", "0", "0", "0", "0", "B", "0"]
    assert lines[at + 2].split() == ["1", "3", "0", "12", "0", "4.9", "KiB", "1"]


def test_the_busiest_trees_come_first_and_idle_ones_not_at_all() -> None:
    trees = [
        tree("Chat:idle"),
        tree("Chat:called", calls=1),
        tree("Chat:queue", queued=1000, more=True, per_second=None),
        tree("Chat:fast", per_second=512.3),
        tree("Chat:a%20room", sockets=7),
    ]

    lines = shown(seen(worker(), busiest=trees))

    at = lines.index("tree        agents calls calls/s queued sockets")
    assert [line.split("  ")[0] for line in lines[at + 1 :]] == [
        "Chat:fast",
        "Chat:called",
        "Chat:a room",
        "Chat:queue",
    ]
    assert lines[at + 1].split() == ["Chat:fast", "1", "0", "512", "0", "0"]
    assert lines[at + 4].split() == ["Chat:queue", "1", "0", "1000+", "0"]


def test_methods_that_held_up_their_process_are_named_with_their_longest_time() -> None:
    slow = [{"method": "Mill.grind", "worker": "1", "times": 4, "seconds": 2.345}]

    lines = shown(seen(worker("1"), slow=slow))

    assert lines[-2:] == ["blocked its process worker times longest", "Mill.grind          1          4   2.3 s"]


def test_a_worker_that_does_not_answer_or_is_not_ready_is_named() -> None:
    before = seen(worker("0"), worker("1", "heavy", process=12, cpu_seconds=1.0))
    known = {"process": 12, "uptime": 125.0, "cpu_seconds": 1.0, "memory": 7 * 1024 * 1024}
    gone = {"process": None, "uptime": 0.0, "cpu_seconds": 0.0, "memory": 0}
    silent = [{"worker": "1", "pool": "heavy", **known}, {"worker": "2", "pool": "heavy", **gone}]

    lines = shown(seen(worker("0", ready=False), unanswered=["1", "2"], silent=silent), before=before)

    assert lines[0].startswith("3 workers")
    assert lines[2].split()[:6] == ["worker", "pool", "process", "up", "restarts", "core"]
    assert lines[4].split()[:5] == ["1", "heavy", "12", "2", "min"]
    assert lines[4].split()[5:] == ["0", "%", "7.0", "MiB"]
    assert lines[5].split() == ["2", "heavy"]
    assert lines[6:9] == [
        "worker 1 does not answer: it is busy or restarting",
        "worker 2 does not answer: it is busy or restarting",
        "worker 0 is not ready: its event loop is blocked by an agent",
    ]


def test_how_much_of_a_core_is_used_takes_two_looks() -> None:
    first, second = seen(worker()), seen(worker(cpu_seconds=1.0 + 1e-6))

    assert "core" not in shown(first)[2]
    assert "core" in shown(second, before=first)[2]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_number_is_cut_however_long_the_names_are(width: int) -> None:
    many = {"process": 4194304, "uptime": 3599.0, "memory": 1023 * 1024 * 1024, "trees": 99999, "agents": 999999}
    long = tree(
        f"Conversation:{'x' * 300}", "12", agents=99999, calls=1234, per_second=12345.6, queued=1000, sockets=99
    )
    slow = [{"method": f"Press.{'y' * 300}", "worker": "12", "times": 12345, "seconds": 59.9}]

    lines = shown(seen(worker("12", "background-work", **many), busiest=[long], slow=slow), width=width)

    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for whole in ("4194304", "59 min", "1023 MiB", "99999", "999999", "1234 ", "12346", "1000", "12345", "59.9 s"):
        assert whole in text
    assert "Conversation:xx" in text


@pytest.mark.parametrize(("seconds", "text"), [(59.9, "59 s"), (60, "1 min"), (7200, "2 h"), (200000, "2 d")])
def test_how_long_something_lasted_is_said_in_few_letters(seconds: float, text: str) -> None:
    assert lasted(seconds) == text


def test_calls_that_fail_again_and_again_are_listed_with_the_worst_first() -> None:
    failing = [
        {"address": "Desk:a%20b", "method": "send", "failures": 3, "due_at": 1e9, "worker": ""},
        {"address": "Courier:main", "method": "deliver", "failures": 41, "due_at": 1e9, "worker": ""},
    ]

    lines = shown(seen(worker(), failing=failing))

    assert lines[-3:] == [
        "failing call         failures",
        "Courier:main deliver       41",
        "Desk:a b send               3",
    ]
