"""An assistant that keeps reminders, and speaks up when they are due."""

import os
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sapwood import ChatAgent, Connection, Refused, tool
from sapwood.auth import ANY_CLIENT

from offline import OfflineModel

MODEL = os.environ.get("MODEL")
YEAR = 366 * 24 * 3600


class Assistant(ChatAgent):
    model = MODEL or OfflineModel(pause=float(os.environ.get("PAUSE", "0.04")))
    instructions = (
        "You are a friendly assistant that keeps reminders. Be brief. "
        "To know what time it is for the user, ask the browser for its clock. "
        "What begins with 'Due now:' was not said by the user: it is a reminder "
        "that is due. Tell the user what it is time for."
    )
    migrations = (
        """
        CREATE TABLE reminders (
            id TEXT PRIMARY KEY, what TEXT NOT NULL UNIQUE, due REAL NOT NULL
        ) STRICT
        """,
    )

    # --8<-- [start:tools]
    @tool
    async def remind(self, what: str, seconds: int) -> str:
        """Remind the user of something, so many seconds from now.

        A reminder of the same is moved.
        """
        if not 0 < seconds <= YEAR:
            raise Refused("A reminder is a second to a year away.")
        id = uuid4().hex[:8]
        due = self.schedule(timedelta(seconds=seconds), self.ring, id).due_at
        row = (id, what, due.timestamp())
        self.sql("INSERT OR REPLACE INTO reminders VALUES (?, ?, ?)", *row)
        self._show()
        return f"It is set for {due:%Y-%m-%d %H:%M:%S} UTC."

    @tool(idempotent=True)
    async def reminders(self) -> list[str]:
        """Return the reminders that are not due yet, the next one first."""
        rows = self.sql("SELECT what FROM reminders ORDER BY due")
        return [str(row["what"]) for row in rows]

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def forget(self, what: str) -> int:
        """Delete the reminders with this text in them, or all of them with ''."""
        fits = "DELETE FROM reminders WHERE instr(lower(what), lower(?)) RETURNING id"
        gone = self.sql(fits, what)
        self._show()
        return len(gone)

    # --8<-- [end:tools]
    # --8<-- [start:ring]
    async def ring(self, id: str) -> None:
        """Say that a reminder is due: a turn that nobody asked for."""
        rows = self.sql("DELETE FROM reminders WHERE id = ? RETURNING what", id)
        if rows:  # it may have been moved or forgotten meanwhile
            self._show()
            text = f"Due now: {rows.scalar(str)}"
            due: dict[str, Any] = {
                "id": f"reminder-{id}",
                "role": "user",
                "parts": [{"type": "text", "text": text}],
                "metadata": {"from": "reminder"},
            }
            # No await since the row went: a crash undoes both, or neither.
            await self.send([due])

    # --8<-- [end:ring]
    # --8<-- [start:state]
    async def on_start(self) -> None:
        self._show()

    def _show(self) -> None:
        """Let every page see the model and the reminders."""
        rows = self.sql("SELECT id, what, due FROM reminders ORDER BY due")
        model = MODEL or "offline script"
        self.set_state({"model": model, "reminders": list(rows)})

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages see the state, and change it with words

    # --8<-- [end:state]
