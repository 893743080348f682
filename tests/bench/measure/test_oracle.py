"""The oracle accepts what is right, in every dtype and mode, and rejects what is nearly right."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
import torch

import variants
from bench.measure import oracle, rows
from bench.measure.call import Call, Operands
from bench.measure.case import check
from bench.measure.fidelity import fidelity, of_weights
from bench.measure.oracle import Problem
from bench.record import Case
from tests.bench.attentions import SETTINGS, dense, small, variant, weights_of
from variants._contract import NoParameters, Workload
from variants._reference import exact, expand_heads


def judged(workload, build=dense, **changes):
    """What the oracle says of one call: of its output, and of its gradients."""
    problem = Problem(variant(build, **changes), workload, NoParameters())
    sampled = rows.sample(workload, rows.how_many(workload))
    operands = oracle.only_on(sampled, Operands.of(workload)).fresh(differentiable=workload.mode != "fwd")
    result = Call(build(workload, None), operands, workload.mode).whole()
    truth = oracle.truth(problem, operands, sampled)
    gradients = None if result.gradients is None else oracle.judge_gradients(truth, result.gradients)
    return oracle.judge_output(truth, result.output), gradients


WORKLOADS = [
    small(mask=mask, mode=mode, dtype=dtype)
    for mask in ("full", "causal", "window:5", "alibi+causal", "softcap:2+padding:0.6")
    for mode, dtype in (("fwd", "float64"), ("fwd_bwd", "float32"), ("fwd_bwd", "bfloat16"), ("bwd", "float16"))
] + [
    small(kv_heads=1, mode="bwd"),
    small(value_head_dim=24, mode="bwd"),
    small(query_length=7, key_length=130, mask="causal", mode="bwd"),
    small(query_length=130, key_length=7, mask="causal", mode="bwd"),
    small(batch=3, scale=0.5, mode="bwd"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_accepts_the_dense_formula(workload):
    output, gradients = judged(workload)
    assert output.holds, output
    assert (gradients is None) == (workload.mode == "fwd")
    assert gradients is None or gradients.holds, gradients


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("length", [1, 2, 300])
def test_accepts_a_kernel_that_rounds_elsewhere(dtype, length):
    """With one key, gradients of query and key are zero but for rounding."""

    def build(workload, _parameters):
        def attend(query, key, value):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=workload.is_square)

        return attend

    workload = small(query_length=length, key_length=length, mask="causal", dtype=dtype, mode="bwd")
    output, gradients = judged(workload, build)
    assert output.holds, output
    assert gradients.holds, gradients


def missing_scale(workload, _parameters):
    return dense(replace(workload, scale=1.0))


def wider_window(workload, _parameters):
    return dense(replace(workload, mask="window:17"))


def narrower_window(workload, _parameters):
    return dense(replace(workload, mask="window:15"))


def top_left(workload, _parameters):
    """Causal from the first query on, as `is_causal` has it."""

    def attend(query, key, value):
        scores = query @ key.mT * workload.softmax_scale
        late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(late, float("-inf")).softmax(-1) @ value

    return attend


def without_last_key(workload, _parameters):
    def attend(query, key, value):
        weights = weights_of(workload, query, key)[..., :-1]
        return weights / weights.sum(-1, keepdim=True) @ expand_heads(value, workload)[:, :, :-1]

    return attend


def swapped_heads(workload, parameters):
    attend = dense(workload, parameters)
    return lambda query, key, value: attend(query, key, value).flip(1)


def tiled_heads(workload, _parameters):
    """Grouped heads laid out one group after the other, not one beside the other."""

    def attend(query, key, value):
        key, value = key.repeat(1, workload.group, 1, 1), value.repeat(1, workload.group, 1, 1)
        return torch.softmax(query @ key.mT * workload.softmax_scale, dim=-1) @ value

    return attend


WRONG = [
    (missing_scale, small()),
    (missing_scale, small(mask="causal")),
    (wider_window, small(mask="window:16")),
    (narrower_window, small(mask="window:16")),
    (top_left, small(query_length=64, mask="causal")),
    (without_last_key, small()),
    (without_last_key, small(query_length=1000, key_length=1000)),
    (swapped_heads, small()),
    (tiled_heads, small(heads=4, kv_heads=2)),
]


@pytest.mark.parametrize(("build", "workload"), WRONG, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rejects_what_is_nearly_right(build, workload, dtype):
    output, _ = judged(replace(workload, dtype=dtype), build)
    assert output.error > 10 * output.tolerance


@pytest.mark.parametrize(
    ("build", "workload"), WRONG[:6] + WRONG[7:], ids=lambda value: getattr(value, "__name__", None)
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rejects_it_in_half_precision(build, workload, dtype):
    output, _ = judged(replace(workload, dtype=dtype), build)
    assert not output.holds


def test_accepts_in_float64_what_rounds_more_than_the_plain_formula():
    workload = small(query_length=700, key_length=700, head_dim=64, dtype="float64", mode="fwd_bwd", seed=1)
    variant = variants.find()["linformer"]  # drawn projections lengthen keys and values
    given = msgspec.to_builtins(variant.parameters(rank=2, projection="learned"))
    case = Case(variant="linformer", workload=workload, parameters=given)
    outcome = check(case, variant, settings=SETTINGS, on_stage=lambda stage: None)
    assert outcome.own_error <= outcome.tolerance < 1e-9


def test_a_large_row_lends_no_tolerance_to_a_small_one():
    """The first rows of a causal mask see few keys and are large; an error in the last one is small beside them."""
    workload = small(query_length=2000, key_length=2000, mask="causal", dtype="bfloat16")

    def build(workload, parameters):
        attend = dense(workload, parameters)

        def wrong(query, key, value):
            output = attend(query, key, value)
            output[:, :, -1] += 0.02
            return output

        return wrong

    output, _ = judged(workload, build)
    assert not output.holds
    assert output.place == "query row 1999"


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_rejects_a_wrong_gradient(name):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_context, tensor):
            return tensor.clone()

        @staticmethod
        def backward(_context, gradient):
            return gradient * 1.001

    def build(workload, parameters):
        attend = dense(workload, parameters)

        def wrong(**inputs):
            inputs[name] = Scaled.apply(inputs[name])
            return attend(**inputs)

        return lambda query, key, value: wrong(query=query, key=key, value=value)

    output, gradients = judged(small(mode="bwd", mask="causal"), build)
    assert output.holds
    assert not gradients.holds
    assert gradients.place == f"the gradient of {name}"


def test_an_unused_input_has_a_zero_gradient():
    """The mean of the values uses neither query nor key: no gradient is as good as a gradient of zero."""

    def mean(value, workload, length):
        return expand_heads(value, workload).mean(2, keepdim=True).expand(-1, -1, length, -1)

    def reference(query, key, value, *, workload, parameters, rows, routing=None):
        return mean(value, workload, len(rows))

    for weight in (None, 0.0):

        def build(workload, _parameters, weight=weight):
            def attend(query, key, value):
                output = mean(value, workload, workload.query_length)
                return output if weight is None else output + weight * query[..., :1]

            return attend

        output, gradients = judged(small(mode="bwd"), build, reference=reference)
        assert output.holds
        assert gradients.holds


def test_a_missing_gradient_counts_as_zero_and_is_wrong():
    def build(workload, parameters):
        attend = dense(workload, parameters)
        return lambda query, key, value: attend(query.detach(), key, value)

    _, gradients = judged(small(mode="bwd"), build)
    assert not gradients.holds
    assert gradients.place == "the gradient of query"


def test_the_reference_gets_the_routing_of_these_inputs():
    seen = []

    def route(query, key, *, workload, parameters):
        assert query.dtype == torch.float32
        return query.sum(-1) > key.sum(-1)

    def reference(query, key, value, *, workload, parameters, rows, routing):
        seen.append((query.dtype, routing.float().mean().item()))
        return exact(query, key, value, workload=workload, rows=rows)

    judged(small(), reference=reference, route=route)
    assert [dtype for dtype, _ in seen] == [torch.float64, torch.float32]
    assert len({share for _, share in seen}) == 1
    assert 0 < seen[0][1] < 1


def test_rows_hold_the_ends_and_block_edges_and_are_seeded():
    workload = small(query_length=1000, key_length=1000)
    sampled = rows.sample(workload, 30).tolist()
    assert len(sampled) == 30
    assert sampled == sorted(set(sampled))
    assert {0, 999, 63, 64, 127, 128, 959, 960} <= set(sampled)
    assert sampled == rows.sample(workload, 30).tolist()
    assert sampled != rows.sample(replace(workload, seed=1), 30).tolist()
    assert rows.sample(workload, 6).tolist()[-1] == 999
    assert rows.sample(small(query_length=1), 48).tolist() == [0]


@pytest.mark.parametrize(("length", "expected"), [(20, 20), (1024, 32), (16 * 1024, 8), (1024 * 1024, 6)])
def test_as_many_rows_as_keep_scores_small(length, expected):
    assert rows.how_many(small(heads=8, kv_heads=8, query_length=length, key_length=length)) == expected


# --- fidelity ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncated:
    """An approximation: attention to the first keys only."""

    keys: int = 24

    def reference(self, query, key, value, *, workload, parameters, rows, routing=None):
        shorter = replace(workload, key_length=self.keys)
        return exact(query, key[:, :, : self.keys], value[:, :, : self.keys], workload=shorter, rows=rows)


def approximation(workload, keys):
    truncated = Truncated(keys)
    problem = Problem(variant(exact=False, reference=truncated.reference), workload, NoParameters())
    operands = Operands.of(workload)
    truth = oracle.truth(problem, operands, rows.sample(workload, 12))
    output = truncated.reference(
        *operands.inputs, workload=workload, parameters=None, rows=torch.arange(workload.query_length)
    )
    return problem, truth, output


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_fidelity_is_that_of_the_truncation(kv_heads):
    workload = small(heads=4, kv_heads=kv_heads, batch=2)
    problem, truth, output = approximation(workload, 24)
    found = fidelity(problem, truth, output)
    weights = weights_of(workload, *Operands.of(workload).inputs[:2])
    right = (weights @ expand_heads(Operands.of(workload).value, workload))[:, :, truth.rows]
    given = output[:, :, truth.rows]
    assert found.relative_error == pytest.approx(float((given - right).norm() / right.norm()), rel=1e-4)
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(given, right, dim=-1).mean()), rel=1e-4)
    kept = weights[:, :, truth.rows, :24].sum(-1)
    assert found.mass_recall == pytest.approx(float(kept.mean()), rel=1e-4)
    assert found.overlap == pytest.approx(float(kept.mean()), rel=1e-4)  # what is left is only enlarged
    assert found.total_variation == pytest.approx(float((1 - kept).mean()), rel=1e-4)
    assert found.density == pytest.approx(24 / 96)


def test_an_exact_variant_is_faithful():
    workload = small(mask="causal")
    problem = Problem(variant(), workload, NoParameters())
    operands = Operands.of(workload)
    truth = oracle.truth(problem, operands, rows.sample(workload, 12))
    found = fidelity(problem, truth, dense(workload)(*operands.inputs))
    assert found.relative_error < 1e-5
    assert found.cosine == pytest.approx(1)
    assert (found.mass_recall, found.total_variation, found.top8_recall, found.density) == (1, 0, 1, 1)


def test_no_weights_without_values_or_channels():
    problem, truth, _ = approximation(small(), 24)
    blind = replace(problem, variant=replace(problem.variant, uses=frozenset({"query"})))
    assert of_weights(blind, truth, torch.ones(1)).mass_recall is None
    problem, truth, _ = approximation(small(heads=4, kv_heads=1, head_dim=3), 24)
    assert of_weights(problem, truth, torch.ones(1)).mass_recall is None


def test_a_formula_that_once_rounded_well_is_asked_again(monkeypatch):
    """Two landmarks that are nearly alike: the inverse enlarges rounding, here more in the call than in the formula."""
    workload = Workload(
        batch=2, heads=4, kv_heads=2, query_length=2, key_length=2, head_dim=5, mode="fwd_bwd", inputs="normal", seed=2
    )
    nystrom = variants.find()["nystrom"]
    problem = Problem(nystrom, workload, nystrom.parameters())
    operands = Operands.of(workload).fresh(differentiable=True)
    result = Call(nystrom.build(workload, problem.parameters), operands, "fwd_bwd").whole()
    assert oracle.judge_gradients(oracle.truth(problem, operands, torch.arange(2)), result.gradients).holds
    monkeypatch.setattr(oracle, "_SHAKES", 1)
    monkeypatch.setattr(oracle.Truth, "_shaken", lambda truth, _: (truth.output, truth.gradients))
    assert not oracle.judge_gradients(oracle.truth(problem, operands, torch.arange(2)), result.gradients).holds
