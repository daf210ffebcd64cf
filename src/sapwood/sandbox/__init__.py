"""Python that a model wrote, run where it can reach nothing but the functions it is given.

```python
@tool(idempotent=True)
async def run_python(self, code: str) -> str:
    \"\"\"Run Python. It may call find(name), which returns customers.\"\"\"
    return str(await run_code(code, {"find": self.customers.find}))
```
"""

from sapwood.sandbox.bubblewrap import Bubblewrap
from sapwood.sandbox.contract import Answer, CodeFailure, CodeLimits, CodeResult, Ended, Executor, Paused, Task
from sapwood.sandbox.execution import run_code
from sapwood.sandbox.monty import Monty

__all__ = [
    "Answer",
    "Bubblewrap",
    "CodeFailure",
    "CodeLimits",
    "CodeResult",
    "Ended",
    "Executor",
    "Monty",
    "Paused",
    "Task",
    "run_code",
]
