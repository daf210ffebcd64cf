"""What the desk of rivers.py has to answer, for `sapwood eval river_evals.py`."""

from dataclasses import dataclass

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

from rivers import KILOMETERS, Desk, app
from sapwood.evals import turn_task


@dataclass
class TellsLength(Evaluator[str, str]):
    """An assertion: it is a gate, so the command fails if it is false."""

    def evaluate(self, ctx: EvaluatorContext[str, str]) -> EvaluationReason:
        return EvaluationReason(
            f"{ctx.expected_output} km" in ctx.output, f"the answer is {ctx.output!r}"
        )


@dataclass
class AsksScout(Evaluator[str, str]):
    """Another assertion, about how the answer came about."""

    def evaluate(self, ctx: EvaluatorContext[str, str]) -> bool:
        return [one["tool"] for one in ctx.attributes["calls"]] == [
            "scout"
        ] and ctx.attributes["agents"] == ["Scout"]


@dataclass
class Brevity(Evaluator[str, str]):
    """A score: it is only reported."""

    def evaluate(self, ctx: EvaluatorContext[str, str]) -> float:
        return 1 / len(ctx.output.split())


dataset = Dataset(
    name="rivers",
    cases=[
        Case(
            name=river.lower(),
            inputs=f"How long is the {river}?",
            expected_output=str(length),
        )
        for river, length in KILOMETERS.items()
    ],
    evaluators=[TellsLength(), AsksScout(), Brevity()],
)
task = turn_task(app, Desk)
