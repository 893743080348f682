"""Query, key and value that a model made, or that resemble them, in the shape of a workload: float32, on the CPU.

Where there are more positions than the workload has queries or keys, it gets the last ones, as masks align them.
Symbols: B batch, H heads, N the larger of both lengths, D channels of a head.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from bench.errors import WrongUsageError
from bench.fidelity import encoder, fits, sources, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from bench.fidelity.sources import Source
    from variants._contract import Workload

_WINDOWS_AT_ONCE = 8
_MATCHED_WINDOWS = 8
_JITTER = 1e-6

Triple = tuple["Tensor", "Tensor", "Tensor"]


def make(workload: Workload) -> Triple:
    """Query, key and value of a workload whose inputs are not plain numbers.

    Raises:
        WrongUsageError: the source cannot have this shape, or is not to be had here.

    """
    source = sources.parse(workload.inputs)
    reasons = fits.obstacles(workload)
    if reasons:
        raise WrongUsageError("; ".join(reasons))
    with torch.no_grad():
        match source.kind:
            case "minilm":
                return _cut(_of_encoder(source, workload), workload)
            case "matched":
                return _cut(_matched(source, workload), workload)
            case "file":
                return _of_file(source, workload)
    raise WrongUsageError(f"expected inputs of a model, got {source}")


def _cut(triple: Triple, workload: Workload) -> Triple:
    query, key, value = triple
    queries, keys = workload.query_length, workload.key_length
    return (
        query[:, :, -queries:].contiguous(),
        key[:, :, -keys:].contiguous(),
        value[:, :, -keys:].contiguous(),
    )


# --- of the encoder -----------------------------------------------------------------------------------------------


def _of_encoder(source: Source, workload: Workload) -> Triple:
    """``(B, H, N, D)`` each. Every seed reads on where the one before ended."""
    length = max(workload.query_length, workload.key_length)
    count = 1 if source.stretched else fits.window_count(length)
    window = -(-length // count)
    path = None if source.file is None else sources.locate(source.file)
    wanted = workload.batch * count
    tokens = texts.windows(texts.tokens_of(path), length=window, count=wanted, first=workload.seed * wanted)
    seen = _watched(torch.tensor(tokens), _chosen(source, workload.heads))
    return tuple(
        tensor.unflatten(0, (workload.batch, count)).transpose(1, 2).flatten(2, 3)[:, :, :length] for tensor in seen
    )


def _chosen(source: Source, heads: int) -> list[tuple[int, int]]:
    """The layer and the index in it of each head: the first ones of a layer, or evenly from all layers."""
    if source.layer is not None:
        return [(source.layer, head) for head in range(heads)]
    every = encoder.HEADS * sources.LAYERS
    return [divmod((2 * head + 1) * every // (2 * heads), encoder.HEADS) for head in range(heads)]


def _watched(tokens: Tensor, chosen: list[tuple[int, int]]) -> Triple:
    """Of each window of ``tokens``, ``(windows, length)``, the chosen heads: ``(windows, heads, length, D)`` each."""
    model = encoder.load()
    parts: list[Triple] = []
    for few in tokens.split(_WINDOWS_AT_ONCE):
        found: dict[int, Triple] = {}
        model(few, watch=lambda layer, *triple, found=found: found.__setitem__(layer, triple))
        parts.append(
            tuple(  # type: ignore[arg-type]  # three of them
                torch.stack([found[layer][which][:, head] for layer, head in chosen], dim=1) for which in range(3)
            )
        )
    query, key, value = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return query, key, value


# --- like the encoder ---------------------------------------------------------------------------------------------


def _matched(source: Source, workload: Workload) -> Triple:
    """Normal numbers with the mean and the covariance of query, key and value of a token, head by head."""
    mean, root = _moments(source, workload.heads)
    length = max(workload.query_length, workload.key_length)
    shape = (workload.batch, workload.heads, length, mean.shape[-1])
    digest = hashlib.sha256(f"{workload.seed}:matched:{shape}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    drawn = torch.randn(shape, generator=generator)
    query, key, value = (drawn @ root.mT + mean[:, None]).split(encoder.HEAD_DIM, dim=-1)
    return query, key, value


@lru_cache(maxsize=4)
def _moments(source: Source, heads: int) -> tuple[Tensor, Tensor]:
    """Mean ``(H, 3D)`` and a root of the covariance ``(H, 3D, 3D)``, over eight windows of text."""
    path = None if source.file is None else sources.locate(source.file)
    tokens = texts.windows(texts.tokens_of(path), length=encoder.POSITIONS, count=_MATCHED_WINDOWS, first=0)
    joined = torch.cat(_watched(torch.tensor(tokens), _chosen(source, heads)), dim=-1)
    samples = joined.transpose(0, 1).flatten(1, 2).double()
    mean = samples.mean(dim=1)
    centred = samples - mean[:, None]
    covariance = centred.mT @ centred / (samples.shape[1] - 1)
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    jitter = _JITTER * size[:, None, None] * torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    return mean.float(), torch.linalg.cholesky(covariance + jitter).float()


# --- recorded -----------------------------------------------------------------------------------------------------


def _of_file(source: Source, workload: Workload) -> Triple:
    """The first items and heads, and the last positions, that the file holds."""
    from safetensors import safe_open

    assert source.file is not None  # noqa: S101  # by its kind
    wanted = {
        "query": (workload.heads, workload.query_length),
        "key": (workload.kv_heads, workload.key_length),
        "value": (workload.kv_heads, workload.key_length),
    }
    path = sources.locate(source.file)
    shapes = fits.shapes_of(path)

    def read() -> Iterator[Tensor]:
        with safe_open(path, framework="pt") as file:
            for name, (heads, length) in wanted.items():
                start = shapes[name][2] - length
                yield file.get_slice(name)[: workload.batch, :heads, start:].float().contiguous()

    query, key, value = read()
    if not all(bool(tensor.isfinite().all()) for tensor in (query, key, value)):
        raise WrongUsageError(f"expected finite numbers in {path.name}, some are not")
    return query, key, value
