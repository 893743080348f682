"""The LSH attention of the package reformer-pytorch, bare: no projections, chunking or reversible layers around it.

Its ``LSHAttention`` takes shared queries and keys and the values as ``(B · H, N, D)``, with the package's defaults.
Values of grouped heads are expanded, and lengths padded to a multiple of 2 · ``bucket_size`` with ``input_mask``, as
the package's ``Autopadder`` does, at its cost. Its formula, read from its code: all rounds are sorted into one row of
chunks; a query sees its chunk and the one before, which in the first chunk of a round is the last of another round.
With n(i, j) the number of times that i sees j in all of this, and k̂ = q / ‖q‖,

    o_i = Σ_j n(i, j) · exp(s(i, j) − z_i) · v_j,    s(i, j) = q_i · k̂_j / √d,    z_i = log Σ_j n(i, j) · exp(s(i, j)),

where s(i, i) = −50000 makes a position its own last resort. Where it comes to that, z is −50000 + log n(i, i), which a
float32 holds to 0.004: such rows are off by up to 0.2 %. In half precision they are n(i, i) times too large.

A pair that meets often counts more. The paper's rule, by which it does not, is in the package too, but
``allow_duplicate_attention=False`` looks for meetings in the same round only: a pair that met across two gets
−log(0 + 10⁻⁹) = 20.7 added to its score.

The package draws rotations anew in every call, one set for all batch items and heads. Here they are seeded.
"""

from __future__ import annotations

import importlib.util
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize, pad

from variants._contract import Attend, Complexity, Paper, Variant, Workload
from variants._mask import Mask
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_OWN_SCORE = -5e4
_PAIR = 2  # positions that see nothing but each other


@dataclass(frozen=True, slots=True)
class Parameters:
    """The package's ``bucket_size`` and ``n_hashes``, with its defaults."""

    bucket_size: int = 64
    hashes: int = 8


def build(workload: Workload, parameters: Parameters) -> Attend:
    lsh = _attention(workload, parameters)
    length, padded = workload.query_length, _padded_length(workload, parameters)
    is_real = torch.arange(padded, device=workload.device)[None] < length if padded > length else None

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        del key
        query = _folded(query, padded)
        value = _folded(expand_heads(value, workload), padded)
        mask = None if is_real is None else is_real.expand(len(query), -1)
        with _seeded(workload, query.device):
            output: Tensor = lsh(query, value, input_mask=mask)[0]
        return output[:, :length].reshape(workload.batch, workload.heads, length, -1)

    return attend


def route(query: Tensor, key: Tensor, *, workload: Workload, parameters: Parameters) -> Tensor:
    """The bucket of every position in every round, by the package's own hashing: ``(B, H, R, N + padding)`` int64."""
    del key
    padded = _padded_length(workload, parameters)
    buckets = padded // parameters.bucket_size
    with _seeded(workload, query.device):
        folded = _folded(query.detach(), padded)
        hashed: Tensor = _attention(workload, parameters).hash_vectors(buckets, folded, set_cache=False)
    return hashed.view(*query.shape[:2], parameters.hashes, padded) % buckets


