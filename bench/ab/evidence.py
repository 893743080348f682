"""From the records of both sides to paired cells, which the gate decides.

A record's ``process`` is the number of its pair, and its condition ``stage`` says what the pair was for.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.gate.inference import noise_of, pseudo_median
from bench.gate.pairs import PairedCell, Side, log_ratio
from bench.record import Case, Measured, Record

SCREENING, CONFIRMING = "screening", "confirming"
STAGE = "stage"


def paired(
    base: Iterable[Record], head: Iterable[Record], calibration: Mapping[str, float] | None = None
) -> list[PairedCell]:
    """A cell for every case that a side has, in the order of their first records.

    ``calibration``: the noise of identical code by the key of a case. Where it has none, the noise is what base's
    processes tell: see :func:`own_noise`.
    """
    by_case: dict[str, tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for number, records in enumerate((base, head)):
        for record in records:
            by_case[record.case.key()][number].append(record)
    return [_cell(*both, (calibration or {}).get(key)) for key, both in by_case.items()]


def _cell(base: Sequence[Record], head: Sequence[Record], noise: float | None) -> PairedCell:
    known = (base or head)[0]
    screened = ratios(base, head, SCREENING)
    if noise is None:
        noise = own_noise(medians(base, SCREENING), screened)
    return PairedCell(
        case=known.case,
        about=known.about,
        base=Side.of(base),
        head=Side.of(head),
        screened=screened,
        confirmed=ratios(base, head, CONFIRMING),
        noise=noise,
    )


def medians(records: Iterable[Record], stage: str) -> dict[int, float]:
    """The median seconds of each process of a stage, by the number of its pair."""
    return {number: statistics.median(seconds) for number, seconds in _blocks(records, stage).items()}


def ratios(base: Sequence[Record], head: Sequence[Record], stage: str) -> tuple[float, ...]:
    """The log-ratio of each pair of a stage that was measured on both sides."""
    under, over = _blocks(base, stage), _blocks(head, stage)
    case = (base or head)[0].case
    return tuple(pair_ratio(over[pair], under[pair], case) for pair in sorted(under) if pair in over)


def pair_ratio(head_seconds: Sequence[float], base_seconds: Sequence[float], case: Case) -> float:
    """The pseudo-median log-ratio of blocks that lie side by side; of the medians, where blocks have no partners.

    Raises:
        NotComparableError: a time that is not positive and finite.

    """
    if len(head_seconds) != len(base_seconds):
        return log_ratio(statistics.median(head_seconds), statistics.median(base_seconds), case)
    return pseudo_median([log_ratio(*pair, case) for pair in zip(head_seconds, base_seconds, strict=True)])


def _blocks(records: Iterable[Record], stage: str) -> dict[int, list[float]]:
    return {
        record.process: record.outcome.seconds
        for record in records
        if isinstance(record.outcome, Measured)
        and record.outcome.seconds
        and record.outcome.conditions.get(STAGE) == stage
    }


def are_pairs(base: Sequence[Record], head: Sequence[Record]) -> bool:
    """Whether these are the two files of one job."""
    jobs = [{record.run_id.rpartition("-")[::2] for record in records} for records in (base, head)]
    if any(len(found) != 1 for found in jobs):
        return False
    ((one, base_name),), ((other, head_name),) = jobs
    return one == other and (base_name, head_name) == ("base", "head")


def own_noise(base_seconds: Mapping[int, float], screened: Sequence[float]) -> float | None:
    """The standard deviation of a pair of identical code, as far as one job can tell.

    Base's processes of neighbouring pairs ran identical code, though not at the same time, so that they differ by more
    than those of a pair. Those of a pair ran at the same time, though maybe not identical code, so that they vary by no
    less than if they had. Both overestimate, and so the smaller one counts: a head that varies excuses nothing.
    """
    pairs = sorted(base_seconds)
    neighbours = [
        math.log(base_seconds[later] / base_seconds[earlier])
        for earlier, later in zip(pairs[::2], pairs[1::2], strict=False)
    ]
    told = [noise for noise in (noise_of(neighbours), noise_of(screened)) if noise is not None]
    return min(told, default=None)
