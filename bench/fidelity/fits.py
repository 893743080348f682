"""What a source of inputs can give a workload, and what must be said of it. Nothing here imports torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from bench.errors import WrongUsageError
from bench.fidelity import shipped, sources
from bench.fidelity.sources import Source
from variants._contract import Workload

HEADS, HEAD_DIM, POSITIONS = 12, 32, 512
MOST_STRETCHED = 4096
TENSORS = ("query", "key", "value")


def obstacles(workload: Workload) -> list[str]:
    """Why these inputs cannot have the shape of this workload; none where they can."""
    source = sources.parse(workload.inputs)
    match source.kind:
        case "minilm" | "matched":
            return shipped.encoder_missing() or [f"{source}: {reason}" for reason in _of_encoder(source, workload)]
        case "file":
            return shipped.missing("safetensors") or [f"{source}: {reason}" for reason in _of_file(source, workload)]
        case _:
            return []


def notes(workload: Workload) -> list[str]:
    """What a reader of the figures must know of their inputs."""
    source = sources.parse(workload.inputs)
    length = max(workload.query_length, workload.key_length)
    if source.kind != "minilm" or length <= POSITIONS:
        return []
    if source.stretched:
        return [f"{source}: the encoder's {POSITIONS} positions are interpolated to {length}"]
    count = window_count(length)
    return [f"{source}: {count} windows of {-(-length // count)} tokens, encoded apart, stand one after the other"]


def window_count(length: int) -> int:
    """How many windows within the encoder's positions a sequence takes."""
    return -(-length // POSITIONS)


def _of_encoder(source: Source, workload: Workload) -> list[str]:
    heads = HEADS if source.layer is not None else HEADS * sources.LAYERS
    found = []
    if (workload.head_dim, workload.value_dim) != (HEAD_DIM, HEAD_DIM):
        found.append(f"its heads have {HEAD_DIM} channels, give head_dim {HEAD_DIM}")
    if workload.kv_heads != workload.heads:
        found.append("each of its heads has keys of its own, give as many kv_heads as heads")
    if workload.heads > heads:
        found.append(f"it has {heads} heads, give no more")
    length = max(workload.query_length, workload.key_length)
    if source.stretched and length > MOST_STRETCHED:
        found.append(f"stretched to at most {MOST_STRETCHED} positions, since all of them attend to each other")
    return found


def _of_file(source: Source, workload: Workload) -> list[str]:
    assert source.file is not None  # noqa: S101  # by its kind
    try:
        shapes = shapes_of(sources.locate(source.file))
    except WrongUsageError as error:
        return [str(error)]
    queries, keys, values = (shapes[name] for name in TENSORS)
    asked = {
        "batch": (workload.batch, min(shape[0] for shape in shapes.values())),
        "query heads": (workload.heads, queries[1]),
        "queries": (workload.query_length, queries[2]),
        "keys": (workload.key_length, keys[2]),
    }
    found = [
        f"{wanted} of {name} asked for, it holds {held}" for name, (wanted, held) in asked.items() if wanted > held
    ]
    if (workload.head_dim, workload.value_dim) != (queries[3], values[3]):
        found.append(
            f"its heads have {queries[3]} channels, values {values[3]}; give these as head_dim, value_head_dim"
        )
    if workload.group != queries[1] // keys[1]:
        found.append(f"{queries[1]} of its query heads share {keys[1]} key heads, give kv_heads in that ratio")
    return found


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a file of recorded inputs.

    Raises:
        WrongUsageError: it is no such file, or its tensors are no attention's.

    """
    return _shapes(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _shapes(path: Path, changed: int) -> dict[str, tuple[int, ...]]:
    del changed
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no dict
    except (SafetensorError, OSError) as error:
        raise WrongUsageError(f"expected a file of safetensors, cannot read {path.name}: {error}") from error
    absent = [name for name in TENSORS if name not in shapes]
    if absent or any(len(shapes[name]) != 4 for name in TENSORS):  # noqa: PLR2004  # batch, heads, length, channels
        raise WrongUsageError(
            f"expected query, key and value as (batch, heads, length, channels) in {path.name}, got "
            + ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))
        )
    queries, keys, values = (shapes[name] for name in TENSORS)
    if keys[:3] != values[:3] or queries[0] != keys[0] or queries[3] != keys[3] or queries[1] % keys[1]:
        raise WrongUsageError(f"query, key and value of {path.name} do not fit together: {queries}, {keys}, {values}")
    return {name: shapes[name] for name in TENSORS}
