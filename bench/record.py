"""One line of a run: a case, what became of it, where and from what. The only thing that travels.

This module is the format; :mod:`bench.store` reads and writes files of it. Nothing here imports torch.
Times are in seconds, sizes in bytes. Numbers are finite or None, never NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from variants._contract import Claim, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1

Stage = Literal["predicted", "start", "inputs", "build", "check", "memory", "time"]
Status = Literal["measured", "unsupported", "out_of_memory", "timeout", "crashed", "failed", "incorrect", "fell_back"]

# What is read is held against these: a time or a size that cannot be is no measurement, and damages its line. No clock
# ticks within a picosecond, nobody waited for thirty years, and counts are of 64 bits wherever they are read.
_Seconds = Annotated[float, msgspec.Meta(ge=1e-12, le=1e9)]
MOST_WHOLE = 2**63 - 1
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_WHOLE)]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a sweep. Two records with equal cases may be compared."""

    variant: str
    workload: Workload
    parameters: dict[str, Any] = {}
    kind: str = "operator"

    def key(self) -> str:
        """The identity of the case as text: canonical JSON."""
        return _canonical(_without_absent(self)).decode()


class Fidelity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far an output is from exact attention under the same mask; and its attention weights, of sampled queries.

    ``mass_recall``: the share of the exact attention mass that lies on pairs with a non-zero weight here.
    ``total_variation``: half the summed difference of a row's weights. ``overlap``: the mass that both give to the same
    keys. ``top8_recall``: how many of the exact eight largest are among the eight largest here. ``spectral_error``:
    ‖Ã − A‖₂ / ‖A‖₂. ``density``: pairs with a non-zero weight, of those that the mask allows. See
    :mod:`bench.fidelity.metrics`.
    """

    relative_error: float | None
    cosine: float | None
    mass_recall: float | None = None
    total_variation: float | None = None
    overlap: float | None = None
    top8_recall: float | None = None
    spectral_error: float | None = None
    density: float | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="status", tag="measured"):
    """A case that ran, was right by its own formula, and was what it says it is.

    ``seconds``: per block, the median time of a call; on CUDA with a cleared L2 cache, beside it ``seconds_warm`` with
    the cache as the call before left it and, for short calls, ``seconds_graph``, replayed from a CUDA graph.
    ``setup_seconds``: building, compiling and the first call, of which ``compile_seconds`` (None where nothing
    compiles) and ``first_call_seconds``. ``peak_bytes``: what a call adds to the memory allocated before it;
    ``output_bytes``, ``saved_bytes`` (kept for the backward) and ``workspace_bytes`` are its parts where the mode
    allows. ``dispatched``: operators or kernels, by first use. ``conditions``: load, steal, clocks and the like.
    ``attention_map``: of one head, who attends to whom; see :mod:`bench.measure.attention_map`.
    """

    seconds: list[_Seconds]
    timer: str
    peak_bytes: _Count | None
    setup_seconds: float | None
    own_error: float | None
    tolerance: float | None
    gradient_error: float | None = None
    gradient_tolerance: float | None = None
    fidelity: Fidelity | None = None
    useful_flops: _Count
    issued_flops: _Count
    roofline_fraction: float | None = None
    bound: Literal["compute", "memory"] | None = None
    dispatched: list[str] = []
    compile_seconds: float | None = None
    first_call_seconds: float | None = None
    output_bytes: _Count | None = None
    saved_bytes: _Count | None = None
    workspace_bytes: _Count | None = None
    reserved_bytes: _Count | None = None
    seconds_warm: list[_Seconds] | None = None
    seconds_graph: list[_Seconds] | None = None
    settled: bool = True
    dropped_share: float = 0.0
    conditions: dict[str, float | int | str | None] = {}
    notes: list[str] = []
    attention_map: list[str] | None = None


class Unsupported(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="unsupported"):
    """The variant says that it cannot honour the workload, and why."""

    reasons: list[str]


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="out_of_memory"):
    """Memory ran out, or (stage ``predicted``) could not suffice."""

    stage: str
    message: str
    predicted_bytes: int | None = None


class Timeout(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="timeout"):
    """The case took longer than it was given."""

    stage: str
    message: str


class Crashed(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="crashed"):
    """The worker process died."""

    stage: str
    message: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="failed"):
    """The variant raised, or returned something that is no attention output."""

    stage: str
    message: str


class Incorrect(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="incorrect"):
    """The output or a gradient is further from the variant's own formula than rounding explains."""

    stage: str
    message: str
    own_error: float | None = None
    tolerance: float | None = None
    gradient_error: float | None = None
    gradient_tolerance: float | None = None


