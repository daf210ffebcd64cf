"""Agents on a server elsewhere, called as if they were here.

```python
async with connect("http://127.0.0.1:8000", Inbox, "alice") as alice:
    await alice.stub.note("shopping", "milk")
    print(alice.state)
```
"""

from sapwood.client.connector import connect
from sapwood.client.remote import RemoteAgent
from sapwood.wire.methods import ExposedMethod

__all__ = ["ExposedMethod", "RemoteAgent", "connect"]
