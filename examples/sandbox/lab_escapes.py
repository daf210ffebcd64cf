"""Ten ways out of a sandbox, to be tried. Each is refused, and the refusal says why."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Escape:
    """One way out."""

    id: str
    way: str
    code: str
    refusal: str
    """The kind of failure that it meets."""


ESCAPES = (
    Escape(
        "import",
        "Import what reaches the system",
        "import socket\nsocket.create_connection(('127.0.0.1', 80))",
        "unknown",
    ),
    Escape("files", "Open a file", "open('/etc/passwd').read()", "forbidden"),
    Escape(
        "text",
        "Make code of text",
        "eval('__import__(\"os\")').system('id')",
        "unknown",
    ),
    Escape(
        "walk",
        "Walk from a value to everything",
        "().__class__.__bases__[0].__subclasses__()",
        "raised",
    ),
    Escape(
        "loop",
        "Never end, and catch whoever objects",
        "while True:\n"
        "    try:\n"
        "        while True: pass\n"
        "    except BaseException: pass",
        "limit",
    ),
    Escape(
        "memory",
        "Take all memory",
        "hoard = []\nwhile True:\n    hoard.append('x' * 100_000)",
        "limit",
    ),
    Escape("depth", "Recurse for ever", "def f():\n    return f()\nf()", "limit"),
    Escape("flood", "Flood the reader", "while True:\n    print('spam')", "limit"),
    Escape(
        "stub",
        "Call what was not given",
        "customers('Rome')\ncustomers.erase()",
        "raised",
    ),
    Escape(
        "unfit",
        "Pass what it must not",
        'class Evil:\n    city = "Rome\' OR 1 = 1 --"\ncustomers(Evil())',
        "binding",
    ),
)
