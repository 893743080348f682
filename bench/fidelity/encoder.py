"""all-MiniLM-L6-v2, a sentence encoder of six layers with twelve heads of 32, with its attention to be chosen.

The forward pass of BERT (arXiv 1810.04805), post-norm, as the weights of MiniLM (arXiv 2002.10957) were trained for.
Symbols: B batch, N length, H heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import gelu, interpolate, layer_norm, linear, normalize, scaled_dot_product_attention

from bench.fidelity import shipped

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Attend

HEADS, HEAD_DIM, POSITIONS = 12, 32, 512
_EPSILON = 1e-12

# What sees query, key and value of a layer, each (B, H, N, D): its index first.
Watch = Callable[[int, "Tensor", "Tensor", "Tensor"], None]


def exact_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the encoder was trained with."""
    return scaled_dot_product_attention(query, key, value)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Weights by their names in the checkpoint, float32."""

    weights: dict[str, Tensor]
    layers: int

    def __call__(self, tokens: Tensor, attend: Attend = exact_attention, watch: Watch | None = None) -> Tensor:
        """Hidden states ``(B, N, H·D)`` of ``tokens``, ``(B, N)`` int64, every layer attending by ``attend``.

        Beyond 512 tokens, the table of positions is interpolated.
        """
        hidden = self._embedded(tokens)
        for layer in range(self.layers):
            hidden = self._layer(layer, hidden, attend, watch)
        return hidden

    def embedding(self, tokens: Tensor, attend: Attend = exact_attention) -> Tensor:
        """One vector of length 1 for each sequence, the mean over its tokens, ``(B, H·D)``."""
        return normalize(self(tokens, attend).mean(dim=1), dim=-1)

    def _embedded(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        table = self.weights["embeddings.position_embeddings.weight"]
        if length > POSITIONS:
            table = interpolate(table.T[None], size=length, mode="linear", align_corners=True)[0].T
        words = self.weights["embeddings.word_embeddings.weight"][tokens]
        kind = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self._normed("embeddings.LayerNorm", words + table[:length] + kind)

    def _layer(self, layer: int, hidden: Tensor, attend: Attend, watch: Watch | None) -> Tensor:
        here = f"encoder.layer.{layer}"
        query, key, value = (
            self._dense(f"{here}.attention.self.{name}", hidden).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        if watch is not None:
            watch(layer, query, key, value)
        attended = attend(query, key, value).transpose(1, 2).flatten(2)
        added = hidden + self._dense(f"{here}.attention.output.dense", attended)
        hidden = self._normed(f"{here}.attention.output.LayerNorm", added)
        wide = gelu(self._dense(f"{here}.intermediate.dense", hidden))
        return self._normed(f"{here}.output.LayerNorm", hidden + self._dense(f"{here}.output.dense", wide))

    def _dense(self, name: str, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _normed(self, name: str, inputs: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(inputs, weight.shape, weight, bias, _EPSILON)


@cache
def load() -> Encoder:
    """The shipped weights. Takes 90 MB of memory and no network."""
    from safetensors.torch import load_file

    weights = load_file(shipped.encoder_folder() / "model.safetensors")
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    return Encoder({name: tensor for name, tensor in weights.items() if tensor.dtype == torch.float32}, layers)
