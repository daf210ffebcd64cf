"""A support desk: customers chat in their own tickets, operators approve refunds."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from sapwood import (
    Agent,
    App,
    ChatAgent,
    Connection,
    Question,
    Refused,
    Settings,
    agent_tool,
    current_connection,
    expose,
    tool,
)
from sapwood.auth import ANY_CLIENT, JwtAuth, User
from sapwood.types import Address, PathSegment

SECRET = "keep this out of your repository: in a vault"  # noqa: S105 - made up


def is_operator(user: Any) -> bool:
    return "operator" in user.claims.get("roles", [])


# The models are functions, so that the example needs no API key.
async def book(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"The refund was handled: {last.content}"
    else:
        yield {0: DeltaToolCall("book_refund", '{"order": "A-99", "euros": 25}')}


async def serve(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield str(last.content)
    elif "close" in str(getattr(last, "content", "")):
        yield {0: DeltaToolCall("close_ticket", "{}")}
    else:
        yield {0: DeltaToolCall("refund_agent", '{"message": "Refund order A-99."}')}


# --8<-- [start:refunds]
class RefundAgent(ChatAgent):
    """Books refunds. Only operators may approve them."""

    model = FunctionModel(stream_function=book)
    migrations = (
        "CREATE TABLE refunds (item TEXT NOT NULL, euros INTEGER NOT NULL) STRICT",
    )

    @tool(requires_approval=True, approvers="operator")
    async def book_refund(self, order: str, euros: int) -> str:
        """Pay money back to the customer."""
        self.sql("INSERT INTO refunds VALUES (?, ?)", order, euros)
        return f"{euros} euros for {order}"

    async def booked(self) -> int:
        return self.sql("SELECT coalesce(sum(euros), 0) FROM refunds").scalar(int)


# --8<-- [end:refunds]


# --8<-- [start:ticket]
class Ticket(ChatAgent):
    """The conversation with one customer."""

    model = FunctionModel(stream_function=serve)
    tools = (agent_tool(RefundAgent),)
    create_from_url = True  # the desk lets customers create their own

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def close_ticket(self) -> str:
        """Close the ticket. The customer confirms it."""
        turn = self.turns.current()
        by = "the company" if turn is None or turn.user is None else turn.user
        return f"The ticket is closed, as {by} requested."

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        if is_operator(request.user):
            return None
        return PlainTextResponse("Refunds are for operators.", 403)


# --8<-- [end:ticket]


# --8<-- [start:desk]
class Desk(Agent):
    """The desk of one company. It has a ticket for each customer, by name."""

    async def on_before_connect(self, request: HTTPConnection) -> Response | None:
        return (
            None
            if is_operator(request.user)
            else PlainTextResponse("Operators only.", 403)
        )

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        if is_operator(request.user) or child.name == request.user.id:
            return None
        return PlainTextResponse("This is not your ticket.", 403)

    async def may_answer(self, user: User, question: Question) -> bool | str:
        if "trainee" in user.claims.get("roles", []):
            return "Trainees may only watch."
        if question.tool == "book_refund" and question.arguments["euros"] > 1000:
            return (
                "Refunds above 1,000 euros are approved by the accounting department."
            )
        return True

    def is_watch_only(self, connection: Connection) -> bool:
        return "trainee" in connection.user.claims.get("roles", [])

    @expose
    async def open_ticket(self, customer: str) -> None:
        connection = current_connection()
        if connection is not None and not is_operator(connection.user):
            raise Refused("Only operators open tickets.")
        await self.sub_agent(Ticket, customer)


# --8<-- [end:desk]


# --8<-- [start:app]
def may_access(user: User, address: Address, action: str) -> bool:
    """Allow users to open the desk of their own company."""
    return user.claims.get("company") == address.name


def make_app(folder: str) -> App:
    return App(
        agents=[Desk],
        authenticate=JwtAuth(SECRET, algorithms=["HS256"], audience="desk"),
        authorize=may_access,
        settings=Settings(data=folder),
    )


app = make_app("desk-data")
# --8<-- [end:app]


def token_for(user: str, *roles: str, company: str = "acme") -> str:
    claims = {
        "sub": user,
        "aud": "desk",
        "exp": time.time() + 600,
        "company": company,
        "roles": list(roles),
    }
    return jwt.encode(claims, SECRET, algorithm="HS256")


async def main(folder: str) -> None:
    async with make_app(folder) as app:
        desk = await app.get_agent(Desk, "acme")
        await desk.open_ticket("ann")
        ticket = await app.get_agent(Desk, "acme", sub=((Ticket, "ann"),))
        turn = asyncio.create_task(ticket.send("I want my money back."))
        questions: list[Question] = []
        async for _ in desk.subscribe(depth="tree"):
            if questions := await desk.questions.list():
                break
        (question,) = questions
        print("asked:", question.tool, question.arguments)
        await desk.questions.approve(question)
        print("ann reads:", (await turn).text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["token"]:
        sys.exit(print(token_for(*sys.argv[2:])))
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "desk-data"))
