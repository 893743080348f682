"""The attention of the package performer-pytorch, bare, with the directions of ``performer``.

Its formula adds ε to every feature after dividing by exp of the largest, which for keys is that of the whole sequence,
in causal attention too: a later key moves the ε of all before it, and so what they give. Its causal scan without the
CUDA kernel of another package cuts a sequence into 128 pieces and keeps an outer product per position.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from typing import TYPE_CHECKING, Any

import torch

from variants import _kernelized
from variants._contract import Attend, Complexity, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._performer import CLAIMS, PAPER, Parameters, directions
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_FEATURE_EPSILON = 1e-4  # the package's, as the next
_SUM_EPSILON = 1e-6


def build(workload: Workload, parameters: Parameters) -> Attend:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it compares versions as one did before
        from performer_pytorch import FastAttention
    causal = Mask.parse(workload.mask).causal
    # it draws directions that are not used, and prints that it has no CUDA kernel
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        module = FastAttention(workload.head_dim, nb_features=parameters.count(workload), causal=causal)
    module.projection_matrix = directions(workload, parameters).to(workload.device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = module(query, expand_heads(key, workload), expand_heads(value, workload))
        return output

    return attend


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    mask = Mask.parse(workload.mask)
    reasons = _kernelized.obstacles(workload, name="Performer")
    if mask.padding is not None:
        reasons.append(
            f"{mask}: the package's attention takes no mask; its layers zero values, but padded keys still count"
        )
    if mask.causal and not workload.is_square:
        reasons.append(
            "the package's causal scan needs queries and keys of equal lengths, "
            f"got {workload.query_length} and {workload.key_length}"
        )
    if workload.scale is not None:
        reasons.append(f"the package scales by the root of the head dimension, and cannot by {workload.scale:g}")
    if workload.dtype == "bfloat16" and mask.causal:
        reasons.append("the package's causal sums are in bfloat16 themselves, and round more than its formula does")
    if workload.dtype == "float16":
        reasons.append("the package divides by sums that are near zero in float16, and gives infinities")
    if importlib.util.find_spec("performer_pytorch") is None:
        reasons.append("performer-pytorch is not installed; pip install 'attention-bench[packages]'")
    elif importlib.util.find_spec("distutils") is None:
        reasons.append("performer-pytorch needs distutils, which left Python in 3.12; pip install setuptools")
    return reasons


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Parameters,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """The package's formula: φ(Q)φ(K)ᵀ with an ε in each feature, and causal one more in the sum of each."""
    del routing
    rows = rows.to(query.device)
    weights = directions(workload, parameters).to(query)
    queries = _features(query[:, :, rows], weights, over=(-1,))
    keys = _features(expand_heads(key, workload), weights, over=(-1, -2))
    allowed, _ = Pattern.of(workload, query.device).rows(rows)
    pairs = (queries @ keys.mT).masked_fill(~allowed, 0)
    total = pairs.sum(dim=-1, keepdim=True)
    if Mask.parse(workload.mask).causal:
        total = total + _SUM_EPSILON * queries.sum(dim=-1, keepdim=True)
    return pairs @ expand_heads(value, workload) / total


def _features(x: Tensor, weights: Tensor, *, over: tuple[int, ...]) -> Tensor:
    x = x * x.shape[-1] ** -0.25
    projected = x @ weights.mT
    largest = projected.detach().amax(dim=over, keepdim=True)
    features = (projected - x.square().sum(dim=-1, keepdim=True) / 2 - largest).exp() + _FEATURE_EPSILON
    result: Tensor = features / len(weights) ** 0.5
    return result


def flops(workload: Workload, parameters: Parameters) -> int:
    """Features of queries and keys, outer products with them, and what each query's weights sum to.

    For every query head; two for each in the backward, but for the features.
    """
    features = parameters.count(workload)
    queries = workload.batch * workload.heads * workload.query_length
    positions = queries + workload.batch * workload.heads * workload.key_length
    projections, outer = 2 * positions * workload.head_dim * features, 2 * positions * features * workload.value_dim
    sums = 2 * queries * features
    return workload.by_mode(projections + outer + sums, projections + 2 * (outer + sums))


VARIANT = Variant(
    name="performer_pytorch",
    family="kernel",
    exact=False,
    summary="The package performer-pytorch, its attention alone; causal, later keys move an ε in what comes before.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"\text{as performer, with } \varphi_w(x) = \frac{1}{\sqrt M} \left( e^{w \cdot \sqrt s\,x - s \lVert x "
        r"\rVert^2 / 2 - c} + \varepsilon \right), \quad \varepsilon = 10^{-4}"
    ),
    exact_when="never",
    traps=(
        (
            "ε is added after dividing by the largest feature (exp(c)), for keys that of the whole sequence, in "
            "causal attention too: a later key moves what earlier positions give."
        ),
        (
            "Its causal scan without another package's CUDA kernel cuts a sequence into 128 pieces and keeps an "
            "outer product per position."
        ),
        "It takes no mask for padding.",
    ),
    claims=CLAIMS,
    causal_leak="routing",
    package="performer-pytorch",
)
