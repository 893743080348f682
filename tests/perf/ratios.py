"""Our variants against what else computes the same: time and peak memory as ratios of calls that took turns.

``python -m tests.perf.ratios PAIR`` measures a pair in this process and prints its figures as JSON. Both sides have the
same parameters and the same inputs; they take turns block by block, on tensors at new addresses for each, and change
who is first. A ratio is that of two neighbouring blocks, so that what slows the machine down slows both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

import variants
from bench import stats
from bench.machine.host import describe_host
from bench.measure.call import Call, Operands, load_backward, scatterer
from bench.measure.clock_cpu import CpuClock
from bench.measure.memory import weigh_cpu
from bench.sweep.supervisor import ALLOCATOR
from variants._contract import Attend, Mode, Workload

BOTH: tuple[Mode, ...] = ("fwd", "fwd_bwd")
LENGTHS = (1024, 2048, 4096, 8192)
HEADS, HEAD_DIM = 8, 64

FEWEST_ROUNDS, MOST_ROUNDS = 3, 21
BUDGET_SECONDS = 4.0  # of a comparison, once the fewest rounds are done


@dataclass(frozen=True, slots=True)
class Side:
    """A variant with some parameters, or a formula in a few lines of torch."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    formula: Callable[[Workload], Attend] | None = None

    def build(self, workload: Workload) -> Attend:
        """Ready to be called."""
        if self.formula is not None:
            return self.formula(workload)
        return self._variant.build(workload, self._variant.parameters(**self.parameters))

    def obstacles(self, workload: Workload) -> list[str]:
        """Why it cannot be."""
        if self.formula is not None:
            return []
        return [*self._variant.obstacles(workload, self._variant.parameters(**self.parameters))]

    @property
    def _variant(self) -> Any:
        return variants.find()[self.name]


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and theirs, in the modes that ``faster`` has.

    ``faster`` is by how much ours is to be faster, ``lighter`` by how much less it is to hold; 0 promises nothing.
    ``less_at`` are lengths at which ``faster`` is out of reach, with what is reached there, and ``floor`` says why.
    ``is_linear``: ours is to grow no faster in memory than N.
    """

    name: str
    ours: Side
    theirs: Side
    faster: Mapping[Mode, float]
    lighter: Mapping[Mode, float] = field(default_factory=dict)
    lengths: Sequence[int] = LENGTHS
    mask: str = "full"
    is_linear: bool = True
    less_at: Mapping[int, float] = field(default_factory=dict)
    floor: str = ""

    def promised(self, mode: Mode, length: int) -> float:
        """By how much ours is to be faster at a length."""
        return self.less_at.get(length, self.faster[mode])

    def workloads(self) -> Iterator[Workload]:
        """The problems of the pair, short ones first."""
        for mode in self.faster:
            for length in self.lengths:
                yield Workload(
                    heads=HEADS,
                    kv_heads=HEADS,
                    query_length=length,
                    key_length=length,
                    head_dim=HEAD_DIM,
                    mask=self.mask,
                    mode=mode,
                )


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. ``speedups`` are theirs over ours, round by round; peaks are of one call each."""

    pair: str
    length: int
    mode: Mode
    ours_seconds: float
    theirs_seconds: float
    speedups: list[float]
    ours_peak_bytes: int
    theirs_peak_bytes: int

    @property
    def speedup(self) -> stats.Estimate:
        """By how much ours is faster, with its 95% interval."""
        return stats.estimate(self.speedups)

    @property
    def saving(self) -> float:
        """By how much less ours holds at its peak."""
        return self.theirs_peak_bytes / self.ours_peak_bytes


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why a comparison was not made."""

    pair: str
    length: int
    mode: Mode
    reasons: list[str]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A pair's comparisons, and what they were made with."""

    ratios: list[Ratio]
    refused: list[Refused]
    torch_version: str
    cpu: str
    cores: int | None


# --- what the formulas of papers are in plain torch -----------------------------------------------------------------


def linear_attention_formula(workload: Workload) -> Attend:
    """φ(Q)(φ(K)ᵀV) over φ(Q)Σφ(K), with φ = elu + 1; causal by a sum of outer products so far (arXiv 2006.16236)."""
    causal = workload.mask == "causal"

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        q, k = (torch.nn.functional.elu(tensor) + 1 for tensor in (query, key))
        if causal:
            state = torch.einsum("bhnd,bhne->bhnde", k, value).cumsum(dim=2)
            total = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(dim=2))
            return torch.einsum("bhnd,bhnde->bhne", q, state) / total[..., None]
        total = torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))
        return (q @ (k.mT @ value)) / total[..., None]

    return attend


# --- the pairs ------------------------------------------------------------------------------------------------------

