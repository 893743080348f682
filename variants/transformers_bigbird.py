"""The block-sparse core of the BigBird in the package transformers, bare: no projections around it.

Every row of blocks sees itself and its neighbours, the first and the last block, and random blocks; the first and the
last row see everything. What is in sight twice counts twice: with n(i, j) the number of times that i sees j,

    o_i = Σ_j n(i, j) · exp(scale · q_i · k_j) · v_j / Σ_j n(i, j) · exp(scale · q_i · k_j).

Random blocks are drawn in training mode alone, anew in every call and for every head, from numpy's global generator,
which the package seeds each time. In evaluation each of them is the first block, which then counts 1 + R times. At a
length of 1024 they may also be the last block, which is global already.

The core also fills a matrix ``(B, H, N, N)`` with weights that nobody asked for: its memory is quadratic all the same.
Up to (5 + 2R) blocks the package computes full attention instead, and goes on with that for good; here that is refused.
Lengths that no block divides are padded, as the package's model does it; its padding hides queries too, here only keys.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from variants._bigbird import PAPER, why_not
from variants._contract import Attend, Complexity, Variant, Workload
from variants._mask import Mask
from variants._pattern import Pattern
from variants._reference import expand_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_POSITIONS = 4096  # of the published models; random blocks are drawn for so many at the lengths of the paper


@dataclass(frozen=True, slots=True)
class Parameters:
    """Keys in a block, random blocks per block of queries, and whether these are drawn, as they are in training.

    The window is three blocks, and the first and the last block are global.
    """

    block: int = 64
    random_blocks: int = 3
    training: bool = True

    def __post_init__(self) -> None:
        for name in ("block", "random_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def full_up_to(self) -> int:
        """The longest sequence for which the package computes full attention instead."""
        return (5 + 2 * self.random_blocks) * self.block

    def blocks(self, length: int) -> int:
        """Blocks of a padded sequence."""
        return -(-length // self.block)


class _Drawn(Exception):  # noqa: N818  # no error
    """Carries the random blocks out of the core, before it computes anything."""


def build(workload: Workload, parameters: Parameters) -> Attend:
    module = _core(workload, parameters)
    masks = _masks(workload, parameters)
    spare = parameters.blocks(workload.query_length) * parameters.block - workload.query_length

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query, expand_heads(key, workload), expand_heads(value, workload)
        if spare:
            heads = tuple(pad(tensor, (0, 0, 0, spare)) for tensor in heads)  # type: ignore[assignment]  # three again
        output = _attended(module, heads, masks, workload, parameters).transpose(1, 2)
        return output[:, :, : workload.query_length]

    return attend


def _core(workload: Workload, parameters: Parameters) -> Any:
    from transformers.models.big_bird.configuration_big_bird import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=workload.heads * workload.head_dim,
        num_attention_heads=workload.heads,
        num_random_blocks=parameters.random_blocks,
        block_size=parameters.block,
        max_position_embeddings=_POSITIONS,
    )
    seed = random.Random(f"transformers_bigbird:{workload.seed}").getrandbits(32)  # noqa: S311  # no secret
    with torch.device("meta"):  # it has projections that are not used
        core: Any = BigBirdBlockSparseAttention
        return core(config, seed=seed).train(parameters.training)


@dataclass(frozen=True, slots=True)
class _Masks:
    """What the core multiplies with and adds: ones for what is there, in the workload's dtype."""

    band: Tensor
    queries: Tensor
    keys: Tensor
    query_blocks: Tensor
    key_blocks: Tensor


def _masks(workload: Workload, parameters: Parameters) -> _Masks:
    blocks, size = parameters.blocks(workload.key_length), parameters.block
    kept = Pattern.of(workload).kept
    counts = torch.tensor([workload.key_length] * workload.batch, device=workload.device) if kept is None else kept
    present = torch.arange(blocks * size, device=workload.device) < counts[:, None]
    keys = present.to(getattr(torch, workload.dtype))
    by_block = keys.unflatten(1, (blocks, size))
    window = torch.cat([by_block[:, 1:-3], by_block[:, 2:-2], by_block[:, 3:-1]], dim=2)
    return _Masks(
        band=window[:, None, :, None].expand(-1, 1, -1, size, -1).contiguous(),
        queries=torch.ones_like(keys)[:, None, :, None],
        keys=keys[:, None, None],
        query_blocks=torch.ones_like(by_block),
        key_blocks=by_block,
    )


def _attended(
    module: Any, heads: tuple[Tensor, ...], masks: _Masks, workload: Workload, parameters: Parameters
) -> Tensor:
    """What the core makes of padded queries, keys and values: ``(B, N, H, Dv)``."""
    length = heads[0].shape[2]
    output: Tensor = module.bigbird_block_sparse_attention(
        *heads,
        masks.band,
        masks.queries,
        masks.keys,
        masks.query_blocks,
        masks.key_blocks,
        n_heads=workload.heads,
        n_rand_blocks=parameters.random_blocks,
        attention_head_size=workload.softmax_scale**-2,  # it divides by the root
        from_block_size=parameters.block,
        to_block_size=parameters.block,
        batch_size=workload.batch,
        from_seq_len=length,
        to_seq_len=length,
        seed=module.seed,
        plan_from_length=None,
        plan_num_rand_blocks=None,
    )[0]
    return output


