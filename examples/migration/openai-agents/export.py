"""Print the messages of a session, as `examples/continued.py` imports them."""

import asyncio
import json
import sys

from agents import SQLiteSession


# --8<-- [start:export]
async def main(data: str) -> None:
    messages = []
    for item in await SQLiteSession("ann", data).get_items():
        if (role := item.get("role")) in ("user", "assistant"):
            content = item["content"]
            parts = content if isinstance(content, list) else [{"text": content}]
            text = "".join(part["text"] for part in parts)
            messages.append({"role": role, "text": text})
    print(json.dumps(messages, indent=2))


# --8<-- [end:export]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "complaints.db"))
