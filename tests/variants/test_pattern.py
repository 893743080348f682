"""A mask as tensors, counts and backend arguments, against the words of its definition, pair by pair."""

from __future__ import annotations

import itertools
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask

from bench.measure.work import useful_flops
from tests.variants.problems import small
from variants import _blocks, _pattern
from variants._contract import Workload
from variants._mask import BigBird, Mask
from variants._pattern import Pattern

LENGTHS = [(1, 1), (7, 7), (50, 50), (30, 50), (50, 30), (1, 40), (40, 1)]
MASKS = [
    "full",
    "causal",
    "window:1",
    "window:7",
    "band:0",
    "band:5",
    "prefix:9",
    "document:4",
    "padding:0.5",
    "bigbird:8x1x1",
    "alibi",
    "causal+document:3+padding:0.6",
    "prefix:9+band:12",
    "bigbird:6x3x2+causal+padding:0.7",
    "window:9+document:5",
    "window:2+padding:0.5",
]


def sees(mask, workload, item, i, j):
    """The definition in words."""
    position = i + workload.key_length - workload.query_length
    s = position - j
    answers = []
    if mask.causal:
        answers.append(s >= 0)
    if mask.window is not None:
        answers.append(0 <= s < mask.window)
    if mask.band is not None:
        answers.append(abs(s) <= mask.band)
    if mask.prefix is not None:
        answers.append(j < mask.prefix or s >= 0)
    documents, kept, table = drawn(mask, workload)
    if documents is not None:
        answers.append(position >= 0 and documents[position] == documents[j])
    if kept is not None:
        answers.append(j < kept[item])
    if table is not None:
        block = mask.bigbird.block
        answers.append(position >= 0 and table[position // block][j // block])
    return all(answers)


@lru_cache(maxsize=512)
def drawn(mask, workload):
    """The seeded parts of a definition: each key's document, keys kept, and the table of blocks."""
    documents = kept = table = None
    if mask.document is not None:
        lengths = _pattern.document_lengths(mask.document, workload.key_length, workload.seed)
        documents = [number for number, length in enumerate(lengths) for _ in range(length)]
    if mask.padding is not None:
        kept = _pattern.kept_lengths(mask.padding, workload.batch, workload.key_length, workload.seed)
    if mask.bigbird is not None:
        table = _pattern.bigbird_table(mask.bigbird, workload.key_length, workload.seed).tolist()
    return documents, kept, table


@lru_cache(maxsize=512)
def by_definition(workload):
    """``(B, Nq, Nk)`` bool."""
    mask = Mask.parse(workload.mask)
    return torch.tensor(
        [
            [
                [sees(mask, workload, item, i, j) for j in range(workload.key_length)]
                for i in range(workload.query_length)
            ]
            for item in range(workload.batch)
        ]
    )


def of(mask, lengths, **changes):
    return small(mask=mask, query_length=lengths[0], key_length=lengths[1], **changes)


every_case = pytest.mark.parametrize(
    "workload",
    [of(mask, lengths) for mask in MASKS for lengths in LENGTHS],
    ids=lambda it: f"{it.mask}-{it.query_length}x{it.key_length}",
)


@every_case
def test_everything_follows_the_definition(workload):
    truth, pattern = by_definition(workload), Pattern.of(workload)
    dense, _ = pattern.dense()
    assert torch.equal(dense[:, 0].expand_as(truth), truth)
    assert pattern.pairs == int(truth.sum())
    assert pattern.sees_everything == bool(truth.all())
    for rows in (torch.tensor([workload.query_length - 1, 0]), torch.arange(0, workload.query_length, 3)):
        assert torch.equal(pattern.rows(rows)[0][:, 0].expand(workload.batch, -1, -1), truth[:, rows])
    keys = slice(workload.key_length // 3, workload.key_length)
    assert torch.equal(pattern.rows(rows, keys)[0][:, 0].expand(workload.batch, -1, -1), truth[:, rows, keys])


@every_case
def test_flex_sees_what_the_definition_says(workload):
    truth, allowed = by_definition(workload), Pattern.of(workload).mask_mod()
    item, i, j = (torch.arange(size) for size in truth.shape)
    seen = allowed(item[:, None, None], torch.zeros((), dtype=torch.int64), i[:, None], j)
    assert torch.equal(seen.expand_as(truth), truth)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", [(50, 50), (30, 50), (50, 30), (64, 64)])
def test_the_block_mask_is_the_one_that_torch_would_build(mask, lengths, size):
    workload = of(mask, lengths)
    pattern = Pattern.of(workload)
    ours = pattern.block_mask(size)
    theirs = create_block_mask(pattern.mask_mod(), workload.batch, 1, *lengths, device="cpu", BLOCK_SIZE=size)
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        ours_listed, theirs_listed = listed(ours, counts, indices), listed(theirs, counts, indices)
        batch = len(ours_listed)
        assert all(theirs_listed[item] == ours_listed[item % batch] for item in range(workload.batch)), counts


def listed(block_mask, counts, indices):
    """Per batch item and block of queries, the blocks of keys."""
    return [
        [set(row[:count].tolist()) for count, row in zip(item_counts[0].tolist(), item[0], strict=True)]
        for item_counts, item in zip(getattr(block_mask, counts), getattr(block_mask, indices), strict=True)
    ]


def test_block_sizes():
    assert Pattern.of(small(mask="causal")).block_mask().BLOCK_SIZE == (128, 128)
    assert Pattern.of(small(mask="bigbird:16x2x1")).block_mask().BLOCK_SIZE == (16, 16)


@given(
    mask=st.sampled_from(MASKS),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    seed=st.integers(0, 5),
)
def test_tiles_hold_all_that_is_seen_and_say_what_is_whole(mask, lengths, sizes, seed):
    workload = of(mask, lengths, seed=seed)
    truth = by_definition(workload)
    left = truth.clone()
    pairs = 0
    for tiles in Pattern.of(workload).tiles(*sizes):
        for tile in tiles:
            part = truth[:, tile.queries, tile.keys]
            assert part.any(), "a tile that nobody sees is not skipped"
            assert tile.whole == bool(part.all())
            left[:, tile.queries, tile.keys] = False
            pairs += part[0].numel()
    assert not left.any(), "something that is seen lies in no tile"
    some, _ = _blocks.seen_blocks(Pattern.of(workload), *sizes)
    if len(some) == 1:
        assert _blocks.covered_pairs(Pattern.of(workload), *sizes) == workload.batch * pairs


def test_covered_pairs_are_counted_by_batch_item():
    workload = small(mask="padding:0.5", query_length=20, key_length=30)
    kept = Pattern.of(workload).kept.tolist()
    assert len(set(kept)) > 1
    assert _blocks.covered_pairs(Pattern.of(workload), 8, 8) == sum(20 * min(30, -(-count // 8) * 8) for count in kept)


N = 128 * 1024


@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        ("causal", N * (N + 1) // 2),
        ("window:4k", 4096 * 4097 // 2 + (N - 4096) * 4096),
        ("band:100", 201 * N - 100 * 101),
        ("prefix:3k", 3072**2 + N * (N + 1) // 2 - 3072 * 3073 // 2),
        ("document:9", sum(length**2 for length in _pattern.document_lengths(9, N, 0))),
        ("padding:0.5", N * _pattern.kept_lengths(0.5, 1, N, 0)[0]),
        ("bigbird:64x2x3", 64**2 * int(_pattern.bigbird_table(BigBird(64, 2, 3), N, 0).sum())),
    ],
)
def test_long_sequences_are_counted_without_a_mask(mask, pairs):
    """As a mask this would take 16 GiB."""
    pattern = Pattern.of(Workload(query_length=N, key_length=N, mask=mask))
    assert pattern.pairs == pairs
    allowed, _ = pattern.rows(torch.tensor([0, N // 2, N - 1]))
    assert allowed.shape[-2:] == (3, N)


@pytest.mark.parametrize(
    ("mask", "lengths", "pairs"),
    [
        ("full", (10, 10), 100),
        ("full", (4, 10), 40),
        ("causal", (10, 10), 55),
        ("causal", (4, 10), 7 + 8 + 9 + 10),
        ("causal", (10, 4), 1 + 2 + 3 + 4),
        ("window:3", (10, 10), 1 + 2 + 3 * 8),
        ("window:3", (4, 10), 12),
        ("prefix:4", (10, 10), 4 * 4 + sum(range(5, 11))),
        ("band:1", (10, 10), 28),
        ("document:10", (10, 10), 10),
    ],
)
def test_pairs_by_hand_and_the_useful_work(mask, lengths, pairs):
    workload = of(mask, lengths, batch=3, heads=4, kv_heads=2, head_dim=8, mode="fwd")
    assert Pattern.of(workload).pairs == 3 * pairs
    assert useful_flops(workload) == 4 * 8 * 4 * 3 * pairs


def test_documents_fill_the_sequence_and_are_skewed():
    for documents, length in ((1, 1), (4, 4), (9, 4), (5, 1000), (16, 8192)):
        lengths = _pattern.document_lengths(documents, length, seed=0)
        assert len(lengths) == min(documents, length)
        assert sum(lengths) == length
        assert min(lengths) >= 1
    assert max(lengths) > 2 * sorted(lengths)[len(lengths) // 2]
    assert lengths == _pattern.document_lengths(16, 8192, seed=0) != _pattern.document_lengths(16, 8192, seed=1)


def test_padding_keeps_the_fraction_on_average():
    kept = _pattern.kept_lengths(0.8, 2000, 1000, seed=0)
    assert abs(sum(kept) / 2000 / 1000 - 0.8) < 0.01
    assert 700 <= min(kept) < max(kept) <= 900
    assert _pattern.kept_lengths(1, 3, 50, seed=0) == [50] * 3
    assert _pattern.kept_lengths(0.01, 3, 5, seed=0) == [1] * 3
    assert kept[:5] == _pattern.kept_lengths(0.8, 5, 1000, seed=0) != _pattern.kept_lengths(0.8, 5, 1000, seed=1)


@settings(max_examples=100)
@given(block=st.integers(1, 9), ends=st.integers(0, 5), random=st.integers(0, 5), length=st.integers(1, 150))
def test_bigbird_has_a_window_global_and_random_blocks(block, ends, random, length):
    table = _pattern.bigbird_table(BigBird(block, ends, random), length, seed=0)
    count = -(-length // block)
    assert table.shape == (count, count)
    front, back = -(-ends // 2), ends // 2
    for row, column in itertools.product(range(count), repeat=2):
        is_global = min(row, column) < front or max(row, column) >= count - back
        if abs(row - column) <= 1 or is_global:
            assert table[row, column]
    for row in range(front, count - back):
        fixed = {
            column for column in range(count) if abs(row - column) <= 1 or column < front or column >= count - back
        }
        assert int(table[row].sum()) == min(count, len(fixed) + random)


def test_random_blocks_depend_on_the_seed_alone():
    tables = [_pattern.bigbird_table(BigBird(4, 0, 3), 400, seed) for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


def test_alibi_is_a_slope_per_head_over_the_distance():
    assert _pattern.alibi_slopes(8) == [2.0**-power for power in range(1, 9)]
    assert _pattern.alibi_slopes(1) == [2.0**-8]
    assert _pattern.alibi_slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    pattern = Pattern.of(small(mask="alibi", query_length=3, key_length=5))
    bias = pattern.bias(torch.arange(3))
    distance = torch.tensor([[2, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    assert torch.equal(bias, -torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * distance[None, None])
    assert torch.equal(pattern.bias(torch.arange(3), slice(1, 3)), bias[..., 1:3])
    assert Pattern.of(small()).bias(torch.arange(3)) is None


def test_flex_changes_scores_as_the_bias_does():
    pattern = Pattern.of(small(mask="softcap:3+alibi", query_length=6, key_length=9))
    scores = 9 * torch.randn(6, 9)
    changed = pattern.score_mod()(scores, 0, torch.tensor(2), torch.arange(6)[:, None], torch.arange(9))
    torch.testing.assert_close(changed, 3 * (scores / 3).tanh() + pattern.bias(torch.arange(6))[0, 2])
    assert Pattern.of(small(mask="causal")).score_mod() is None


@pytest.mark.parametrize(
    ("mask", "lengths", "takes_mask", "is_causal"),
    [
        ("full", (9, 9), False, False),
        ("causal", (9, 9), False, True),
        ("causal", (5, 9), True, False),
        ("causal", (9, 5), True, False),
        ("causal", (1, 9), False, False),
        ("window:20", (9, 9), True, False),
        ("causal+document:2", (9, 9), True, False),
        ("alibi+causal", (9, 9), True, False),
        ("document:1", (9, 9), False, False),
    ],
)
def test_sdpa_gets_the_flag_only_where_it_means_the_mask(mask, lengths, takes_mask, is_causal):
    workload = of(mask, lengths)
    attn_mask, flag = Pattern.of(workload).sdpa()
    assert (attn_mask is not None, flag) == (takes_mask, is_causal)
    if attn_mask is None:
        return
    truth = by_definition(workload)[:, None]
    if attn_mask.dtype == torch.bool:
        assert torch.equal(attn_mask.expand_as(truth), truth)
    else:
        assert torch.equal(
            attn_mask.isfinite(), truth.expand_as(attn_mask) if len(attn_mask) > 1 else truth[:1].expand_as(attn_mask)
        )


def test_sdpa_has_no_soft_cap():
    with pytest.raises(ValueError, match="soft cap"):
        Pattern.of(small(mask="softcap:3")).sdpa()
