"""Record the histories in `tests/temporal/histories` anew, from Temporal's own server for development.

Only before a release, or for a new scene: a history that a released version has written shows
that workflows begun by it still run, and stays as it is. Names of scenes record only those:
`python scripts/record_histories.py waiting`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.temporal.cluster import TOKEN, Temporal  # noqa: E402
from tests.temporal.scenes import SCENES, SceneDesk, ShortDriver, Stage, histories, worked  # noqa: E402

from sapwood import App, Settings  # noqa: E402
from sapwood.drivers.temporal import TemporalDriver  # noqa: E402

HISTORIES = ROOT / "tests/temporal/histories"
NOBODY = "recorded"
"""Who has done it, instead of the name of a machine and the number of a process."""
LOOK = 0.3
"""Seconds after which a workflow that waits looks whether it still has to: few, so that the histories have it."""


async def record(names: list[str], temporal: str, folder: Path) -> None:
    """Play scenes, one after the other, and write down what Temporal has of them."""
    for name in names:
        kind = ShortDriver if name == "continued" else TemporalDriver
        driver = kind(temporal, token=TOKEN, queue=name, look=LOOK, options={"identity": NOBODY})
        app = App(agents=[SceneDesk], driver=driver, settings=Settings(data=folder / name))
        play, _ = SCENES[name]
        async with worked(app):
            client = await driver.connect()
            stage = Stage(app, client, name)
            await play(stage)
            found = await histories(client, stage.workflow.id)
        for number, history in enumerate(found):
            path = HISTORIES / (f"{name}-{number}.json" if number else f"{name}.json")
            path.write_text(json.dumps(scrubbed(json.loads(history.to_json())), indent=1) + "\n")
            print(f"{path.name}: {history.workflow_id}, {len(history.events)} events")


def scrubbed(value: Any) -> Any:
    """Return a history without what is of the machine: where code lies, and what its queues are called."""
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "TASK_QUEUE_KIND_STICKY":
        return {**value, "name": NOBODY}
    return {key: scrubbed(one) for key, one in value.items() if key != "stackTrace"}


def main() -> None:
    """Record all scenes, or those that were named."""
    with tempfile.TemporaryDirectory() as folder:
        temporal = Temporal(Path(folder), Path(folder) / "temporal")
        try:
            asyncio.run(record(sys.argv[1:] or list(SCENES), temporal.host, Path(folder)))
        finally:
            temporal.end(signal.SIGTERM)
    sys.stdout.flush()
    os._exit(0)  # threads of Temporal's client may end the interpreter with an error otherwise


if __name__ == "__main__":
    main()
