"""What Long Range Arena published of the same mechanisms, beside what was measured here.

Sources: "Long Range Arena: A Benchmark for Efficient Transformers" (2020, arXiv 2011.04006), accuracies as in the
leaderboard of its repository of 2020-11-08, speed and memory as in the paper's Table 2; "Nyströmformer" (2021, arXiv
2102.03902) and "Skyformer" (2021, arXiv 2111.00035) for later averages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench import stats, wording
from bench.cells import Cell, Contender, Ground
from bench.fidelity import comparison
from bench.fidelity.trial import TASK, Trained, TrialRecord
from bench.report import markdown
from bench.report.sources import Family, is_real, spread

TASKS = ("ListOps", "Text", "Retrieval", "Image", "Path")
LENGTHS = (1024, 2048, 3072, 4096)
_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Published:
    """A model of the paper, and the variants here that compute its mechanism.

    ``accuracies`` in percent, one for each of :data:`TASKS`, and their published ``average``. ``steps_per_second`` and
    ``gigabytes`` on the Text task at :data:`LENGTHS`, batch 32 on 4×4 TPU v3, of the whole model in training.
    """

    model: str
    variants: tuple[str, ...]
    accuracies: tuple[float, ...]
    average: float
    steps_per_second: tuple[float, ...] = ()
    gigabytes: tuple[float, ...] = ()
    later: tuple[float, float] | None = None  # averages in the harness of Nyströmformer, and of Skyformer


_EXACT = ("naive_sdpa", "sdpa_flash", "sdpa_math", "flex")
PUBLISHED = (
    Published("Transformer", _EXACT, (36.37, 64.27, 57.46, 42.44, 71.40), 54.39,
              (8.1, 4.9, 2.3, 1.4), (0.85, 2.65, 5.51, 9.48), (58.8, 57.4)),
    Published("Local attention", ("local", "flex_local"), (15.82, 52.98, 53.39, 41.46, 66.63), 46.06,
              (9.2, 8.4, 7.4, 7.4), (0.42, 0.76, 1.06, 1.37)),
    Published("Linear Transformer", ("linear_attention",), (16.13, 65.90, 53.09, 42.34, 75.30), 50.55,
              (9.1, 9.3, 8.6, 7.8), (0.37, 0.57, 0.80, 1.03)),
    Published("Reformer", ("reformer_lsh", "reformer_pytorch"), (37.27, 56.10, 53.40, 38.07, 68.50), 50.67,
              (4.4, 2.2, 1.5, 1.1), (0.48, 0.99, 1.53, 2.28), (55.0, 59.0)),
    Published("Linformer", ("linformer", "linformer_pytorch"), (35.70, 53.94, 52.27, 38.56, 76.34), 51.36,
              (9.3, 9.1, 8.5, 7.7), (0.37, 0.55, 0.99, 0.99), (55.6, 54.7)),
    Published("Performer", ("performer", "performer_pytorch"), (18.01, 65.40, 53.82, 42.77, 77.05), 51.41,
              (9.5, 9.4, 8.7, 8.0), (0.37, 0.59, 0.82, 1.06), (53.6, 58.0)),
    Published("Synthesizer", (), (36.99, 61.68, 54.67, 41.61, 69.45), 52.88),
    Published("BigBird", ("bigbird", "flex_bigbird"), (36.05, 64.02, 59.29, 40.83, 74.87), 55.01,
              (7.4, 3.9, 2.7, 1.5), (0.77, 1.49, 2.18, 2.88)),
)  # fmt: skip

CAVEATS = (
    (
        "The order of the models does not survive re-implementation: two later runs in PyTorch rank them otherwise, "
        "and otherwise than each other. Nothing here claims to reproduce it."
    ),
    "ListOps' tokenizer dropped the brackets until 2021-03, so that its sequences could not be parsed.",
    "The released configurations give the Performer two random features and the Linformer ranks of 16 to 32.",
    "The test set of the Text task served as validation set.",
    (
        "Speeds and memory are of whole models in training on TPUs; here they are of the bare attention. Exponents can "
        "be set beside each other, seconds cannot."
    ),
    "Accuracies are of models trained with the mechanism; relative errors are of one that was not.",
)


@dataclass(frozen=True, slots=True)
class Ours:
    """By variant, what this report has to set beside them, as it is written. Empty parts have no column."""

    errors: Mapping[str, str]
    errors_on: str
    accuracies: Mapping[str, str]
    accuracies_on: str
    time: Mapping[str, str]
    memory: Mapping[str, str]


def ours(gathered: Mapping[Ground, Sequence[Cell]], families: Sequence[Family], trials: Sequence[TrialRecord]) -> Ours:
    """The error on the first real source, the accuracy on the first task that may be ranked, and fitted exponents."""
    errors, source = _errors(families)
    accuracies, task = _accuracies(trials)
    time, memory = _exponents(gathered)
    return Ours(errors, source, accuracies, task, time, memory)


def _errors(families: Sequence[Family]) -> tuple[dict[str, str], str]:
    for family in families:
        for source in filter(is_real, family.sources):
            found = {}
            for place in reversed(family.places):  # the first place has the last word
                for contender, cells in family.at(source, place).items():
                    if not contender.sibling:
                        found[contender.variant] = spread([cell.relative_error for cell in cells])
            return found, source
    return {}, ""


def _accuracies(trials: Sequence[TrialRecord]) -> tuple[dict[str, str], str]:
    for group in comparison.groups(trials):
        if group[0].case.kind == TASK and comparison.refusal(group) is None:
            found: dict[str, list[float]] = {}
            for record in group:
                if isinstance(record.outcome, Trained):
                    found.setdefault(record.case.variant, []).append(record.outcome.final_accuracy)
            named = {variant: f"{statistics.mean(values):.3f}" for variant, values in found.items()}
            return named, group[0].case.task
    return {}, ""


def _exponents(gathered: Mapping[Ground, Sequence[Cell]]) -> tuple[dict[str, str], dict[str, str]]:
    """Of time and memory in a forward, on the first ground and mask with two lengths or more of a variant."""
    wanted = {variant for one in PUBLISHED for variant in one.variants}
    series: dict[tuple[Ground, str], dict[Contender, list[Cell]]] = {}
    for ground, cells in gathered.items():
        for cell in cells:
            if cell.mode == "fwd" and cell.contender.variant in wanted and not cell.contender.sibling:
                series.setdefault((ground, cell.mask), {}).setdefault(cell.contender, []).append(cell)
    time: dict[str, str] = {}
    memory: dict[str, str] = {}
    for found in series.values():
        for contender, members in found.items():
            name = contender.variant
            fitted = stats.growth({cell.length: cell.samples for cell in members if cell.samples})
            held = stats.fixed_growth({cell.length: cell.peak_bytes for cell in members if cell.peak_bytes})
            if fitted is not None:
                time.setdefault(name, wording.exponent(fitted.exponent))
            if held is not None:
                memory.setdefault(name, wording.exponent(held.exponent))
    return time, memory


# --- told ---------------------------------------------------------------------------------------------------------


def section(own: Ours) -> str:
    """Both tables, the later averages and the caveats."""
    parts = [
        (
            "Accuracies in percent (Long Range Arena, arXiv 2011.04006, leaderboard of 2020-11-08)"
            f"{', beside what was found here' if own.errors or own.accuracies else ''}:"
        ),
        _accuracy_table(own),
        (
            "Steps a second and GB on its Text task at 1k, 2k, 3k and 4k (its Table 2), and exponents of N fitted to "
            "them; *here*: fitted to the bare attention in this report:"
        ),
        _cost_table(own),
        (
            "Averages as published, and in two later runs: in the harness of Nyströmformer (arXiv 2102.03902) and of "
            "Skyformer (arXiv 2111.00035, three seeds):"
        ),
        _later_table(),
        "\n".join(f"- {caveat}" for caveat in CAVEATS),
    ]
    return "\n\n".join(parts)


def _accuracy_table(own: Ours) -> str:
    columns = [(f"here: error on {own.errors_on}", own.errors), (f"here: {own.accuracies_on}", own.accuracies)]
    columns = [(heading, found) for heading, found in columns if found]
    rows = [
        [
            one.model,
            *(f"{accuracy:.2f}" for accuracy in one.accuracies),
            f"{one.average:.2f}",
            *(_first(found, one.variants) for _, found in columns),
        ]
        for one in PUBLISHED
    ]
    return markdown.table(["model", *TASKS, "average", *(markdown.text(name) for name, _ in columns)], rows)


def _cost_table(own: Ours) -> str:
    rows = [
        [
            one.model,
            " / ".join(f"{speed:g}" for speed in one.steps_per_second),
            f"{exponent([1 / speed for speed in one.steps_per_second]):.2f}",
            _first(own.time, one.variants),
            " / ".join(f"{size:g}" for size in one.gigabytes),
            f"{exponent(one.gigabytes):.2f}",
            _first(own.memory, one.variants),
        ]
        for one in PUBLISHED
        if one.steps_per_second
    ]
    return markdown.table(["model", "steps/s", "time", "here", "GB", "memory", "here"], rows)


def _later_table() -> str:
    rows = [[one.model, f"{one.average:.2f}", *map(str, one.later)] for one in PUBLISHED if one.later]
    return markdown.table(["model", "published", "Nyströmformer's run", "Skyformer's run"], rows)


def exponent(values: Iterable[float]) -> float:
    """Least-squares, of something at all of :data:`LENGTHS`."""
    return float(np.polyfit(np.log(LENGTHS), np.log(list(values)), 1)[0])


def _first(found: Mapping[str, str], variants: Iterable[str]) -> str:
    """Of the first of these variants that is there, named where its name is not that of the mechanism."""
    return next((f"{found[variant]} ({markdown.code(variant)})" for variant in variants if variant in found), _NOTHING)
