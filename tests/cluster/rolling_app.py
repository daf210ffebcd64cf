"""What the nodes of test_rolling_restart.py serve: `sapwood serve rolling_app.py:app`."""

from __future__ import annotations

from sapwood import Agent, App, Connection, expose


class RollingList(Agent):
    """Keeps what it is told by calls, and by messages, which it echoes with how many there were."""

    migrations = (
        "CREATE TABLE calls (item TEXT NOT NULL) STRICT",
        "CREATE TABLE messages (item TEXT NOT NULL) STRICT",
    )

    @expose
    async def append(self, item: str) -> int:
        self.sql("INSERT INTO calls VALUES (?)", item)
        return self.sql("SELECT count(*) FROM calls").scalar(int)

    @expose
    async def calls(self) -> list[str]:
        return [str(row["item"]) for row in self.sql("SELECT item FROM calls ORDER BY rowid")]

    @expose
    async def heard(self) -> list[str]:
        return [str(row["item"]) for row in self.sql("SELECT item FROM messages ORDER BY rowid")]

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        assert isinstance(message, str)
        self.sql("INSERT INTO messages VALUES (?)", message)
        connection.send(f"echo {message}")


app = App(agents=[RollingList])
