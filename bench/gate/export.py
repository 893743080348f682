"""A judgement for programs: JSON, JUnit XML, and the reports and annotations of hosted CI."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET  # written here, never read
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bench.gate import naming
from bench.gate.decision import Decision
from bench.gate.exact import Finding
from bench.gate.judgement import Judgement

SCHEMA = 1


def as_json(judgement: Judgement) -> str:
    """Everything, on several lines."""
    built: dict[str, Any] = {
        "schema": SCHEMA,
        "exit_code": judgement.exit_code,
        "headline": judgement.headline,
        "base": judgement.base,
        "head": judgement.head,
        "counts": dict(judgement.counts),
        "decided_share": judgement.decided_share,
        "noisy_share": judgement.noisy_share,
        "problems": list(judgement.problems),
        "notes": list(judgement.notes),
        "decisions": [
            {"name": naming.named(one.case), **{k: v for k, v in msgspec.to_builtins(one).items() if k != "about"}}
            for one in judgement.decisions
        ],
        "findings": [{"name": naming.named(one.case), **msgspec.to_builtins(one)} for one in judgement.findings],
    }
    return json.dumps(built, indent=1, ensure_ascii=False, allow_nan=False)


# --- JUnit ----------------------------------------------------------------------------------------------------


def as_junit(judgement: Judgement) -> str:
    """A test case for each cell and each exact figure that differs.

    What fails the job is a failure, what cannot be compared an error, what is unclear or advisory is skipped.
    """
    suite = ET.Element("testsuite", name="attention-bench gate")
    for problem in judgement.problems:
        case = ET.SubElement(suite, "testcase", classname="attention-bench", name="comparable")
        ET.SubElement(case, "error", message=problem)
    for decision in judgement.decisions:
        _add(suite, f"time.{decision.case.variant}", naming.named(decision.case), decision, decision.why)
    for finding in judgement.findings:
        _add(suite, f"{finding.gate}.{finding.case.variant}", naming.named(finding.case), finding, _change(finding))
    suite.set("tests", str(len(suite)))
    for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _add(suite: ET.Element, classname: str, name: str, one: Decision | Finding, message: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(name))
    match one.fails:
        case "regression":
            ET.SubElement(case, "failure", message=_xml(message))
        case "incomparable":
            ET.SubElement(case, "error", message=_xml(message))
        case _ if isinstance(one, Decision) and (one.advisory or one.verdict == "unclear"):
            ET.SubElement(case, "skipped", message=_xml(message))


def _xml(words: str) -> str:
    """Without the characters that XML cannot hold at all."""
    return "".join(sign if sign >= " " or sign in "\t\n\r" else "�" for sign in words)


def _change(finding: Finding) -> str:
    return f"{finding.gate}: {finding.base} → {finding.head}" + (f" ({finding.note})" if finding.note else "")


# --- hosted CI ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Annotation:
    """One remark on a file of the change."""

    level: Literal["error", "warning", "notice"]
    title: str
    message: str
    variant: str | None = None


def remarks(judgement: Judgement) -> Iterator[Annotation]:
    """What fails the job, as errors; what else is worse or undecided, as warnings."""
    for problem in judgement.problems:
        yield Annotation("error", "not comparable", problem)
    for decision in judgement.decisions:
        if decision.fails in ("regression", "incomparable"):
            yield Annotation("error", decision.verdict, _remark(decision), decision.case.variant)
        elif decision.fails == "inconclusive" or decision.verdict == "slower":
            yield Annotation("warning", decision.verdict, _remark(decision), decision.case.variant)
    for finding in judgement.findings:
        if finding.fails is not None:
            message = f"{naming.named(finding.case)}: {_change(finding)}"
            yield Annotation("error", finding.gate, message, finding.case.variant)


def _remark(decision: Decision) -> str:
    ratio = "" if decision.ratio is None else f" ×{decision.ratio.value:.3f}"
    return f"{naming.named(decision.case)}{ratio}: {decision.why}"


def github(judgement: Judgement) -> list[str]:
    """Workflow commands, one a line."""
    return [
        f"::{one.level} title={_property(f'attention-bench: {one.title}')}::{_data(one.message)}"
        for one in remarks(judgement)
    ]


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


_SEVERITIES: Mapping[str, str] = {"error": "major", "warning": "minor", "notice": "info"}


def gitlab(judgement: Judgement) -> str:
    """A code quality report, which a merge request shows. A variant is named by the file that it would be in."""
    found = [
        {
            "description": f"attention-bench: {one.title}: {one.message}",
            "check_name": f"attention-bench/{one.title.replace(' ', '-')}",
            "fingerprint": hashlib.sha256(f"{one.title} {one.message}".encode()).hexdigest(),
            "severity": _SEVERITIES[one.level],
            "location": {
                "path": "README.md" if one.variant is None else f"variants/{one.variant}.py",
                "lines": {"begin": 1},
            },
        }
        for one in remarks(judgement)
    ]
    return json.dumps(found, indent=1, ensure_ascii=False)
