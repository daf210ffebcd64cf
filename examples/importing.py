"""Imports a large file in a fiber. Kill it halfway and restart it: it continues.

Run it in a terminal, kill it with `kill -9` while the bar grows, and run it again.
Rich, which draws the bar, comes with the extra `server`.
"""

import asyncio
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
)

from sapwood import Agent, App, Settings

BATCH = 500


# --8<-- [start:read]
def read_batch(path: str, position: int) -> tuple[list[tuple[int, float]], int]:
    """Return the values of the next lines, and the position after them."""
    with Path(path).open("rb") as file:
        file.seek(position)
        lines = [line for _ in range(BATCH) if (line := file.readline())]
        pairs = (line.split(b",") for line in lines)
        return [(int(number), float(value)) for number, value in pairs], file.tell()


# --8<-- [end:read]
# --8<-- [start:agent]
class Archive(Agent):
    migrations = (
        "CREATE TABLE measured (number INTEGER NOT NULL, value REAL NOT NULL) STRICT",
    )

    async def add_file(self, path: str) -> None:
        self.start_fiber(path, self.import_file, path)

    async def import_file(self, path: str) -> tuple[int, int]:
        position = self.fibers.current.checkpoint or 0
        while True:
            batch, position = await self.in_thread(read_batch, path, position)
            if not batch:
                break
            for number, value in batch:
                self.sql("INSERT INTO measured VALUES (?, ?)", number, value)
            await self.checkpoint(position)
        rows = await self.read_sql("SELECT count(*) FROM measured")
        numbers = await self.read_sql("SELECT count(DISTINCT number) FROM measured")
        return rows.scalar(int), numbers.scalar(int)

    # --8<-- [end:agent]
    # --8<-- [start:progress]
    async def bytes_read(self, path: str) -> int:
        fiber = self.fibers.get(path)
        return 0 if fiber is None else fiber.checkpoint or 0

    async def result(self, path: str) -> tuple[int, int]:
        return await self.fibers.result(path)

    # --8<-- [end:progress]


def make_file(path: Path, lines: int) -> int:
    """Write a file of measurements to import, and return its size."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")  # a kill never leaves half a file
        with partial.open("w", encoding="ascii") as file:
            file.writelines(f"{n},{n * 7919 % 10007 / 100}\n" for n in range(lines))
        partial.rename(path)
    return path.stat().st_size


async def watch(archive: Archive, path: Path, size: int) -> None:
    """Draw a bar until the file is imported. Without a terminal, print lines."""
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        TaskProgressColumn(),
        DownloadColumn(),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        task = progress.add_task(path.name, total=size)
        percent = done = 0
        while done < size:
            done = await archive.bytes_read(str(path))
            progress.update(task, completed=done)
            if not console.is_terminal and 100 * done // size >= percent + 10:
                percent = 100 * done // size
                print(f"{percent} %", flush=True)
            await asyncio.sleep(0.05)


async def main(folder: Path, lines: int) -> None:
    path = folder / "measured.csv"
    size = make_file(path, lines)
    settings = Settings(data=folder / "agents")
    async with App(agents=[Archive], settings=settings) as app:
        archive = await app.get_agent(Archive, "sensors")
        if before := await archive.bytes_read(str(path)):
            print(f"found: {before:,} bytes are imported already", flush=True)
        await archive.add_file(str(path))
        await watch(archive, path, size)
        rows, different = await archive.result(str(path))
        print(f"{rows:,} rows, {different:,} different ones")


if __name__ == "__main__":
    args = sys.argv[1:]
    folder = Path(args[0] if args else "import-data")
    asyncio.run(main(folder, int(args[1]) if len(args) > 1 else 2_000_000))
