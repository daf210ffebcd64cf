"""Ten escape attempts to try. The sandbox refuses each, and reports the reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Escape:
    """One escape attempt."""

    id: str
    title: str
    code: str
    refusal: str
    """The kind of failure with which it ends."""


ESCAPES = (
    Escape(
        "import",
        "Import a system module",
        "import socket\nsocket.create_connection(('127.0.0.1', 80))",
        "unknown",
    ),
    Escape("files", "Open a file", "open('/etc/passwd').read()", "forbidden"),
    Escape(
        "text",
        "Evaluate a string as code",
        "eval('__import__(\"os\")').system('id')",
        "unknown",
    ),
    Escape(
        "walk",
        "Walk from a value to all classes",
        "().__class__.__bases__[0].__subclasses__()",
        "raised",
    ),
    Escape(
        "loop",
        "Loop forever, and catch all exceptions",
        "while True:\n"
        "    try:\n"
        "        while True: pass\n"
        "    except BaseException: pass",
        "limit",
    ),
    Escape(
        "memory",
        "Use all memory",
        "hoard = []\nwhile True:\n    hoard.append('x' * 100_000)",
        "limit",
    ),
    Escape("depth", "Recurse without end", "def f():\n    return f()\nf()", "limit"),
    Escape("flood", "Flood the output", "while True:\n    print('spam')", "limit"),
    Escape(
        "stub",
        "Call a method of the database",
        "customers('Rome')\ncustomers.erase()",
        "raised",
    ),
    Escape(
        "unfit",
        "Pass an invalid argument",
        'class Evil:\n    city = "Rome\' OR 1 = 1 --"\ncustomers(Evil())',
        "binding",
    ),
)
