"""Records what goes into a model's attention, for ``--inputs file:PATH.safetensors``.

    from bench.fidelity.recording import recorded

    with recorded("layer3.safetensors", call=3):
        model(**batch)

It sees the calls of ``torch.nn.functional.scaled_dot_product_attention``, from wherever they come, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bench.errors import WrongUsageError

_NAMES = ("query", "key", "value")
_attention = functional.scaled_dot_product_attention


class _Listener(TorchFunctionMode):
    """Keeps the tensors of one call.

    It hears of calls as a mode does, and, since torch's own modules call attention where no mode is told, as the
    function that stands in its place.
    """

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted
        self.calls = 0
        self.kept: dict[str, torch.Tensor] = {}
        self._counted = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _attention and not self._counted:
            self._count(args, kwargs)
        return func(*args, **kwargs)

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        self._count(args, kwargs)
        self._counted = True
        try:
            return _attention(*args, **kwargs)
        finally:
            self._counted = False

    def _count(self, args: Any, kwargs: Any) -> None:
        if self.calls == self.wanted:
            named = dict(zip(_NAMES, args, strict=False)) | kwargs
            self.kept = {name: named[name].detach().clone() for name in _NAMES}
        self.calls += 1


@contextmanager
def recorded(path: str | Path, *, call: int = 0) -> Iterator[None]:
    """Write query, key and value of the ``call``-th attention inside the block to ``path``.

    Raises:
        WrongUsageError: there were not as many calls, or its tensors are not ``(batch, heads, length, channels)``.

    """
    from safetensors.torch import save_file

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)  # it computes attention without calling it
    listener = _Listener(call)
    functional.scaled_dot_product_attention = listener.attend
    try:
        with listener:
            yield
    finally:
        functional.scaled_dot_product_attention = _attention
        torch.backends.mha.set_fastpath_enabled(value=fast)
    if not listener.kept:
        raise WrongUsageError(
            f"expected at least {call + 1} calls of scaled_dot_product_attention, saw {listener.calls}"
        )
    if any(tensor.dim() != 4 for tensor in listener.kept.values()):  # noqa: PLR2004  # batch, heads, length, channels
        shapes = {name: tuple(tensor.shape) for name, tensor in listener.kept.items()}
        raise WrongUsageError(f"expected tensors (batch, heads, length, channels) in call {call}, got {shapes}")
    save_file({name: tensor.cpu().contiguous() for name, tensor in listener.kept.items()}, path)