class FellBack(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="fell_back"):
    """Something else ran than the variant's name says."""

    stage: str
    message: str
    dispatched: list[str] = []


Outcome = Measured | Unsupported | OutOfMemory | Timeout | Crashed | Failed | Incorrect | FellBack


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader must know of the variant without having it."""

    family: str
    exact: bool
    time_exponent: float | None = None
    memory_exponent: float | None = None
    summary: str = ""
    paper: str | None = None
    causal_leak: str = "none"
    claims: list[Claim] = []


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What changes a result and is no part of the case. Runs with different settings are not compared."""

    threads: int
    float32_precision: str = "highest"
    time_budget_seconds: float | None = None
    timeout_seconds: float | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine. ``fingerprint`` is of hardware alone; no user, host name or path is ever stored."""

    fingerprint: str
    device_name: str
    cpu: str = ""
    cores: int | None = None
    memory_gib: int | None = None
    gpus: list[str] = []
    gpu_memory_bytes: int | None = None
    system: str = ""
    ceilings: dict[str, float] = {}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The code: revision, whether it had uncommitted changes, versions of the libraries."""

    git: str | None
    dirty: bool | None
    versions: dict[str, str] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One case measured in one process; replicates are further records with another ``process``."""

    schema: int = SCHEMA
    run_id: str
    case: Case
    outcome: Outcome
    process: int = 0
    about: About
    settings: Settings
    host: Host
    source: Source
    command: str | None = None
    at: str | None = None

    @property
    def status(self) -> Status:
        """What became of the case, in one word."""
        return self.outcome.__struct_config__.tag  # type: ignore[return-value]  # every outcome has one

    def identity(self) -> tuple[str, int]:
        """What may stand only once in a run."""
        return self.case.key(), self.process


_Recorded = TypeVar("_Recorded", bound=Record)


def encode(record: Record) -> bytes:
    """One line, without its newline.

    Raises:
        ValueError: a number that is not finite.

    """
    built = _without_absent(record)
    _refuse_non_finite(built)
    return msgspec.json.encode(built)


def storable(record: _Recorded) -> _Recorded:
    """The same record; failed if its outcome holds a number that no record may hold."""
    try:
        encode(record)
        msgspec.convert(msgspec.to_builtins(record.outcome), type(record.outcome))
    except (ValueError, msgspec.ValidationError) as error:
        return msgspec.structs.replace(record, outcome=Failed(stage="time", message=str(error)))
    return record


def decode(line: bytes) -> Record:
    """The record of a line of this schema.

    Raises:
        msgspec.DecodeError: no JSON, or not a record.

    """
    return _DECODER.decode(line)


_DECODER = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def _canonical(value: Any) -> bytes:
    return _ENCODER.encode(value)


def _without_absent(value: Record | Case) -> dict[str, Any]:
    """Builtins in which a workload names its unusual dimensions only."""
    built: dict[str, Any] = msgspec.to_builtins(value)
    workload = built["case"]["workload"] if isinstance(value, Record) else built["workload"]
    for name in ("value_head_dim", "scale"):
        if workload[name] is None:
            del workload[name]
    return built


def _refuse_non_finite(value: Any, path: str = "record") -> None:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{path} is {value}: store None and a note instead")
        case dict():
            for name, item in value.items():
                _refuse_non_finite(item, f"{path}.{name}")
        case list():
            for index, item in enumerate(value):
                _refuse_non_finite(item, f"{path}[{index}]")


def finite(value: float | None) -> float | None:
    """``value`` where it may enter a record, else None."""
    return value if value is not None and math.isfinite(value) else None


def upgrade(built: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of an older schema as one of this schema; there is none older than 1 yet."""
    return built
