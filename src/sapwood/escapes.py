"""Text for terminals and logs: names and texts of users and models cannot control where or how they are shown."""

from __future__ import annotations

import logging
import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0, DEL, C1, line separators, characters that reorder the text around them, and halves of characters."""
CONTINUED = "\n    "
"""How a further line of a log record begins: no such line can be taken for a record of its own."""


def escape_controls(text: str, *, keep: str = "") -> str:
    r"""Replace control characters by their JSON escapes, such as `\u001b`, except those in `keep`."""
    return CONTROLS.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


class LineFormatter(logging.Formatter):
    """Formats log records so that their text forges no other record, and sends nothing else to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record).rstrip("\n"), keep="\n\t").replace("\n", CONTINUED)
