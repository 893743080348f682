"""Paired cells with figures that are made up: normal log-ratios of a given size and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.gate import decision
from bench.gate.pairs import PairedCell, Side
from bench.record import About, Case, Fidelity
from variants._contract import Workload

ABOUT = About(family="exact", exact=True, time_exponent=2, memory_exponent=1)
MEASURED = Side(
    status="measured",
    peak_bytes=1000,
    useful_flops=10,
    issued_flops=20,
    dispatched=("aten::bmm", "aten::softmax"),
    recompiles=0,
    graph_breaks=0,
    own_error=1e-7,
    tolerance=1e-5,
    fidelity=Fidelity(relative_error=0.5, cosine=0.9, mass_recall=0.8),
)


def case(variant="naive_sdpa", length=1024, **workload):
    return Case(variant=variant, workload=Workload(query_length=length, key_length=length, **workload))


def cell(values=(), *, base=MEASURED, head=MEASURED, of=None, **more):
    return PairedCell(case=of or case(), about=ABOUT, base=base, head=head, screened=tuple(values), **more)


def draw(random, pairs, *, slower=0.0, deviation=0.01):
    return tuple(random.normal(np.log1p(slower), deviation, pairs))


def suite(random, *, cells=40, screening=12, confirming=20, deviation=0.01, slower=None, calibrated=True):
    """A whole job as it would be done: screen everything, measure suspects again. ``slower`` by number of cell."""
    slower = slower or {}
    found = [
        cell(
            draw(random, screening, slower=slower.get(number, 0.0), deviation=deviation),
            of=case(f"variant_{number}"),
            noise=deviation if calibrated else None,
        )
        for number in range(cells)
    ]
    again = {id(one) for one in decision.suspects(found)}
    return [
        replace(one, confirmed=draw(random, confirming, slower=slower.get(number, 0.0), deviation=deviation))
        if id(one) in again
        else one
        for number, one in enumerate(found)
    ]
