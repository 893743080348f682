"""The encoder against transformers' own BERT, and against similarities that its authors publish."""

from __future__ import annotations

import pytest
import torch

from bench.fidelity import encoder, shipped, texts
from tests.bench.extras import needs_encoder

pytestmark = needs_encoder

SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "A cheetah chases prey on across a field."]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def tokens(length, count=1):
    return torch.tensor(texts.windows(texts.tokens_of(None), length=length, count=count, first=3))


def test_similar_sentences_are_similar():
    model = encoder.load()
    vectors = [model.embedding(torch.tensor([texts.tokenizer().encode(text).ids]))[0] for text in SENTENCES]
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.7553, abs=2e-4)  # as its documentation prints it
    assert float(vectors[0] @ vectors[2]) < 0.2
    assert float(vectors[0].norm()) == pytest.approx(1)


def softmax_by_hand(query, key, value):
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / 32**0.5
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights, value)


def by_hand(ids):
    """BERT in float64 from the checkpoint, head by head, with nothing of ours."""
    from safetensors.torch import load_file

    w = {k: v.double() for k, v in load_file(shipped.encoder_folder() / "model.safetensors").items()}

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]
        )

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(6):
        p = f"encoder.layer.{layer}."
        heads = []
        q, k, v = (
            x @ w[f"{p}attention.self.{n}.weight"].T + w[f"{p}attention.self.{n}.bias"]
            for n in ("query", "key", "value")
        )
        for head in range(12):
            part = slice(32 * head, 32 * head + 32)
            heads.append(torch.softmax(q[:, part] @ k[:, part].T / 32**0.5, -1) @ v[:, part])
        y = torch.cat(heads, -1) @ w[f"{p}attention.output.dense.weight"].T + w[f"{p}attention.output.dense.bias"]
        x = norm(x + y, f"{p}attention.output.LayerNorm")
        z = x @ w[f"{p}intermediate.dense.weight"].T + w[f"{p}intermediate.dense.bias"]
        z = z * 0.5 * (1 + torch.erf(z / 2**0.5))
        x = norm(x + z @ w[f"{p}output.dense.weight"].T + w[f"{p}output.dense.bias"], f"{p}output.LayerNorm")
    return x


def test_hidden_states_are_those_of_a_forward_written_from_scratch():
    ids = tokens(40)
    torch.testing.assert_close(encoder.load()(ids)[0].double(), by_hand(ids[0]), atol=2e-5, rtol=1e-4)


def test_the_attention_is_used_in_every_layer():
    model, ids, seen = encoder.load(), tokens(24, 2), []

    def attend(query, key, value):
        seen.append(tuple(query.shape))
        return softmax_by_hand(query, key, value)

    torch.testing.assert_close(model(ids, attend), model(ids), atol=1e-4, rtol=1e-4)
    assert seen == [(2, 12, 24, 32)] * 6
    assert not torch.allclose(model(ids, lambda q, k, v: v), model(ids), atol=0.1)


def test_watching_sees_what_attention_gets():
    model, ids, got, watched = encoder.load(), tokens(16), [], []

    def attend(*triple):
        got.append(triple)
        return encoder.exact_attention(*triple)

    model(ids, attend, lambda layer, *triple: watched.append((layer, triple)))
    assert [layer for layer, _ in watched] == list(range(6))
    assert all(a is b for (_, left), right in zip(watched, got, strict=True) for a, b in zip(left, right, strict=True))


def test_positions_beyond_the_table_are_interpolated():
    model = encoder.load()
    table = model.weights["embeddings.position_embeddings.weight"]
    ids = torch.zeros(1, 1023, dtype=torch.int64)
    stretched, plain = model._embedded(ids), model._embedded(ids[:, :512])
    torch.testing.assert_close(stretched[:, ::2], plain, atol=1e-5, rtol=1e-5)  # every other one is in the table
    words = (
        model.weights["embeddings.word_embeddings.weight"][0]
        + model.weights["embeddings.token_type_embeddings.weight"][0]
    )
    between = model._normed("embeddings.LayerNorm", words + (table[7] + table[8]) / 2)
    torch.testing.assert_close(stretched[0, 15], between, atol=1e-5, rtol=1e-5)
