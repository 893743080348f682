"""What every attention variant says about itself, and the problem it is asked to solve.

Nothing here imports torch, so that plans, records and reports can be read without it.
Tensors are always ``(batch, heads, length, head_dim)``; key and value carry ``kv_heads`` heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

Mode = Literal["fwd", "bwd", "fwd_bwd"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Family = Literal["exact", "sparse", "low_rank", "hashing", "kernel", "recurrent", "positional", "scoring", "floor"]
Use = Literal["query", "key", "value"]
CausalLeak = Literal["none", "routing"]
Metric = Literal["time_exponent", "memory_exponent", "speedup", "memory_saving", "error_exponent"]

SOFTMAX = r"O = \operatorname{softmax}(s\,Q K^\top)\,V"
"""The equation of exact attention."""

MODES: tuple[Mode, ...] = get_args(Mode)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One attention problem, independent of who solves it.

    ``mask`` is the canonical text of a :class:`variants._mask.Mask`; ``device`` is ``cpu`` or ``cuda``.
    ``value_head_dim`` and ``scale`` are ``None`` where they are the usual ones: ``head_dim`` and 1/√head_dim.
    """

    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    query_length: int = 1024
    key_length: int = 1024
    head_dim: int = 64
    dtype: Dtype = "float32"
    device: str = "cpu"
    mask: str = "full"
    mode: Mode = "fwd"
    inputs: str = "normal"
    seed: int = 0
    value_head_dim: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "query_length", "key_length", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.value_head_dim is not None and self.value_head_dim < 1:
            raise ValueError(f"value_head_dim must be at least 1, got {self.value_head_dim}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def value_dim(self) -> int:
        """Channels of a value, and so of the output."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def softmax_scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def by_mode(self, forward: int, backward: int) -> int:
        """What a call in this mode counts, of something that each pass counts."""
        return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[self.mode]

    @property
    def is_square(self) -> bool:
        return self.query_length == self.key_length


@dataclass(frozen=True, slots=True)
class Paper:
    """Where a mechanism was described; ``arxiv`` is an identifier such as ``2006.04768``."""

    title: str
    year: int
    arxiv: str | None = None


@dataclass(frozen=True, slots=True)
class Complexity:
    """The exponents in the length N that a mechanism claims: time O(N**time), memory O(N**memory)."""

    time: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a publication says of a variant, in a form that measurements can be held against.

    ``metric`` and ``value``: ``time_exponent`` and ``memory_exponent`` in the length are at most this; ``speedup`` and
    ``memory_saving`` are at least this many times over the variant ``over``; ``error_exponent``, of the relative error
    as ``parameter`` grows, is at most this. With ``mode`` or ``min_length`` it is said of those cases alone.
    """

    statement: str
    metric: Metric
    value: float
    source: str
    over: str | None = None
    parameter: str | None = None
    mode: Mode | None = None
    min_length: int = 1


@dataclass(frozen=True, slots=True)
class Kernels:
    """Regular expressions over the names of dispatched operators and CUDA kernels.

    Each pattern of ``required`` must match some name, none of ``forbidden`` may match any;
    otherwise the variant fell back to something else and its time would be a lie.
    """

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoParameters:
    """For a variant that has nothing to choose."""


class Attend(Protocol):
    """A built attention. Inputs and output as the module says; differentiable where the mode asks for it."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, /) -> Tensor: ...


class Reference(Protocol):
    """The dense formula of a variant for some query rows, in the dtype of its inputs, differentiable.

    ``rows`` is a 1-D int64 tensor of query positions; the result is ``(batch, heads, len(rows), value_dim)``.
    ``routing`` is what the variant's ``route`` returned, for variants with discrete choices.
    Called with float64 inputs it is the truth; called in the working dtype it tells the rounding to expect.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        workload: Workload,
        parameters: Any,
        rows: Tensor,
        routing: Any = None,
    ) -> Tensor: ...


class Route(Protocol):
    """The discrete choices (buckets, selected keys) that a variant makes for these inputs."""

    def __call__(self, query: Tensor, key: Tensor, *, workload: Workload, parameters: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute attention: the value of ``VARIANT`` in its file.

    ``build`` may compile, draw weights and import third-party packages; it is timed apart, as set-up.
    ``obstacles`` returns a sentence for every reason why this workload cannot be honoured here, none if it can.
    ``flops`` counts the matrix-product operations (a multiply-add is two) that one call in the workload's mode
    issues, masked pairs included where they are computed. ``kernels`` is keyed by device type. ``claims`` are those of
    its paper beyond ``complexity``. ``equation``, ``exact_when`` and ``traps`` tell readers its formula
    in LaTeX, with s the scale, when it is exact attention, and what to beware of, in sentences.
    """

    name: str
    family: Family
    exact: bool
    summary: str
    paper: Paper | None = None
    parameters: type = NoParameters
    build: Callable[[Workload, Any], Attend]
    obstacles: Callable[[Workload, Any], Sequence[str]]
    reference: Reference
    flops: Callable[[Workload, Any], int]
    complexity: Complexity
    claims: tuple[Claim, ...] = ()
    equation: str = ""
    exact_when: str = ""
    traps: tuple[str, ...] = ()
    uses: frozenset[Use] = frozenset({"query", "key", "value"})
    route: Route | None = None
    causal_leak: CausalLeak = "none"
    kernels: Mapping[str, Kernels] = field(default_factory=dict)
    stochastic: bool = False
    package: str | None = None
