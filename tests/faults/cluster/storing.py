"""S3 as moto has it, which fails, hesitates or lies as a file tells it.

    python -m tests.faults.cluster.storing HOST PORT FILE

The file holds a word and a number. `errors 0.5`: half of all requests fail, half of these although they were
done. `slow 2`: each takes up to so many seconds longer. Anything else: all is well.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def troubled(app: Wsgi, orders: Path) -> Wsgi:
    """Return the app as it is with what the file says."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        word, number = _read(orders)
        if word == "slow":
            time.sleep(random.random() * number)
        if word == "errors" and random.random() < number:
            if random.random() < 0.5:  # done, and nobody is told
                for _ in app(environ, lambda *_: lambda _: None):
                    pass
            start("503 Service Unavailable", [("content-length", "0")])
            return []
        return app(environ, start)

    return answer


def _read(orders: Path) -> tuple[str, float]:
    try:
        word, number = orders.read_text().split()
        return word, float(number)
    except (OSError, ValueError):
        return "", 0.0


def main() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    host, port, orders = sys.argv[1:]
    app = troubled(DomainDispatcherApplication(create_backend_app), Path(orders))
    run_simple(host, int(port), app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
