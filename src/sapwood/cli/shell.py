"""An interactive Python with the app running in it, where `await` works at the prompt.

The prompt waits in its own thread, and the code runs on the event loop: agents cannot be used on another thread.
"""

from __future__ import annotations

import ast
import asyncio
import code
import concurrent.futures
import contextlib
import importlib
import inspect
import threading
import types
from typing import Any

from sapwood.cli.app_loader import LoadedApp, load
from sapwood.cli.parameters import DataOfApp, Target


def shell(target: Target, /, *, data: DataOfApp = None) -> None:
    """Start an interactive Python with the app running as `app`; `await` works at the prompt."""
    asyncio.run(interact(load(target, data)))


async def interact(loaded: LoadedApp) -> None:
    """Run the app with a prompt until the user leaves it."""
    async with loaded.app as app:
        names: dict[str, Any] = {"app": app, **{cls.__name__: cls for cls in app.agents}}
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        console = AsyncConsole(names, loop)
        banner = f"`app` is running, data folder {app.settings.data}. Try `await app.get_agent(…)`; leave with Ctrl-D."

        def prompt() -> None:
            try:
                with contextlib.suppress(ImportError):
                    importlib.import_module("readline")  # it gives the prompt a history
                console.interact(banner, "")
            finally:
                loop.call_soon_threadsafe(done.set_result, None)

        threading.Thread(target=prompt, daemon=True).start()
        await done


class AsyncConsole(code.InteractiveConsole):
    """A console whose code runs on an event loop in another thread."""

    def __init__(self, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(names)
        self._loop = loop
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def runcode(self, code: types.CodeType) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._run(code), self._loop).result()
        except SystemExit:
            raise
        except concurrent.futures.CancelledError:
            self.write("KeyboardInterrupt\n")
        except BaseException:  # noqa: BLE001 - whatever was typed; the prompt shows it and continues
            self.showtraceback()

    async def _run(self, code: types.CodeType) -> None:
        result = types.FunctionType(code, self.locals)()  # pyright: ignore[reportArgumentType]
        if inspect.isawaitable(result):
            await result