_LEARNED = {"projection": "learned"}
_EVALUATION = {"training": False}  # as the package is in inference: its random blocks cost nothing to draw
PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            "reformer_lsh",
            Side("reformer_lsh"),
            Side("reformer_pytorch"),
            faster={"fwd": 2, "fwd_bwd": 1.5},
            lighter={"fwd": 3, "fwd_bwd": 3},
        ),
        Pair(
            "linformer", Side("linformer", _LEARNED), Side("linformer_pytorch", _LEARNED), faster=dict.fromkeys(BOTH, 1)
        ),
        Pair("linformer, pooling", Side("linformer"), Side("linformer_pytorch"), faster=dict.fromkeys(BOTH, 1)),
        Pair("bigbird", Side("bigbird"), Side("transformers_bigbird", _EVALUATION), faster={"fwd": 2}),
        Pair(
            "bigbird, training",
            Side("bigbird"),
            Side("transformers_bigbird"),
            faster={"fwd_bwd": 2},
            less_at={1024: 1.6},
            floor=(
                "At 1k the blocks cover 55% of all pairs, so that the matrix which transformers fills besides is no "
                "large part of its work yet. Three quarters of bigbird's time are then torch's fused kernels, which "
                "compute what is in sight and nothing else; the rest gathers keys and adds up their gradients."
            ),
        ),
        Pair("bigbird, compiled", Side("bigbird"), Side("flex_bigbird"), faster={"fwd": 1}),
        Pair("local, compiled", Side("local"), Side("flex_local"), faster={"fwd": 1}),
        Pair("chunked_mha", Side("chunked_mha"), Side("naive_sdpa"), faster={"fwd": 1}),
        Pair(
            "chunked_mha, training", Side("chunked_mha"), Side("naive_sdpa"), faster={"fwd_bwd": 0}, lengths=LENGTHS[:3]
        ),
        Pair(
            "chunked_mha, fused",
            Side("chunked_mha"),
            Side("sdpa_flash"),
            faster=dict.fromkeys(BOTH, 0),
            lighter=dict.fromkeys(BOTH, 1 / 4),
            lengths=LENGTHS[:3],
        ),
        Pair("performer", Side("performer"), Side("performer_pytorch"), faster=dict.fromkeys(BOTH, 1)),
        Pair(
            "performer, causal",
            Side("performer"),
            Side("performer_pytorch"),
            faster=dict.fromkeys(BOTH, 1),
            lengths=LENGTHS[:2],
            mask="causal",
        ),
        Pair("nystrom", Side("nystrom"), Side("nystrom_attention"), faster=dict.fromkeys(BOTH, 1)),
        Pair(
            "linear_attention",
            Side("linear_attention"),
            Side("its formula in plain torch", formula=linear_attention_formula),
            faster={"fwd": 1},
            less_at={1024: 0.9},
            floor=(
                "elu(x) + 1 takes two passes over the numbers; exp(min(x, 0)) + max(x, 0), the same but for what that "
                "sum rounds away, takes four. Pieces that fit the cache win that back once the whole does not."
            ),
        ),
        Pair(
            "linear_attention, training",
            Side("linear_attention"),
            Side("its formula in plain torch", formula=linear_attention_formula),
            faster={"fwd_bwd": 1},
        ),
        Pair(
            "linear_attention, causal",
            Side("linear_attention"),
            Side("its formula in plain torch", formula=linear_attention_formula),
            faster=dict.fromkeys(BOTH, 1),
            lengths=LENGTHS[:2],
            mask="causal",
        ),
    )
}


# --- measuring ------------------------------------------------------------------------------------------------------


def kept(folder: Path | None, pair: Pair) -> Figures:
    """The figures of a pair: those in a folder, if they are there, else from a fresh process, and then kept there."""
    if folder is None:
        return measured_apart(pair.name)
    file = folder / f"{pair.name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(measured_apart(pair.name)))
    return msgspec.json.decode(file.read_bytes(), type=Figures)


def measured_apart(name: str) -> Figures:
    """The figures of a pair, from a fresh process."""
    command = [sys.executable, "-m", "tests.perf.ratios", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **ALLOCATOR})
    return msgspec.json.decode(done.stdout, type=Figures)


def measured_here(pair: Pair) -> Figures:
    """Every comparison of a pair, on one thread."""
    torch.set_num_threads(1)
    load_backward()
    ratios, refused = [], []
    for workload in pair.workloads():
        reasons = [*pair.ours.obstacles(workload), *pair.theirs.obstacles(workload)]
        if reasons:
            refused.append(Refused(pair=pair.name, length=workload.query_length, mode=workload.mode, reasons=reasons))
        else:
            ratios.append(compare(pair, workload))
    machine = describe_host("cpu")
    return Figures(
        ratios=ratios,
        refused=refused,
        torch_version=str(torch.__version__),
        cpu=machine.cpu or machine.device_name,
        cores=machine.cores,
    )


def compare(pair: Pair, workload: Workload) -> Ratio:
    """Peaks, then rounds of a block each, ours first in every other one."""
    attends = [side.build(workload) for side in (pair.ours, pair.theirs)]
    operands = Operands.of(workload)
    with torch.set_grad_enabled(workload.mode != "fwd"):
        peaks = [
            weigh_cpu(Call(attend, operands.fresh(differentiable=workload.mode != "fwd"), workload.mode)).weight
            for attend in attends
        ]
    clocks = [CpuClock(scatterer(attend, operands, workload.mode)) for attend in attends]
    ours, theirs = (blocks[1:] for blocks in take_turns(clocks))  # the first round warms up
    return Ratio(
        pair=pair.name,
        length=workload.query_length,
        mode=workload.mode,
        ours_seconds=statistics.median(ours),
        theirs_seconds=statistics.median(theirs),
        speedups=[their / our for our, their in zip(ours, theirs, strict=True)],
        ours_peak_bytes=peaks[0].peak_bytes or 1,
        theirs_peak_bytes=peaks[1].peak_bytes or 1,
    )


def take_turns(clocks: Sequence[CpuClock]) -> tuple[list[float], ...]:
    """Seconds of a call in each round, of every clock; one round more than the fewest, or as many as time allows."""
    blocks: tuple[list[float], ...] = tuple([] for _ in clocks)
    start = clocks[0].now()
    while len(blocks[0]) <= FEWEST_ROUNDS or (
        len(blocks[0]) <= MOST_ROUNDS and clocks[0].now() - start < BUDGET_SECONDS
    ):
        turns = [*zip(clocks, blocks, strict=True)]
        for clock, seconds in turns if len(blocks[0]) % 2 else reversed(turns):
            seconds.append(clock.sample().seconds)
    return blocks


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measured_here(PAIRS[sys.argv[1]])))
