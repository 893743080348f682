"""Means over runs of positions: what Linformer pools keys into and Nyströmformer takes for landmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def pooled(tensor: Tensor, count: int) -> Tensor:
    """Means over ``count`` runs, as even as they can be: ``(B, H, n, D)`` to ``(B, H, min(count, n), D)``."""
    length = tensor.shape[2]
    size, longer = divmod(length, min(count, length))
    split = longer * (size + 1)
    means = [
        part.reshape(*part.shape[:2], -1, width, part.shape[3]).mean(dim=3)
        for part, width in ((tensor[:, :, :split], size + 1), (tensor[:, :, split:], size))
        if part.shape[2]
    ]
    return means[0] if len(means) == 1 else torch.cat(means, dim=2)
