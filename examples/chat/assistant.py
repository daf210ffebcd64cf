"""An assistant that stores reminders, and posts a message when one is due."""

import os
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sapwood import ChatAgent, Connection, Refused, expose, tool
from sapwood.auth import ANY_CLIENT
from sapwood.types import ConversationBranch

from offline import OfflineModel

MODEL = os.environ.get("MODEL")
YEAR = 366 * 24 * 3600


class Assistant(ChatAgent):
    model = MODEL or OfflineModel(pause=float(os.environ.get("PAUSE", "0.04")))
    instructions = (
        "You are a friendly assistant that stores reminders. Be brief. "
        "For the user's local time, call the clock of the browser. "
        "A message that starts with 'Due now:' is not from the user: it is a "
        "reminder that is due. Tell the user about it."
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
        """Remind the user of something after this many seconds.

        A reminder with the same text is replaced.
        """
        if not 0 < seconds <= YEAR:
            raise Refused(f"seconds must be 1 to {YEAR} (a year), got {seconds}.")
        id = uuid4().hex[:8]
        due = self.schedule(timedelta(seconds=seconds), self.ring, id).due_at
        row = (id, what, due.timestamp())
        self.sql("INSERT OR REPLACE INTO reminders VALUES (?, ?, ?)", *row)
        self._publish()
        return f"The reminder is set for {due:%Y-%m-%d %H:%M:%S} UTC."

    @tool(idempotent=True)
    async def reminders(self) -> list[str]:
        """Return the pending reminders, the next one first."""
        rows = self.sql("SELECT what FROM reminders ORDER BY due")
        return [str(row["what"]) for row in rows]

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def forget(self, what: str) -> int:
        """Delete the reminders that contain this text. '' deletes all of them."""
        query = "DELETE FROM reminders WHERE instr(lower(what), lower(?)) RETURNING id"
        deleted = self.sql(query, what)
        self._publish()
        return len(deleted)

    # --8<-- [end:tools]
    # --8<-- [start:ring]
    async def ring(self, id: str) -> None:
        """Start a turn for a reminder that is due, without a message of the user."""
        rows = self.sql("DELETE FROM reminders WHERE id = ? RETURNING what", id)
        if rows:  # it may have been replaced or deleted since
            self._publish()
            text = f"Due now: {rows.scalar(str)}"
            due: dict[str, Any] = {
                "id": f"reminder-{id}",
                "role": "user",
                "parts": [{"type": "text", "text": text}],
                "metadata": {"from": "reminder"},
            }
            # No await since the DELETE: the row and the message are one commit.
            await self.send([due])

    # --8<-- [end:ring]
    # --8<-- [start:branches]
    @expose
    async def branches(self) -> list[ConversationBranch]:
        """Return where answers were regenerated or messages edited."""
        return await self.conversation.branches()

    @expose
    async def switch_branch(self, message_id: str) -> bool:
        """Show another version of a message, and continue there."""
        return await self.conversation.switch(message_id)

    # --8<-- [end:branches]
    # --8<-- [start:state]
    async def on_start(self) -> None:
        self._publish()

    def _publish(self) -> None:
        """Send the model and the reminders to all pages."""
        rows = self.sql("SELECT id, what, due FROM reminders ORDER BY due")
        model = MODEL or "offline script"
        self.set_state({"model": model, "reminders": list(rows)})

    def is_readonly(self, connection: Connection) -> bool:
        return True  # pages read the state, and change it with messages

    # --8<-- [end:state]
