"""The head of the package linformer-pytorch, bare: no embeddings, projections, residual or norm around it.

Its ``LinearAttentionHead`` takes ``(B · H, N, D)``; biases are zero and the weights those of ``linformer``. It projects
by a dense product whatever the matrix is, wants a key head for every query head, and overwrites the keys that it masks:
expanding and copying them is part of its cost. Under padding its matrix stays that of the whole length, where
``linformer`` pools the kept keys alone.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from variants import _linformer
from variants._contract import Attend, Complexity, Variant, Workload
from variants._linformer import Parameters
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


def build(workload: Workload, parameters: Parameters) -> Attend:
    from linformer_pytorch.linformer_pytorch import LinearAttentionHead

    dim = _dim(workload)
    heads = torch.nn.ModuleList(
        LinearAttentionHead(dim, 0.0, to_keys, to_values, causal_mask=None).eval()
        for to_keys, to_values in _linears(workload, parameters)
    )
    kept = _kept(workload)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = expand_heads(key, workload), expand_heads(value, workload)
        if len(heads) == 1:
            return _attended(heads[0], query, key, value, kept)
        outputs = []
        for head in range(workload.heads):
            own = slice(head, head + 1)
            outputs.append(_attended(heads[head // workload.group], query[:, own], key[:, own], value[:, own], kept))
        return torch.cat(outputs, dim=1)

    weights = [weight for weight in heads.parameters() if weight.requires_grad]
    return _linformer.trained(attend, weights) if weights else attend


def _dim(workload: Workload) -> float:
    """What to tell the package, which divides scores by the root of it."""
    return workload.head_dim if workload.scale is None else workload.scale**-2


def _linears(workload: Workload, parameters: Parameters) -> Iterator[tuple[torch.nn.Linear, torch.nn.Linear]]:
    """E and F as the package holds them: one pair, or one for each key head that has its own."""
    weights = _linformer.matrices(workload, parameters)
    for of_keys, of_values in zip(*(_each(matrix) for matrix in weights), strict=True):
        to_keys = _linear(of_keys)
        yield to_keys, to_keys if parameters.sharing == "kv" else _linear(of_values)


def _each(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() > 2 else matrix[None]  # noqa: PLR2004  # (k, N), or one per head


def _linear(matrix: Tensor) -> torch.nn.Linear:
    rank, length = matrix.shape
    linear = torch.nn.Linear(length, rank, device="meta")  # draws nothing
    linear.weight = torch.nn.Parameter(matrix.detach(), requires_grad=matrix.requires_grad)
    linear.bias = torch.nn.Parameter(matrix.new_zeros(rank), requires_grad=False)
    return linear


def _kept(workload: Workload) -> Tensor | None:
    """Which keys are no padding, ``(B, N)`` bool."""
    kept = _linformer.kept_keys(workload)
    if kept is None:
        return None
    return (
        torch.arange(workload.key_length, device=workload.device) < torch.tensor(kept, device=workload.device)[:, None]
    )


def _attended(head: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, kept: Tensor | None) -> Tensor:
    """One head of the package for all heads given, ``(B, H, N, D)`` each."""
    batch, heads = query.shape[:2]
    query, key, value = (tensor.flatten(0, 1) for tensor in (query, key, value))
    if kept is None:
        output: Tensor = head(query, key, value)
    else:  # it overwrites what it masks
        output = head(query, key.clone(), value.clone(), input_mask=kept.repeat_interleave(heads, dim=0))
    return output.view(batch, heads, *output.shape[1:])


def _is_float32(number: float) -> bool:
    return torch.tensor(number).item() == number


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = _linformer.obstacles(workload, parameters)
    if workload.softmax_scale <= 0:
        reasons.append(f"the package divides scores by a root, which gives no scale of {workload.softmax_scale:g}")
    elif workload.dtype == "float64" and not _is_float32(_dim(workload)):
        reasons.append(f"the package rounds its scale to float32, and {workload.softmax_scale:g} is then another one")
    if importlib.util.find_spec("linformer_pytorch") is None:
        reasons.append("linformer-pytorch is not installed; pip install 'attention-bench[packages]'")
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
    """softmax(Q(EK)ᵀ · scale)(FV) with padded keys and values zero: what they were to multiply is left out."""
    del routing
    of_first = _linformer.matrices(workload, parameters).of_first
    return _linformer.attended_rows(query, key, value, workload=workload, rows=rows, matrices_of=of_first)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Four products, for every query head; the backward takes two for each, but E and F only learn where told."""
    rank = min(parameters.rank, workload.key_length)
    columns = workload.batch * workload.heads * rank * (workload.head_dim + workload.value_dim)
    pairs, projected = columns * workload.query_length, columns * workload.key_length
    backward = 2 * pairs + projected * (2 if parameters.projection == "learned" else 1)
    return 2 * workload.by_mode(pairs + projected, backward)


VARIANT = Variant(
    name="linformer_pytorch",
    family="low_rank",
    exact=False,
    summary="The package linformer-pytorch, its attention alone; pooled unless told otherwise, and so untrained.",
    paper=_linformer.PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=1, memory=1),
    equation=r"O = \operatorname{softmax}(s\,Q (E K)^\top)\,(F V), \quad E, F \in \mathbb{R}^{k \times N}",
    exact_when="the rank is at least the number of keys, with pooling (E = F = I)",
    traps=(
        "Its causal mode leaks later keys into earlier outputs; it is refused here.",
        "It overwrites the keys and values that it masks; they are copied here, at its cost.",
        "It wants a key head for every query head: grouped heads are expanded, at its cost.",
        "The package's layers add projections, a residual and a norm; here is its attention alone.",
    ),
    package="linformer-pytorch",
)
