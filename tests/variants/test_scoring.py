"""Scores of other kinds: the formulas written out, what must be equal, and what training computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure.call import Call
from tests.variants import parametrised
from tests.variants.problems import VARIANTS, operands, run, small, square
from variants import bahdanau, hard, luong_general
from variants._pattern import Pattern

TERMS = ("full", "causal+padding:0.6", "softcap:2+alibi+causal")


def written_out(workload, given, score):
    """softmax of score(head, key head, query, key), one number at a time, in float64."""
    query, key, value = (tensor.detach().double() for tensor in given.inputs)
    allowed, bias = Pattern.of(workload, "cpu").dense()
    allowed = allowed.expand(workload.batch, workload.heads, -1, -1)
    softcap = Pattern.of(workload, "cpu").mask.softcap
    output = torch.zeros(*query.shape[:3], value.shape[3], dtype=torch.float64)
    for item in range(workload.batch):
        for head in range(workload.heads):
            of_key = head // workload.group
            for i in range(workload.query_length):
                seen = allowed[item, head, i].nonzero().flatten().tolist()
                if not seen:
                    continue
                scores = torch.stack([score(head, of_key, query[item, head, i], key[item, of_key, j]) for j in seen])
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if bias is not None:
                    scores = scores + bias[0, head, i, seen]
                output[item, head, i] = torch.softmax(scores, 0) @ value[item, of_key, seen]
    return output


def tiny(**changes):
    return small(**({"query_length": 7, "key_length": 9, "head_dim": 5, "mode": "fwd", "dtype": "float64"} | changes))


def score_of(name, workload):
    match name:
        case "dot_product":
            return lambda head, of_key, q, k: (q * k).sum()
        case "luong_general":
            matrices = luong_general.matrix(workload, luong_general.Parameters())
            return lambda head, of_key, q, k: sum(q[a] * (matrices[head, a] * k).sum() for a in range(len(q)))
        case "bahdanau":
            w, u, v = bahdanau.network(workload, bahdanau.Parameters())
            return lambda head, of_key, q, k: (v[head] * torch.tanh(w[head].T @ q + u[of_key].T @ k)).sum()


@pytest.mark.parametrize("mask", TERMS)
@pytest.mark.parametrize("name", ["dot_product", "luong_general", "bahdanau"])
def test_the_formula_written_out(name, mask):
    workload = tiny(mask=mask)
    right = written_out(workload, operands(workload), score_of(name, workload))
    torch.testing.assert_close(run(name, workload).output, right)


@pytest.mark.parametrize("mask", TERMS)
def test_a_dot_product_is_exact_attention_of_scale_one(mask):
    first, second = run("dot_product", small(mask=mask)), run("naive_sdpa", small(mask=mask, scale=1.0))
    torch.testing.assert_close(first.output, second.output, rtol=1e-4, atol=1e-5)
    for one, other in zip(first.gradients, second.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dot_product", "luong_general", "bahdanau", "positional", "factorized_positional"])
def test_a_scale_that_has_no_meaning_is_refused(name):
    variant = VARIANTS[name]
    (reason,) = variant.obstacles(small(scale=0.3), variant.parameters())
    assert reason.startswith("a scale of 0.3: ")
    assert not variant.obstacles(small(scale=1.0), variant.parameters())


@pytest.mark.parametrize(
    "name", ["dot_product", "luong_general", "bahdanau", "hard", "topk", "positional", "factorized_positional"]
)
@pytest.mark.parametrize(
    "mask", ["band:9+document:4+padding:0.5", "softcap:2+alibi+causal", "bigbird:16x2x1", "prefix:9"]
)
def test_scores_of_any_kind_take_any_mask(name, mask):
    variant = VARIANTS[name]
    for workload in (small(mask=mask), small(mask=mask, key_length=40, value_head_dim=24, dtype="float16")):
        assert not variant.obstacles(workload, variant.parameters())


def test_luong_with_the_identity_is_a_dot_product(monkeypatch):
    identity = torch.eye(16).expand(4, -1, -1)
    monkeypatch.setattr(luong_general, "matrix", lambda workload, parameters: identity)
    result = parametrised.run(luong_general.VARIANT, small(mask="causal"), luong_general.Parameters())
    torch.testing.assert_close(result.output, run("dot_product", small(mask="causal")).output)


def test_luong_has_a_rotation_for_every_head():
    matrices = luong_general.matrix(small(dtype="float64"), luong_general.Parameters())
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(16, dtype=torch.float64).expand(4, -1, -1))
    assert len({float(matrix[0, 0]) for matrix in matrices}) == 4


@pytest.mark.parametrize(
    ("module", "weights"), [(luong_general, "matrix"), (bahdanau, "network")], ids=["luong_general", "bahdanau"]
)
@pytest.mark.parametrize("mask", ["causal+padding:0.6", "softcap:0.5"])  # capped, gradients of scores have a sum
def test_training_reaches_the_weights(monkeypatch, module, weights, mask):
    workload = tiny(mode="fwd_bwd", mask=mask)
    parameters = module.Parameters(learned=True)
    learned = getattr(module, weights)(workload, parameters)
    monkeypatch.setattr(module, weights, lambda workload, parameters: learned)
    leaves = (learned,) if isinstance(learned, torch.Tensor) else tuple(learned)
    assert all(leaf.requires_grad for leaf in leaves)
    attend = module.VARIANT.build(workload, parameters)
    given = operands(workload)
    inputs = tuple(tensor.detach().requires_grad_() for tensor in given.inputs)

    def loss_at(*weights):
        with torch.no_grad():
            for leaf, new in zip(leaves, weights, strict=True):
                leaf.copy_(new)
        return float((attend(*given.inputs).detach() * given.upstream).sum())

    gradients = torch.autograd.grad(attend(*inputs), leaves, given.upstream)
    originals = [leaf.detach().clone() for leaf in leaves]
    for at, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, dtype=gradient.dtype, generator=torch.Generator().manual_seed(at))
        ends = []
        for step in (1e-6, -1e-6):
            moved = list(originals)
            moved[at] = originals[at] + step * direction
            ends.append(loss_at(*moved))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("module", [luong_general, bahdanau], ids=["luong_general", "bahdanau"])
@pytest.mark.parametrize("learned", [False, True])
def test_training_the_weights_changes_no_result(module, learned):
    parametrised.check(module.VARIANT, small(query_length=30, mask="causal"), module.Parameters(learned=learned))


def test_additive_memory_is_linear():
    workload = small(batch=1, heads=2, kv_heads=1)
    exponent = parametrised.memory_exponent(bahdanau.VARIANT, workload, bahdanau.Parameters(width=8), (512, 1024))
    assert exponent < 1.3


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_additive_pieces_of_any_size_agree(monkeypatch, step):
    workload = small(query_length=20, key_length=31, mask="padding:0.6+alibi")
    monkeypatch.setattr(bahdanau, "_CPU_PIECE", step * 31 * 64)
    parametrised.check(bahdanau.VARIANT, workload, bahdanau.Parameters())


def test_additive_scores_of_large_inputs_saturate():
    workload = small(query_length=20, key_length=20)
    given = operands(workload)
    given.query.mul_(1e4)
    result = run("bahdanau", workload, given)
    assert all(tensor.isfinite().all() for tensor in (result.output, *result.gradients))


# --- hard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal+padding:0.6", "alibi", "document:3+window:9"])
def test_hard_attention_is_the_limit_of_a_large_scale(mask):
    workload = small(dtype="float64", mask=mask, mode="fwd")
    scaled = replace(workload, scale=1e9)
    if "alibi" in mask:  # which a scale would drown
        given = operands(workload)
        query, key = given.query, given.key.repeat_interleave(2, 1)
        scores = query @ key.mT / 4 + Pattern.of(workload, "cpu").dense()[1]
        right = given.value.repeat_interleave(2, 1).take_along_dim(scores.argmax(-1)[..., None], 2)
    else:
        right = run("naive_sdpa", scaled).output
    torch.testing.assert_close(run("hard", workload).output, right)


def test_a_hard_choice_has_a_gradient_for_the_value_only():
    workload = small(mask="causal", dtype="float64")
    given = operands(workload)
    result = run("hard", workload)
    assert result.gradients[0] is None
    assert result.gradients[1] is None
    choices = hard.route(given.query, given.key, workload=workload, parameters=None)
    right = torch.zeros_like(given.value)
    for item, head, row in torch.cartesian_prod(*map(torch.arange, (2, 4, 100))).tolist():
        right[item, head // 2, choices[item, head, row]] += given.upstream[item, head, row]
    torch.testing.assert_close(result.gradients[2], right)


def test_a_query_that_sees_nothing_chooses_nothing():
    workload = small(query_length=72, key_length=40, mask="causal")
    given = operands(workload)
    choices = hard.route(given.query, given.key, workload=workload, parameters=None)
    assert (choices[:, :, :32] == hard.NO_KEY).all()
    assert (choices[:, :, 32:] >= 0).all()


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.001), ("bfloat16", 0.01)])
def test_rounding_seldom_changes_the_choice(dtype, share):
    workload = square(300, dtype=dtype, mode="fwd")
    given = operands(workload)
    fine = replace(workload, dtype="float64")
    here = hard.route(given.query, given.key, workload=workload, parameters=None)
    right = hard.route(given.query.double(), given.key.double(), workload=fine, parameters=None)
    assert (here != right).double().mean() <= share


# --- expanded keys and values -------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["full", "causal", "causal+padding:0.6", "alibi"])
def test_repeated_heads_are_grouped_heads(mask):
    workload = small(mask=mask, heads=6, kv_heads=2)
    first, second = run("sdpa_expanded_kv", workload), run("sdpa_auto", workload)
    torch.testing.assert_close(first.output, second.output)
    for one, other in zip(first.gradients, second.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_repeating_costs_its_memory():
    workload = square(512, batch=1, heads=8, kv_heads=1, mode="fwd", head_dim=32)
    extra = 2 * 8 * 512 * 32 * 4
    weight = {
        name: parametrised.peak_bytes(VARIANTS[name], workload, VARIANTS[name].parameters())
        for name in ("sdpa_expanded_kv", "sdpa_auto")
    }
    assert weight["sdpa_expanded_kv"] - weight["sdpa_auto"] >= 0.9 * extra


# --- work ---------------------------------------------------------------------------------------------------


WORK = [
    (name, learned)
    for name in ("dot_product", "luong_general", "topk", "channel", "positional", "factorized_positional")
    for learned in ((False, True) if hasattr(VARIANTS[name].parameters(), "learned") else (None,))
]


@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize(("name", "learned"), WORK)
def test_the_work_is_what_torch_counts(name, learned, mode):
    variant = VARIANTS[name]
    parameters = variant.parameters() if learned is None else variant.parameters(learned=learned)
    workload = square(300, mode=mode)
    call = Call(variant.build(workload, parameters), operands(workload).fresh(differentiable=mode != "fwd"), mode)
    with FlopCounterMode(display=False) as counter:
        call.whole()
    assert variant.flops(workload, parameters) == counter.get_total_flops()
