"""Record a real session in a terminal as a picture: an import that is killed half-way and goes on.

Types commands into a shell, kills the program when the bar is half-way, and draws what the
terminal then showed. Run it in the checkout: `python scripts/record_terminal.py`.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/how-to/pictures/killed.svg"
COLUMNS = 80
PROMPT = "$ "
BLACK, WHITE, GREY = (30, 32, 34), (226, 226, 226), (150, 150, 150)
RED, GREEN, YELLOW = (235, 80, 100), (120, 200, 90), (220, 180, 80)
BLUE, MAGENTA, CYAN = (100, 160, 240), (205, 130, 220), (90, 190, 200)
DARK = TerminalTheme(BLACK, WHITE, [BLACK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, GREY])
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    {styles}
</style>
<defs>
    <clipPath id="{unique_id}-clip-terminal">
        <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
</defs>
<rect fill="#1e2022" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(24, 12)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
</g>
</svg>
"""
"""The frame of the picture. It asks no other host for a font."""


class Terminal:
    """A shell in a terminal of its own, and what can be seen of it."""

    def __init__(self, folder: Path) -> None:
        self.shell, self._screen = pty.fork()
        if self.shell == 0:
            os.chdir(folder)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "PS1": PROMPT, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._seen = b""

    def type(self, line: str) -> None:
        """Type a line, see it, and press the key at its end."""
        os.write(self._screen, line.encode())
        self.wait_for(re.escape(line))
        os.write(self._screen, b"\n")
        self.wait_for(r"^(?!\$ )")

    def wait_for(self, pattern: str, seconds: float = 60.0) -> None:
        """Read until the last line of the terminal has this."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.lines()[-1].plain):
            if time.monotonic() > end:
                raise TimeoutError(f"Nobody saw {pattern!r} in: {self._seen!r}")
            if select.select([self._screen], [], [], 0.05)[0]:
                self._seen += os.read(self._screen, 65536)

    def lines(self) -> list[Text]:
        """Return what stands in the terminal now, line by line."""
        text = re.sub(r"\x1b\[\?\d+[hl]", "", self._seen.decode(errors="replace")).replace("\r\n", "\n")
        # A bar is drawn again and again in its own line: what counts is what was drawn last.
        drawn = [re.split(r"\r(?:\x1b\[2K)?|\x1b\[2K", line) for line in text.split("\n")]
        lines = [Text.from_ansi(next((part for part in reversed(parts) if part), "")) for parts in drawn]
        return [part for line in lines for part in line.divide(range(COLUMNS, len(line), COLUMNS))]

    def child(self) -> int:
        """Return the program that runs in the shell."""
        return int(Path(f"/proc/{self.shell}/task/{self.shell}/children").read_text().split()[0])


def record(folder: Path) -> list[Text]:
    """Run the session; return what the terminal shows at its end."""
    terminal = Terminal(folder)
    command = f"python {ROOT / 'examples/importing.py'}"
    terminal.wait_for(r"^\$ $")
    terminal.type(command)
    terminal.wait_for(r" 4[5-9]%")
    os.kill(terminal.child(), signal.SIGKILL)
    terminal.wait_for(r"^\$ $")
    terminal.type(command)
    terminal.wait_for(r"^\$ $")
    shown = terminal.lines()[:-1]
    os.kill(terminal.shell, signal.SIGKILL)
    os.waitpid(terminal.shell, 0)
    return [shortened(line) for line in shown]


def shortened(line: Text) -> Text:
    """Return a line without the folder of this machine, as if the shell stood in the checkout."""
    start = line.plain.find(f"{ROOT}/")
    if start < 0:
        return line
    return line[:start] + line[start + len(f"{ROOT}/") :]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown = record(Path(folder))
    margin = 4
    console = Console(record=True, width=COLUMNS + margin, file=io.StringIO(), force_terminal=True)
    for line in [*shown, Text()]:
        console.print(line, highlight=False)
    PICTURE.write_text(console.export_svg(theme=DARK, code_format=FRAME, unique_id="killed", title=""))
    print("\n".join(line.plain for line in shown))


if __name__ == "__main__":
    main()
