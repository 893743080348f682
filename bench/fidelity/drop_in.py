"""A variant in the place of attention in every layer of the shipped encoder, not trained for it.

Documents are news of one length in tokens, so that no padding needs a mask; their embeddings by the variant are held
against those of the exact encoder. Symbols: M documents, N tokens, H heads, D channels of a head.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from bench.fidelity import encoder, metrics, probe, rollout, shipped, texts
from bench.fidelity.classifier import judged
from bench.fidelity.trial import Attention, Replaced
from bench.record import finite
from variants._contract import Workload

if TYPE_CHECKING:
    from torch import Tensor

    from bench.fidelity.trial import TrialCase
    from variants._contract import Attend, Variant

AT_ONCE = 8
MOST_PROBED_LENGTH, PROBED_DOCUMENTS = 256, 2
_MAP_TOKENS, _MAP_LAYER = 20, 2

Told = Callable[[str], None]


def workload(*, length: int, seed: int, device: str) -> Workload:
    """What the variant is asked for in every layer."""
    return Workload(
        batch=AT_ONCE,
        heads=encoder.HEADS,
        kv_heads=encoder.HEADS,
        query_length=length,
        key_length=length,
        head_dim=encoder.HEAD_DIM,
        device=device,
        inputs="news",
        seed=seed,
    )


def obstacles(case: TrialCase) -> list[str]:
    """Why this drop-in cannot be tried here; the variant's own obstacles are not asked."""
    found = [*shipped.encoder_missing(), *shipped.news_missing()]
    if case.workload.query_length > encoder.POSITIONS:
        found.append(f"the encoder has {encoder.POSITIONS} positions, give --seq-len {encoder.POSITIONS} or less")
    return found


def replaced(case: TrialCase, variant: Variant, parameters: Any, *, told: Told) -> Replaced:
    """Embed every document with the variant and without, and compare."""
    begun = time.perf_counter()
    wanted, length, seed = int(case.options["documents"]), case.workload.query_length, case.workload.seed
    tokens, topics = _documents(wanted, length, seed)
    attend = variant.build(case.workload, parameters)
    told("embedding exactly")
    right = _exactly(wanted, length, seed)
    told("embedding with the variant")
    given = _embedded(tokens, attend)
    if not bool(given.isfinite().all()):
        raise ValueError("an embedding is not finite")
    told("comparing")
    cosines = (given * right).sum(dim=1)
    similar, was_similar = given @ given.T, right @ right.T
    pairs = torch.triu_indices(len(given), len(given), 1)
    own, moved, exactly = judged(given.numpy(), right.numpy(), topics)
    return Replaced(
        documents=len(tokens),
        cosine=float(cosines.mean()),
        least_cosine=float(cosines.min()),
        neighbours_kept=float((_nearest(similar) == _nearest(was_similar)).double().mean()),
        rank_correlation=_spearman(similar[*pairs], was_similar[*pairs]),
        apart=float(was_similar[*pairs].mean()),
        accuracy=own.accuracy,
        macro_f1=own.macro_f1,
        moved_accuracy=moved.accuracy,
        moved_macro_f1=moved.macro_f1,
        exact_accuracy=exactly.accuracy,
        exact_macro_f1=exactly.macro_f1,
        attention=_inside(tokens, attend, case.workload) if length <= MOST_PROBED_LENGTH else None,
        seconds=time.perf_counter() - begun,
        notes=[] if length <= MOST_PROBED_LENGTH else [f"weights are probed up to {MOST_PROBED_LENGTH} tokens only"],
    )


# --- documents ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _documents(wanted: int, length: int, seed: int) -> tuple[Tensor, list[str]]:
    """Tokens ``(M, N)`` and topics, as many of each; drawn by the seed. M is a multiple of what is embedded at once."""
    texts_of: dict[str, list[str]] = {}
    for text, topic in shipped.news():
        texts_of.setdefault(topic, []).append(text)
    draw = random.Random(f"news:{seed}")  # noqa: S311  # no secret
    rows: list[tuple[list[int], str]] = []
    for topic in sorted(texts_of):
        draw.shuffle(texts_of[topic])
        share = -(-wanted // len(texts_of))
        rows += [(tokens, topic) for tokens in islice(_long_enough(texts_of[topic], length), share)]
    draw.shuffle(rows)
    rows = rows[: len(rows) // AT_ONCE * AT_ONCE]
    return torch.tensor([tokens for tokens, _ in rows]), [topic for _, topic in rows]


def _long_enough(some: list[str], length: int) -> Iterator[list[int]]:
    for text in some:
        (tokens,) = texts.documents([text], length)
        if tokens is not None:
            yield tokens


@lru_cache(maxsize=4)
def _exactly(wanted: int, length: int, seed: int) -> Tensor:
    """Embeddings by the exact encoder; the same for every variant that a process tries."""
    return _embedded(_documents(wanted, length, seed)[0], encoder.exact_attention)


def _embedded(tokens: Tensor, attend: Attend) -> Tensor:
    """``(M, H·D)``, each of length 1."""
    model = encoder.load()
    with torch.no_grad():
        return torch.cat([model.embedding(some, attend) for some in tokens.split(AT_ONCE)])


# --- comparing ----------------------------------------------------------------------------------------------------


def _nearest(similarities: Tensor) -> Tensor:
    """The most similar other document of each, ``(M,)``."""
    nearest: Tensor = similarities.clone().fill_diagonal_(-torch.inf).argmax(dim=1)
    return nearest


def _spearman(one: Tensor, other: Tensor) -> float | None:
    from scipy.stats import spearmanr

    return finite(float(spearmanr(one.numpy(), other.numpy()).statistic))


def _inside(tokens: Tensor, attend: Attend, workload: Workload) -> Attention:
    """Of two documents, the weights in each layer, from within the encoder that the variant is in."""
    some = tokens[:AT_ONCE]
    given = weights_in(some, attend, workload)[:, :PROBED_DOCUMENTS]
    right = weights_in(some, encoder.exact_attention, workload)[:, :PROBED_DOCUMENTS]
    rolled, was_rolled = rollout.of(given), rollout.of(right)
    kept, distance = rollout.compared(rolled, was_rolled)
    return Attention(
        entropy=float(metrics.entropy(given).mean()),
        exact_entropy=float(metrics.entropy(right).mean()),
        distance=rollout.mean_distance(given),
        exact_distance=rollout.mean_distance(right),
        rollout_total_variation=distance,
        rollout_top10_kept=kept,
        map_layer=_MAP_LAYER,
        tokens=[texts.tokenizer().id_to_token(int(token)) for token in some[0, :_MAP_TOKENS]],
        map=_corner(given[_MAP_LAYER, 0].mean(dim=0)),
        exact_map=_corner(right[_MAP_LAYER, 0].mean(dim=0)),
        rollout=_corner(rolled[0]),
        exact_rollout=_corner(was_rolled[0]),
    )


def _corner(weights: Tensor) -> list[list[float]]:
    """Of ``(N, N)``, what the first tokens give to each other, in few digits."""
    return [[round(weight, 4) for weight in row] for row in weights[:_MAP_TOKENS, :_MAP_TOKENS].tolist()]


def weights_in(tokens: Tensor, attend: Attend, workload: Workload) -> Tensor:
    """Attention weights in every layer, ``(layers, batch, H, N, N)``, for as many sequences as the workload's batch."""
    found: list[Tensor] = []
    probed = partial(probe.by_identity, attend, workload=workload)
    with torch.no_grad():
        encoder.load()(tokens, attend, lambda _, query, key, __: found.append(probed(query, key)))
    return torch.stack(found)
