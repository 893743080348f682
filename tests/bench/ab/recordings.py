"""Made-up recordings of the self-test: known noise, known slow-downs."""

from __future__ import annotations

import math
import random

from bench.ab.recording import BURDENS, GROUPS, HEAVIER, bears_burden
from bench.record import Case, Settings
from tests.bench.runs import measured, record
from variants._contract import Workload

VARIANTS = ("naive_sdpa", "sdpa_flash", "bigbird")
CASES = [
    Case(variant=variant, workload=Workload(query_length=length, key_length=length, mode=mode))
    for variant in VARIANTS
    for length in (128, 256, 512)
    for mode in ("fwd", "bwd")
]
SECONDS = 0.002


def recorded(rounds=60, *, noise=0.004, seed=1, cases=CASES, drift=0.05, group_of_round=None):
    """Records of so many rounds of each group. ``noise``: the standard deviation of a pair's log-ratio."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    groups = [group for _ in range(rounds) for group in ("alike", "burdened")] + ["heavier"]
    found = []
    for number, group in enumerate(groups):
        level = math.exp(draw.gauss(0, drift))  # the machine is quicker now and then
        for side in GROUPS[group]:
            what = BURDENS.get(side)
            for case in cases:
                if group != "alike" and not bears_burden(case):
                    continue
                weighed = what is not None and what.weighs_on(case.workload)
                share = what.share if weighed else 0.0
                middle = SECONDS * level * (1 + share) * math.exp(draw.gauss(0, noise / math.sqrt(2)))
                outcome = measured(
                    [middle * (1 + draw.gauss(0, 0.001)) for _ in range(8)],
                    peak_mib=1.5 if side == HEAVIER else 1.0,
                    conditions={"stage": group},
                )
                one = record(
                    case.variant,
                    outcome,
                    process=number,
                    run_id=f"20240301-120000-abc-{side}",
                    settings=Settings(threads=1),
                    length=case.workload.query_length,
                    mode=case.workload.mode,
                    at=f"2024-03-01T12:{number // 4:02d}:{15 * (number % 4):02d}+00:00",
                )
                found.append(one)
    return found
