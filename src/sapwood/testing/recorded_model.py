"""A real provider's answers in a test, without asking it every time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.errors import UsageError

if TYPE_CHECKING:
    import httpx2


def recorded(path: str | Path, *, record: bool | None = None) -> httpx2.AsyncClient:
    """Return an HTTP client for a model that replays a provider's responses from a file.

    ```python
    client = recorded("tests/answers/weather.json")
    model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key=key, http_client=client))
    ```

    With `record=True`, or with `SAPWOOD_RECORD=1` in the environment, it sends the requests to the
    provider and writes the file: each request, and its response in the chunks in which it arrived. Request headers,
    and so API keys, are not written. On replay, the requests must be the same, in the same order. Any other request
    gets status 400 and is logged. A response that was cut off when it was recorded is cut off again.
    """
    import httpx2

    from sapwood.testing.exchanges import Player, Recorder

    file = Path(path)
    if record is None:
        record = os.environ.get("SAPWOOD_RECORD", "") not in ("", "0")
    if not record and not file.exists():
        raise UsageError(f"{file} does not exist. Run the test once with SAPWOOD_RECORD=1 to record it.")
    return httpx2.AsyncClient(transport=Recorder(file) if record else Player(file), timeout=600)
