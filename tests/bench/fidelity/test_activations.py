from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.errors import WrongUsageError
from bench.fidelity import activations, encoder, texts
from bench.fidelity.recording import recorded
from bench.measure import inputs
from tests.bench.extras import needs_encoder
from variants._contract import Workload

pytestmark = needs_encoder

SMALL = Workload(batch=2, heads=3, kv_heads=3, query_length=20, key_length=20, head_dim=32, inputs="minilm:1")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("ATTENTION_BENCH_INPUT_FILES", "")


def heads_of(tokens, layer):
    found = {}
    with torch.no_grad():
        encoder.load()(torch.tensor(tokens), watch=lambda which, *triple: found.__setitem__(which, triple))
    return found[layer]


def test_a_layers_heads_are_those_of_the_encoder_on_the_text():
    tokens = texts.windows(texts.tokens_of(None), length=20, count=2, first=0)
    expected = heads_of(tokens, 1)
    for got, right in zip(activations.make(SMALL), expected, strict=True):
        torch.testing.assert_close(got, right[:, :3])


def test_without_a_layer_heads_are_spread_over_all_of_them():
    source = replace(SMALL, inputs="minilm", heads=6, kv_heads=6)
    chosen = activations._chosen(activations.sources.parse("minilm"), 6)
    assert [layer for layer, _ in chosen] == [0, 1, 2, 3, 4, 5]
    every = activations._chosen(activations.sources.parse("minilm"), 72)
    assert every == [(layer, head) for layer in range(6) for head in range(12)]
    tokens = texts.windows(texts.tokens_of(None), length=20, count=2, first=0)
    layer, head = chosen[4]
    torch.testing.assert_close(activations.make(source)[1][:, 4], heads_of(tokens, layer)[1][:, head])


def test_a_shorter_query_is_the_end_of_the_sequence():
    query, key, value = activations.make(SMALL)
    short = activations.make(replace(SMALL, query_length=5))
    assert torch.equal(short[0], query[:, :, -5:])
    assert torch.equal(short[1], key)
    few = activations.make(replace(SMALL, key_length=5))
    assert torch.equal(few[0], query)
    assert torch.equal(few[2], value[:, :, -5:])


def test_seeds_read_on():
    both = activations.make(replace(SMALL, batch=4))[0]
    assert torch.equal(activations.make(replace(SMALL, seed=1))[0], both[2:])


def test_beyond_512_windows_are_encoded_apart_and_joined():
    long = replace(SMALL, batch=1, heads=1, kv_heads=1, query_length=601, key_length=601)
    tokens = texts.windows(texts.tokens_of(None), length=301, count=2, first=0)
    first, second = heads_of(tokens, 1)[1][:, 0]
    torch.testing.assert_close(activations.make(long)[1][0, 0], torch.cat([first, second])[:601])


def test_stretched_sequences_see_themselves_whole():
    long = replace(SMALL, batch=1, heads=1, kv_heads=1, query_length=601, key_length=601, inputs="minilm:1:stretched")
    tokens = texts.windows(texts.tokens_of(None), length=601, count=1, first=0)
    torch.testing.assert_close(activations.make(long)[1][0, 0], heads_of(tokens, 1)[1][0, 0])


def test_matched_numbers_have_the_moments_and_no_order():
    real = torch.cat(activations.make(replace(SMALL, batch=8, query_length=512, key_length=512)), dim=-1)
    like = activations.make(replace(SMALL, batch=32, query_length=512, key_length=512, inputs="matched:1"))
    drawn = torch.cat(like, dim=-1)
    for head in range(3):
        a, b = (tensor[:, head].flatten(0, 1).double() for tensor in (real, drawn))
        torch.testing.assert_close(a.mean(0), b.mean(0), atol=0.06, rtol=0.05)
        assert float((a.T.cov() - b.T.cov()).norm() / a.T.cov().norm()) < 0.05

    # a token's neighbour resembles it in text, here it is drawn anew
    def neighbours(tensor):
        centred = tensor[:, 0] - tensor[:, 0].mean((0, 1))
        return float((centred[:, 1:] * centred[:, :-1]).mean() / centred.pow(2).mean())

    assert neighbours(real) > 0.1
    assert abs(neighbours(drawn)) < 0.02
    assert torch.equal(
        drawn,
        torch.cat(
            activations.make(replace(SMALL, batch=32, query_length=512, key_length=512, inputs="matched:1")), dim=-1
        ),
    )


