"""A complaints desk that asks before it refunds: in the OpenAI Agents SDK.

The same program in sapwood is `examples/complaints.py`.
"""

import asyncio
import json
import sys

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

set_tracing_disabled(True)  # it would send traces to OpenAI

MODEL = ScriptedModel(
    [
        [function_call("find_order", {"number": 17}, call_id="1")],
        [function_call("refund", {"number": 17, "euros": 25}, call_id="2")],
        [assistant_message("You get 25 euros for the vase.")],
        [assistant_message("You are welcome.")],
    ]
)


# --8<-- [start:agent]
@function_tool
def find_order(number: int) -> str:
    """Return what was ordered."""
    return f"order {number}: a vase, 25 euros"


@function_tool(needs_approval=True)
def refund(number: int, euros: int) -> str:
    """Refund an order."""
    return f"{euros} euros are refunded for order {number}"


desk = Agent(
    name="Desk",
    model=MODEL,  # such as "gpt-5"
    instructions="You handle complaints. Look up the order first.",
    tools=[find_order, refund],
)


# --8<-- [end:agent]
# --8<-- [start:use]
async def main(data: str) -> None:
    ann = SQLiteSession("ann", data)
    result = await Runner.run(desk, "The vase of order 17 is broken.", session=ann)
    state = result.to_state()
    for call in result.interruptions:
        print("approve?", call.name, json.loads(call.arguments))
        state.approve(call)
    result = await Runner.run(desk, state, session=ann)
    print(result.final_output)
    result = await Runner.run(desk, "Thank you.", session=ann)
    print(result.final_output)


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "complaints.db"))
