"""Reports of `pydantic_evals` as JUnit XML, and what makes them fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

if TYPE_CHECKING:
    from pydantic_evals.reporting import EvaluationReport

REPORT = "report"
"""The name of the case for what concerns all."""
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML does not allow."""


class Problem(NamedTuple):
    """Why a case, or a report, does not pass."""

    case: str
    kind: str
    """`failure` of an assertion, or `error` of the task or an evaluator."""
    text: str


def problems_of(report: EvaluationReport[Any, Any, Any]) -> list[Problem]:
    """Return why a report does not pass: assertions are gates, scores and labels are not."""
    found: list[Problem] = []
    for case in report.cases:
        for name, result in case.assertions.items():
            if not result.value:
                found.append(Problem(case.name, "failure", f"{name}: {result.reason or 'the assertion is false'}"))
        found += [Problem(case.name, "error", f"{one.name}: {one.error_message}") for one in case.evaluator_failures]
    found += [Problem(case.name, "error", case.error_message) for case in report.failures]
    found += [Problem(REPORT, "error", f"{one.name}: {one.error_message}") for one in report.report_evaluator_failures]
    return found


def junit(reports: Sequence[EvaluationReport[Any, Any, Any]]) -> bytes:
    """Return reports as JUnit XML: a suite for each, with scores, labels and metrics as properties of its cases."""
    root = Element("testsuites", name="sapwood eval")
    for report in reports:
        problems = problems_of(report)
        names = [*(case.name for case in report.cases), *(case.name for case in report.failures)]
        if any(one.case not in names for one in problems):
            names.append(REPORT)
        suite = SubElement(root, "testsuite", name=_text(report.name), tests=str(len(names)))
        for kind in ("failure", "error"):
            suite.set(f"{kind}s", str(len({one.case for one in problems if one.kind == kind})))
        suite.set("time", f"{sum(case.total_duration for case in report.cases):.3f}")
        cases: dict[str, Any] = {case.name: case for case in report.cases}
        for name in names:
            element = SubElement(suite, "testcase", classname=_text(report.name), name=_text(name))
            if (case := cases.get(name)) is not None:
                element.set("time", f"{case.total_duration:.3f}")
                _add_properties(element, case)
            for one in problems:
                if one.case == name:
                    SubElement(element, one.kind, message=_text(one.text))
    indent(root)
    return tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _add_properties(element: Element, case: Any) -> None:
    found: dict[str, Any] = {f"score.{name}": result.value for name, result in case.scores.items()}
    found |= {f"label.{name}": result.value for name, result in case.labels.items()}
    found |= {f"metric.{name}": value for name, value in case.metrics.items()}
    if found:
        properties = SubElement(element, "properties")
        for name, value in found.items():
            SubElement(properties, "property", name=_text(name), value=_text(str(value)))


def _text(value: str) -> str:
    return FORBIDDEN.sub("\ufffd", value)
