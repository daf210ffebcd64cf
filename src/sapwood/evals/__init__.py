"""Datasets of `pydantic_evals` against agents: each case has a tree of its own.

```python
dataset = Dataset(name="rivers", cases=[Case(name="nile", inputs="How long is the Nile?")])
task = turn_task(app, Desk)
```

`sapwood eval` runs the datasets of such a file.
"""

from sapwood.evals.turn_task import TurnNotCompleted, TurnTask, turn_task

__all__ = ["TurnNotCompleted", "TurnTask", "turn_task"]