def _padded_length(workload: Workload, parameters: Parameters) -> int:
    step = 2 * parameters.bucket_size
    return -(-workload.query_length // step) * step


def _folded(tensor: Tensor, length: int) -> Tensor:
    """``(B, H, N, D)`` as the package takes it, ``(B · H, length, D)``, with ones at the end.

    Any constant is hidden all the same, but zeros would be NaN when the package normalises them in float16.
    """
    folded = tensor.flatten(0, 1)
    missing = length - folded.shape[1]
    return pad(folded, (0, 0, 0, missing), value=1.0) if missing else folded  # padding with nothing would copy


def _attention(workload: Workload, parameters: Parameters) -> Any:
    from reformer_pytorch.reformer_pytorch import LSHAttention

    # in training mode it would keep the buckets of every call
    return LSHAttention(
        bucket_size=parameters.bucket_size, n_hashes=parameters.hashes, causal=Mask.parse(workload.mask).is_causal
    ).eval()


@contextmanager
def _seeded(workload: Workload, device: torch.device) -> Iterator[None]:
    """Random numbers from the workload's seed, though not from the number itself, with which inputs may be drawn."""
    seed = random.Random(f"reformer_pytorch:{workload.seed}").getrandbits(63)  # noqa: S311  # no secret
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [
        f"{name} must be at least 1, got {number}"
        for name, number in (("bucket_size", parameters.bucket_size), ("hashes", parameters.hashes))
        if number < 1
    ]
    lengths = f"{workload.query_length} and {workload.key_length}"
    if importlib.util.find_spec("reformer_pytorch") is None:
        reasons.append("reformer-pytorch is not installed; pip install 'attention-bench[packages]'")
    if not workload.is_square:
        reasons.append(f"queries and keys are one tensor, so that their lengths must be equal, got {lengths}")
    if workload.value_dim != workload.head_dim:
        reasons.append(f"the package needs values as wide as keys, got {workload.value_dim} and {workload.head_dim}")
    if workload.softmax_scale != workload.head_dim**-0.5:
        reasons.append(f"the package scales scores by 1/√head_dim, not by {workload.softmax_scale:g}")
    mask = Mask.parse(workload.mask)
    in_half, differentiates = workload.dtype in ("bfloat16", "float16"), workload.mode != "fwd"
    if in_half and (mask.is_causal or workload.query_length == 1):
        reasons.append(f"in {workload.dtype} the package multiplies rows that see only themselves, as the first does")
    if differentiates and workload.head_dim == 1:
        reasons.append("with one channel, keys are ±1, and the gradient that the package finds there is mere rounding")
    if differentiates and in_half and workload.query_length == _PAIR:
        reasons.append("with one other position to see, the gradient that the package finds is mere rounding")
    if mask.padding is not None:
        reasons.append("padding: the package sorts it among the rest, so that its content moves buckets and results")
    return reasons + [f"{term}: the package has no such mask" for term in mask.unsupported("causal", "padding")]


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    workload: Workload,
    parameters: Any,
    rows: Tensor,
    routing: Any = None,
) -> Tensor:
    """The formula above, dense, given the buckets."""
    del key
    rows = rows.to(query.device)
    positions = torch.arange(workload.key_length, device=query.device)
    times = meetings(routing, rows, parameters.bucket_size)[..., : workload.key_length].to(query.dtype)
    if Mask.parse(workload.mask).is_causal:
        times = times * (positions <= rows[:, None])
    scores = query[:, :, rows] @ normalize(query, dim=-1).mT * workload.softmax_scale
    scores = scores.masked_fill(positions == rows[:, None], _OWN_SCORE).masked_fill(times == 0, -torch.inf)
    # no softmax: it would not round as the package does near −50000
    logsumexp = torch.logsumexp(scores + times.log(), dim=-1, keepdim=True)
    return (times * torch.exp(scores - logsumexp)) @ expand_heads(value, workload)


def meetings(buckets: Tensor, rows: Tensor, bucket_size: int) -> Tensor:
    """How often the given positions see each one, ``(B, H, rows, N)`` int64, from buckets ``(B, H, R, N)``."""
    rounds, length = buckets.shape[2:]
    chunks = length // bucket_size
    slots = buckets.argsort(dim=-1, stable=True).argsort(dim=-1)  # the inverse of a permutation
    chunk = slots // bucket_size + torch.arange(0, rounds * chunks, chunks, device=buckets.device)[:, None]
    times = torch.zeros(*buckets.shape[:2], len(rows), length, dtype=torch.int64, device=buckets.device)
    for one in range(rounds):
        for other in {one, (one - 1) % rounds}:
            back = chunk[:, :, one, rows, None] - chunk[:, :, other, None]
            times += back % (rounds * chunks) <= 1
    return times


def flops(workload: Workload, parameters: Parameters) -> int:
    """Rotations, and two products over the pairs of each round, padding included; four in the backward."""
    dim, length = workload.head_dim, _padded_length(workload, parameters)
    rotated = length * dim * parameters.hashes * (length // parameters.bucket_size // 2)
    product = parameters.hashes * length * 2 * parameters.bucket_size * dim
    total = workload.by_mode(rotated + 2 * product, 4 * product)
    return 2 * workload.batch * workload.heads * total


VARIANT = Variant(
    name="reformer_pytorch",
    family="hashing",
    exact=False,
    summary="The package reformer-pytorch, its LSH attention alone, seeded; a pair counts as often as it meets.",
    paper=Paper("Reformer: The Efficient Transformer", 2020, "2001.04451"),
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=(
        r"o_i = \frac{\sum_j n_{ij}\, e^{s\,q_i \cdot \hat k_j}\, v_j}{\sum_j n_{ij}\, e^{s\,q_i \cdot \hat k_j}}, "
        r"\quad \hat k_j = q_j / \lVert q_j \rVert, \quad n_{ij} = \text{how often } i \text{ sees } j \text{ in all "
        r"rounds}"
    ),
    exact_when="never",
    traps=(
        (
            "A pair that meets in several rounds counts several times; the paper counts it once. The package's "
            "switch for that adds 20.7 to the score of pairs that met across two rounds."
        ),
        "It draws rotations anew in every call, one set for all batch items and heads; here they are seeded.",
        "Padding takes part in the sorting, so that its content would move results; it is refused here.",
        "Causal, later positions move the borders of buckets: routing leaks, and is reported.",
    ),
    uses=frozenset({"query", "value"}),
    route=route,
    causal_leak="routing",
    package="reformer-pytorch",
)
