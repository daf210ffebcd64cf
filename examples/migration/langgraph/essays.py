"""Essays that are written, reviewed by a person, and written again: in LangGraph.

The same program in sapwood is `examples/essays.py`.
"""

import sys
from typing import TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


# --8<-- [start:graph]
class Essay(TypedDict, total=False):
    topic: str
    draft: str
    verdict: str


def write(essay: Essay) -> Essay:
    return {"draft": f"All about {essay['topic']}. {essay.get('verdict', '')}".strip()}


def review(essay: Essay) -> Essay:
    return {"verdict": interrupt(essay["draft"])}


graph = StateGraph(Essay)
graph.add_node("write", write)
graph.add_node("review", review)
graph.add_edge(START, "write")
graph.add_edge("write", "review")
graph.add_conditional_edges(
    "review", lambda essay: END if essay["verdict"] == "good" else "write"
)


# --8<-- [end:graph]
# --8<-- [start:use]
def main(data: str) -> None:
    with SqliteSaver.from_conn_string(data) as saver:
        app = graph.compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "oaks"}}
        essay = app.invoke({"topic": "oaks"}, thread)
        for verdict in ("Shorter.", "good"):
            print("draft:", essay["__interrupt__"][0].value)
            essay = app.invoke(Command(resume=verdict), thread)
        print("done:", essay["draft"])


# --8<-- [end:use]
if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "essays.db")
