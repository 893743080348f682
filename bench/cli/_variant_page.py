"""``list --markdown``: the variants as a page. What they take is asked from them, the rest is their own data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from variants._mask import EXAMPLES, Mask

if TYPE_CHECKING:
    from bench.sweep.messages import Entry
    from bench.sweep.scout import Scout
    from variants._contract import Workload

_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "grouped heads": {"kv_heads": 2},
    "fewer queries than keys": {"query_length": 512},
    "more queries than keys": {"key_length": 512},
    "a length that is no round number": {"query_length": 1021, "key_length": 1021},
    "values of another width": {"value_head_dim": 32},
    "a scale of its own": {"scale": 0.3},
    "training": {"mode": "fwd_bwd"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
}
_FAMILIES = {
    "exact": "Exact attention",
    "sparse": "Sparse",
    "low_rank": "Low rank",
    "hashing": "Hashing",
    "kernel": "Kernels of features",
    "recurrent": "Recurrent",
    "scoring": "Other scores",
    "positional": "Positions alone",
    "floor": "Floor",
}
_HEAD = """\
# Variants

Every attention that comes with the suite. This page is what `python -m bench list --markdown --device cpu` prints; a
test holds it to that.

Q, K and V are the queries, keys and values of a head, q, k and v their rows, N the length, D the channels of a head, H
the query heads and B the batch. s is the scale, 1/√D unless a workload says otherwise. Masks put −∞ in place of scores.
Costs are the growth in N that is claimed; what was measured is in reports. Masks and shapes are what a variant said
when it was asked about {shape} in {dtype} on a {device}: each term of the grammar alone, and joined to `causal` where
it is refused alone. What it lacks here, a device or a package, stands beside it; only there could it refuse more."""


@dataclass(slots=True)
class Answers:
    """What a variant takes. ``always`` are reasons that have nothing to do with what was asked: a device, a package."""

    taken: list[str] = field(default_factory=list)
    joint: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    shapes_refused: list[str] = field(default_factory=list)
    always: list[str] = field(default_factory=list)


def page(entries: Sequence[Entry], scout: Scout, plain: Workload) -> str:
    """The page in Markdown."""
    answers = _asked(entries, scout, plain)
    shape = f"{plain.batch}×{plain.heads}×{plain.query_length}×{plain.head_dim}"
    parts = [_HEAD.format(shape=shape, dtype=plain.dtype, device=plain.device.replace("cpu", "CPU"))]
    for family, title in _FAMILIES.items():
        members = [entry for entry in entries if entry.about.family == family]
        if members:
            parts.append(f"## {title}")
            parts += [_section(entry, answers[entry.name]) for entry in members]
    return "\n\n".join(parts)


# --- asking -------------------------------------------------------------------------------------------------------


def _asked(entries: Sequence[Entry], scout: Scout, plain: Workload) -> dict[str, Answers]:
    joined = [_with_causal(mask) for mask in EXAMPLES.values()]
    masks = [*dict.fromkeys([*EXAMPLES.values(), *joined])]
    reasons = _reasons(scout, ((entry, replace(plain, mask=mask)) for entry in entries for mask in masks))
    answers = {entry.name: _of_masks(dict(zip(masks, some, strict=True))) for entry, some in _by(entries, reasons)}
    homes = [(entry, replace(plain, mask=answers[entry.name].taken[0])) for entry in entries]
    reasons = _reasons(scout, ((entry, replace(home, **how)) for entry, home in homes for how in _SHAPES.values()))
    for entry, some in _by(entries, reasons):
        own = answers[entry.name]
        own.shapes_refused = [
            name for name, said in zip(_SHAPES, some, strict=True) if not set(said) <= set(own.always)
        ]
    return answers


def _reasons(scout: Scout, asked: Iterable[tuple[Entry, Workload]]) -> list[list[str]]:
    from bench.record import Case

    pairs = [*asked]
    cases = [Case(variant=entry.name, parameters=entry.parameters, workload=workload) for entry, workload in pairs]
    return [prospect.reasons for prospect in scout.survey(cases, {entry.name: entry.file for entry, _ in pairs})]


def _by(entries: Sequence[Entry], reasons: Sequence[list[str]]) -> Iterator[tuple[Entry, Sequence[list[str]]]]:
    each = len(reasons) // len(entries) if entries else 0
    for number, entry in enumerate(entries):
        yield entry, reasons[number * each : (number + 1) * each]


def _of_masks(reasons: Mapping[str, list[str]]) -> Answers:
    always = set.intersection(*map(set, reasons.values()))
    answers = Answers(always=sorted(always))
    for mask in EXAMPLES.values():
        joined = _with_causal(mask)
        if set(reasons[mask]) <= always:
            answers.taken.append(mask)
        elif joined not in EXAMPLES.values() and set(reasons[joined]) <= always:  # a prefix and causal is causal
            answers.joint.append(joined)
        else:
            answers.refused.append(mask)
    return answers


def _with_causal(mask: str) -> str:
    return str(Mask.parse(f"{EXAMPLES['causal']}+{mask}"))


# --- writing --------------------------------------------------------------------------------------------------------


def _section(entry: Entry, answers: Answers) -> str:
    parts = [f"### `{entry.name}`", entry.about.summary]
    if entry.equation:
        parts.append(f"```math\n{entry.equation}\n```")
    parts.append("\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in _facts(entry, answers))]))
    if entry.traps:
        parts.append("\n".join(f"- {trap}" for trap in entry.traps))
    return "\n\n".join(parts)


def _facts(entry: Entry, answers: Answers) -> Iterator[tuple[str, str]]:
    about = entry.about
    yield "cost", f"time {_growth(about.time_exponent)}, memory {_growth(about.memory_exponent)}"
    if entry.exact_when:
        yield "exact", entry.exact_when
    yield "masks", _masks(answers)
    refused = answers.shapes_refused
    yield "shapes", f"refuses {_listed(refused)}" if refused else "all"
    if answers.always:
        yield "lacks here", "; ".join(answers.always)
    if entry.parameters:
        yield "parameters", ", ".join(f"`{name}={_spelled(value)}`" for name, value in entry.parameters.items())
    if about.claims:
        yield "claimed", "; ".join(f"{claim.statement} ({claim.source})" for claim in about.claims)
    if about.paper:
        yield "paper", about.paper
    if entry.package:
        yield "package", entry.package


def _growth(exponent: float | None) -> str:
    match exponent:
        case None:
            return "unknown"
        case 1:
            return "O(N)"
        case 2:
            return "O(N²)"
        case _:
            return f"O(N^{exponent:g})"


def _masks(answers: Answers) -> str:
    refused = [f"`{mask}`" for mask in answers.refused]
    if not answers.joint and len(refused) < len(answers.taken):
        return f"all but {_listed(refused)}" if refused else "all"
    return ", ".join(f"`{mask}`" for mask in (*answers.taken, *answers.joint))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