def random_blocks(workload: Workload, parameters: Parameters) -> Tensor:
    """Which blocks each row of blocks but the first and the last sees at random, ``(H, rows, R)`` int64."""
    module = _core(workload, parameters)

    def stop(*arguments: Any) -> None:
        raise _Drawn(arguments[2])

    module._create_rand_mask_from_inputs = stop  # noqa: SLF001  # the first step that is told what was drawn
    length = parameters.blocks(workload.query_length) * parameters.block
    heads = torch.empty(workload.batch, workload.heads, length, 1, device="cpu")
    try:
        _attended(module, (heads,) * 3, _Masks(*[heads] * 5), workload, parameters)
    except _Drawn as drawn:
        blocks: Tensor = drawn.args[0][0]
        return blocks
    raise RuntimeError("the core of transformers has changed: it drew no random blocks")


def times_seen(workload: Workload, parameters: Parameters) -> Tensor:
    """How often the rows of blocks see each block, ``(H, blocks, blocks)`` int64."""
    count = parameters.blocks(workload.query_length)
    index = torch.arange(count)
    window = (index[:, None] - index).abs() <= 1
    is_end = (index == 0) | (index == count - 1)
    times = (window | is_end | is_end[:, None]).long().expand(workload.heads, -1, -1).clone()
    drawn = random_blocks(workload, parameters)
    times[:, 1:-1].scatter_add_(2, drawn, torch.ones_like(drawn))
    return times


def obstacles(workload: Workload, parameters: Parameters) -> Sequence[str]:
    reasons = [
        f"{term}: {why_not(term.partition(':')[0])}" for term in Mask.parse(workload.mask).unsupported("padding")
    ]
    if importlib.util.find_spec("transformers") is None:
        reasons.append("transformers is not installed; pip install 'attention-bench[packages]'")
    if not workload.is_square:
        reasons.append(
            "the package cuts queries and keys into equally many blocks, so that their lengths must be equal, "
            f"got {workload.query_length} and {workload.key_length}"
        )
    if workload.query_length <= parameters.full_up_to:
        reasons.append(
            f"up to {parameters.full_up_to} positions the package computes full attention instead, "
            f"got {workload.query_length}"
        )
    if workload.softmax_scale <= 0:
        reasons.append(f"the package divides scores by a root, which gives no scale of {workload.softmax_scale:g}")
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
    """The formula above, dense, with the blocks that the package draws."""
    del routing
    rows = rows.to(query.device)
    block = torch.arange(workload.key_length, device=query.device) // parameters.block
    seen = times_seen(workload, parameters).to(query.device)[:, rows // parameters.block]
    times = seen[:, :, block] * Pattern.of(workload, query.device).rows(rows)[0]
    scores = query[:, :, rows] @ expand_heads(key, workload).mT * workload.softmax_scale
    return torch.softmax(scores + times.to(scores.dtype).log(), dim=-1) @ expand_heads(value, workload)


def flops(workload: Workload, parameters: Parameters) -> int:
    """Two products over what the rows see, and once a product of two masks; the backward takes four."""
    count, drawn = parameters.blocks(workload.query_length), parameters.random_blocks
    pairs = parameters.block**2 * (2 * count + 2 * (4 + drawn) + (count - 4) * (5 + drawn))
    columns = workload.head_dim + workload.value_dim
    return 2 * workload.batch * workload.heads * pairs * workload.by_mode(columns, 2 * columns)


VARIANT = Variant(
    name="transformers_bigbird",
    family="sparse",
    exact=False,
    summary="The block-sparse core of transformers' BigBird; it also fills a dense matrix of weights.",
    paper=PAPER,
    parameters=Parameters,
    build=build,
    obstacles=obstacles,
    reference=reference,
    flops=flops,
    complexity=Complexity(time=2, memory=2),
    equation=(
        r"o_i = \frac{\sum_j n_{ij}\, e^{s\,q_i \cdot k_j}\, v_j}{\sum_j n_{ij}\, e^{s\,q_i \cdot k_j}}, \quad n_{ij} "
        r"= \text{how often the blocks show } j \text{ to } i"
    ),
    exact_when="never: where it could be, the package computes full attention instead, which is refused here",
    traps=(
        (
            "It fills a dense matrix (B, H, N, N) with weights that nobody asked for: its memory is quadratic all "
            "the same."
        ),
        (
            "Up to (5 + 2R) blocks, 704 positions by default, its model computes full attention, and goes on with "
            "that for good."
        ),
        (
            "In evaluation every random block is the first one, which then counts 1 + R times; "
            "`transformers_bigbird.training=false` shows it."
        ),
        "In training random blocks are drawn in every call, from numpy's global generator, which it seeds.",
        "At a length of 1024 a random block may be the last, which is global already and then counts twice.",
    ),
    package="transformers",
)
