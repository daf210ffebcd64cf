"""Files: an archive whose clients upload documents, and whose methods read them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import ClassVar

from sapwood import Agent, App, expose
from sapwood.types import File

KB = 1000
MB = 1000 * KB


# --8<-- [start:accept]
class Archive(Agent):
    accept_files: ClassVar = {
        "image/*": 5 * MB,
        "application/pdf": 20 * MB,
        "text/*": 100 * KB,
    }

    # --8<-- [end:accept]

    migrations = (
        "CREATE TABLE documents (title TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT",
    )

    # --8<-- [start:keep]
    @expose
    async def add(self, title: str, digest: str) -> str:
        """File a document that the client has uploaded. Returns its URL."""
        file = self.files.keep(digest)
        self.sql("INSERT OR REPLACE INTO documents VALUES (?, ?)", title, file.digest)
        return file.url

    # --8<-- [end:keep]

    # --8<-- [start:put]
    async def write_report(self, lines: int) -> File:
        async def content() -> AsyncIterator[bytes]:
            for number in range(lines):
                yield f"{number},{number * number}\n".encode()

        return await self.files.put(
            content(), name="squares.csv", media_type="text/csv"
        )

    # --8<-- [end:put]

    # --8<-- [start:read]
    async def words(self, title: str) -> int:
        digest = self.sql("SELECT digest FROM documents WHERE title = ?", title).scalar(
            str
        )
        return len((await self.files.get(digest)).split())

    async def count_lines(self, file: File) -> int:
        return sum([chunk.count(b"\n") async for chunk in self.files.stream(file)])

    # --8<-- [end:read]

    # --8<-- [start:delete]
    async def remove(self, title: str) -> None:
        for row in self.sql(
            "DELETE FROM documents WHERE title = ? RETURNING digest", title
        ):
            await self.files.delete(str(row["digest"]))

    # --8<-- [end:delete]

    async def listed(self) -> list[str]:
        return [
            f"{file.name or 'no name'}, {file.media_type}, {file.size} bytes"
            for file in self.files.list()
        ]


app = App(agents=[Archive])


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        archive = await app.get_agent(Archive, "city")
        report = await archive.write_report(20_000)
        print("stored:", await archive.listed())
        print("lines:", await archive.count_lines(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "files-data"))