def test_inputs_of_a_workload_come_rounded_to_its_dtype():
    made = inputs.make(replace(SMALL, dtype="bfloat16"))
    assert made.query.dtype == torch.bfloat16
    assert torch.equal(made.value, activations.make(SMALL)[2].bfloat16())
    assert torch.equal(made.upstream, inputs.make(replace(SMALL, dtype="bfloat16", inputs="normal")).upstream)


# --- recorded ---------------------------------------------------------------------------------------------------------


def test_a_recorded_call_comes_back(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(32, 2, 16, batch_first=True, dropout=0.0), 2, enable_nested_tensor=False
    ).eval()
    path = tmp_path / "second.safetensors"
    sequence = torch.randn(2, 10, 32)
    before = model(sequence)
    with torch.no_grad(), recorded(path, call=1):
        after = model(sequence)
    torch.testing.assert_close(before, after)
    workload = Workload(batch=1, heads=2, kv_heads=2, query_length=4, key_length=9, head_dim=16, inputs=f"file:{path}")
    workload = replace(workload, inputs=str(activations.sources.parse(workload.inputs)))
    query, key, _ = activations.make(workload)
    layer = model.layers[1].self_attn
    hidden = model.layers[0](sequence)
    projected = (hidden @ layer.in_proj_weight.T + layer.in_proj_bias).detach()
    torch.testing.assert_close(query, projected[:1, -4:, :32].unflatten(-1, (2, 16)).transpose(1, 2))
    torch.testing.assert_close(key, projected[:1, -9:, 32:64].unflatten(-1, (2, 16)).transpose(1, 2))


def test_calls_of_an_imported_name_are_seen_too(tmp_path):
    path = tmp_path / "third.safetensors"
    tokens = texts.windows(texts.tokens_of(None), length=20, count=2, first=0)
    with torch.no_grad(), recorded(path, call=1):
        encoder.load()(torch.tensor(tokens))
    file = replace(SMALL, inputs=f"file:{path}")
    for got, right in zip(activations.make(file), activations.make(SMALL), strict=True):
        assert torch.equal(got, right)


def test_a_call_that_never_came_is_an_error(tmp_path):
    with (
        pytest.raises(WrongUsageError, match="expected at least 2 calls of scaled_dot_product_attention, saw 1"),
        recorded(tmp_path / "none.safetensors", call=1),
    ):
        torch.nn.functional.scaled_dot_product_attention(*(torch.ones(1, 1, 2, 4) for _ in range(3)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"heads": 4, "kv_heads": 2}, "4 of query heads asked for, it holds 2"),
        ({"query_length": 11}, "11 of queries asked for, it holds 10"),
        ({"head_dim": 8}, "its heads have 16 channels"),
        ({"kv_heads": 1}, "give kv_heads in that ratio"),
    ],
)
def test_what_a_file_has_not_is_a_reason(tmp_path, changes, reason):
    from safetensors.torch import save_file

    path = tmp_path / "some.safetensors"
    save_file({name: torch.ones(2, 2, 10, 16) for name in ("query", "key", "value")}, path)
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "query_length": 10, "key_length": 10, "head_dim": 16}
    workload = Workload(**(shape | changes), inputs=f"file:{path}")
    with pytest.raises(WrongUsageError, match=reason):
        activations.make(workload)


def test_a_file_of_something_else_is_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    save_file({"query": torch.ones(2, 3)}, path)
    with pytest.raises(WrongUsageError, match=r"expected query, key and value .*got query \(2, 3\)"):
        activations.make(Workload(inputs=f"file:{path}"))
    path.write_bytes(b"no tensors")
    with pytest.raises(WrongUsageError, match="expected a file of safetensors"):
        activations.make(Workload(inputs=f"file:{path}"))
