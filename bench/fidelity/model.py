"""The small model that tasks train: two or three layers, 64 channels, a short convolution before each attention.

Pre-norm, sinusoidal positions. The convolution of three tokens stands for the local mixing that every language model
learns first; without it none of the tasks is solved in a budget that anybody has for a benchmark.
Symbols: B sequences, N tokens, H heads, D channels of a head, C = H · D.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import gelu

if TYPE_CHECKING:
    from torch import Tensor

    from variants._contract import Attend

HEADS, HEAD_DIM = 1, 64
_EMBEDDING_STD = 0.5
_WIDE = 2


class Model(nn.Module):
    """Tokens ``(B, N)`` to scores of answers ``(B, N, answers)``."""

    def __init__(self, *, tokens: int, answers: int, length: int, layers: int, attend: Attend) -> None:
        super().__init__()
        channels = HEADS * HEAD_DIM
        self.embedding = nn.Embedding(tokens, channels)
        nn.init.normal_(self.embedding.weight, std=_EMBEDDING_STD)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(length, channels), persistent=False)
        self.layers = nn.ModuleList(_Layer(channels, attend) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.answer = nn.Linear(channels, answers)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.answer(self.norm(hidden))
        return scores


class _Layer(nn.Module):
    def __init__(self, channels: int, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.mix = nn.Conv1d(channels, channels, 3, padding=1, groups=channels)
        self.before, self.between = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.inner, self.outer = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.wide, self.narrow = nn.Linear(channels, _WIDE * channels), nn.Linear(_WIDE * channels, channels)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.before(hidden)
        mixed = normed + self.mix(normed.mT).mT
        query, key, value = (
            part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2).contiguous()
            for part in self.inner(mixed).chunk(3, dim=-1)
        )
        hidden = hidden + self.outer(self.attend(query, key, value).transpose(1, 2).flatten(2))
        added: Tensor = hidden + self.narrow(gelu(self.wide(self.between(hidden))))
        return added


def sinusoids(length: int, channels: int) -> Tensor:
    """Positions ``(N, C)`` as sines and cosines of falling frequencies (arXiv 1706.03762, section 3.5)."""
    place = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, channels, 2) * (-math.log(10_000.0) / channels))
    return torch.cat([torch.sin(place * rate), torch.cos(place * rate)], dim=1)
