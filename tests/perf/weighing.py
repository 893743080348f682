"""Memory of calls whose bytes can be counted by hand: ``python -m tests.perf.weighing`` prints a table in Markdown.

The counts follow what each formula keeps at its worst moment. With H heads, lengths N, head dimension D, four bytes a
number and a batch of one, a matrix of all pairs is S = 4·H·N² bytes and a tensor of positions P = 4·H·N·D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import torch

import variants
from bench.measure.call import Call, Operands, load_backward
from bench.measure.memory import Profiled, weigh_cpu
from variants._contract import Mode, Workload

HEADS, HEAD_DIM = 8, 64
MIB = 1 << 20


def cases() -> Iterator[tuple[str, int, Mode, str, str, int]]:
    """Variant, length, mode, which figure, how it is counted, and the bytes."""
    for length in (1024, 2048):
        pairs, positions = 4 * HEADS * length**2, 4 * HEADS * length * HEAD_DIM
        yield "naive_sdpa", length, "fwd", "peak", "2 S (scores and weights)", 2 * pairs
        yield "naive_sdpa", length, "fwd", "output", "P", positions
        # the backward of the product needs the weights, that of the scores the scaled queries
        yield "naive_sdpa", length, "fwd_bwd", "saved", "S + P (weights, scaled queries)", pairs + positions
        statistic = 4 * HEADS * length
        yield "sdpa_flash", length, "fwd_bwd", "saved", "4·H·N (a log-sum-exp a row)", statistic


def weigh(name: str, length: int, mode: Mode) -> Profiled:
    """What the suite weighs."""
    variant = variants.find()[name]
    workload = Workload(heads=HEADS, kv_heads=HEADS, query_length=length, key_length=length, mode=mode)
    attend = variant.build(workload, variant.parameters())
    return weigh_cpu(Call(attend, Operands.of(workload).fresh(differentiable=mode != "fwd"), mode))


def table() -> str:
    """Counted against weighed."""
    figures: dict[str, Callable[[Profiled], int | None]] = {
        "peak": lambda profiled: profiled.weight.peak_bytes,
        "output": lambda profiled: profiled.weight.output_bytes,
        "saved": lambda profiled: profiled.weight.saved_bytes,
    }
    rows = ["| call | figure | by hand | counted, MiB | weighed, MiB | ratio |", "|---|---|---|---:|---:|---:|"]
    for name, length, mode, figure, formula, counted in cases():
        weighed = figures[figure](weigh(name, length, mode)) or 0
        sizes = f"{counted / MIB:.4g} | {weighed / MIB:.4g} | {weighed / counted:.4f}"
        rows.append(f"| {name} {length} {mode} | {figure} | {formula} | {sizes} |")
    return "\n".join(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_backward()
    click.echo(table())
