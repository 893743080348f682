"""Tasks that a model can only solve by attending: made-up sequences, with an answer at some of their positions.

=============  =====================================================================================================
``recall``     pairs of a key and its value, then keys in any order: which value belonged to each? (dense form of the
               multi-query associative recall of arXiv 2312.04927)
``copy``       random symbols: at every position, the symbol that stands half the sequence away
``listops``    nested expressions of MIN, MAX and MED over digits: at every closing bracket, what it comes to (a small
               form of arXiv 1804.06028)
``needle``     noise with one marked symbol at a depth that is drawn: the last eighth of the sequence asks for it
=============  =====================================================================================================

Symbols: B sequences of a batch, N their length. Everything follows from a generator, so that a step has the same batch
whether training was interrupted before it or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SILENT = -100  # a position without an answer, as cross_entropy wants it

SYMBOLS = 64
_DEPTHS = 4
_LEAST_LENGTH = 16


class Batch(NamedTuple):
    """``tokens`` and ``answers``, ``(B, N)`` int64; ``depths``, ``(B,)`` the quarter in which the answer stood."""

    tokens: Tensor
    answers: Tensor
    depths: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """``tokens`` and ``answers`` count the symbols; ``chance`` is the accuracy of the best constant answer.

    ``layers``: how many the model needs for it, with exact attention.
    """

    name: str
    tokens: int
    answers: int
    chance: float
    summary: str
    draw: Callable[[int, int, Mapping[str, int | float], torch.Generator], Batch]
    defaults: Mapping[str, int | float]
    layers: int = 2


def batch(task: Task, *, count: int, length: int, options: Mapping[str, int | float], seed: str) -> Batch:
    """``count`` sequences; the same ones for the same ``seed``."""
    generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(62))  # noqa: S311  # no secret
    return task.draw(count, length, {**task.defaults, **options}, generator)


def obstacles(task: Task, length: int, options: Mapping[str, int | float]) -> list[str]:
    """Why the task has no form of this length."""
    if length < _LEAST_LENGTH:
        return [f"{task.name} needs at least {_LEAST_LENGTH} tokens, got {length}"]
    if task.name == "recall" and not 1 <= (pairs := int({**task.defaults, **options}["pairs"])) <= min(
        SYMBOLS, length // 4
    ):
        return [f"recall takes 1 to {min(SYMBOLS, length // 4)} pairs at {length} tokens, got {pairs}"]
    return []


def _recall(count: int, length: int, options: Mapping[str, int | float], generator: torch.Generator) -> Batch:
    """Keys are tokens 0 to 63, values 64 to 127."""
    pairs = int(options["pairs"])
    keys = torch.rand(count, SYMBOLS, generator=generator).argsort(dim=1)[:, :pairs]
    values = torch.randint(SYMBOLS, (count, pairs), generator=generator)
    asked = torch.randint(pairs, (count, length - 2 * pairs), generator=generator)
    shown = torch.stack([keys, values + SYMBOLS], dim=2).flatten(1)
    tokens = torch.cat([shown, keys.gather(1, asked)], dim=1)
    answers = torch.full_like(tokens, SILENT)
    answers[:, 2 * pairs :] = values.gather(1, asked)
    return Batch(tokens, answers)


def shift(length: int) -> int:
    """How far away the symbol to be copied stands."""
    return length // 2


def _copy(count: int, length: int, options: Mapping[str, int | float], generator: torch.Generator) -> Batch:
    del options
    tokens = torch.randint(SYMBOLS, (count, length), generator=generator)
    return Batch(tokens, tokens.roll(shift(length), dims=1))


def _needle(count: int, length: int, options: Mapping[str, int | float], generator: torch.Generator) -> Batch:
    """Noise and the needle are tokens 0 to 63, the mark before it is 64, the question 65."""
    del options
    room = length - length // 8
    tokens = torch.randint(SYMBOLS, (count, length), generator=generator)
    place = torch.randint(room - 1, (count, 1), generator=generator)
    tokens.scatter_(1, place, SYMBOLS)
    needle = tokens.gather(1, place + 1)
    tokens[:, room:] = SYMBOLS + 1
    answers = torch.full_like(tokens, SILENT)
    answers[:, room:] = needle
    return Batch(tokens, answers, place[:, 0] * _DEPTHS // (room - 1))


# --- ListOps ------------------------------------------------------------------------------------------------------

# Without SM, the sum modulo ten: the small model learns that one by heart or not at all (docs/fidelity.md has figures).
_OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: sorted(values)[len(values) // 2],
}
_NAMES = list(_OPERATIONS)
_DIGITS = 10
_CLOSE = _DIGITS + len(_NAMES)
_PAD = _CLOSE + 1
_MOST_OPERANDS, _NESTED_SHARE = 3, 0.4


def _listops(count: int, length: int, options: Mapping[str, int | float], generator: torch.Generator) -> Batch:
    """Digits are tokens 0 to 9, ``[MIN``, ``[MAX`` and ``[MED`` 10 to 12, ``]`` 13, what is left at the end 14."""
    del options
    draw = random.Random(int(torch.randint(2**62, (1,), generator=generator)))  # noqa: S311  # no secret
    tokens = torch.full((count, length), _PAD)
    answers = torch.full((count, length), SILENT)
    for row in range(count):
        written, values = _expressions(draw, length)
        tokens[row, : len(written)] = torch.tensor(written)
        answers[row, list(values)] = torch.tensor(list(values.values()))
    return Batch(tokens, answers)


def _expressions(draw: random.Random, room: int) -> tuple[list[int], dict[int, int]]:
    """As many as come before one that does not fit, one at least; and the value at every closing bracket."""
    written: list[int] = []
    values: dict[int, int] = {}
    while True:
        longer, more = [*written], {**values}
        _operation(draw, longer, more, nests=True)
        if len(longer) <= room:
            written, values = longer, more
        elif written:
            return written, values


def _operation(draw: random.Random, written: list[int], values: dict[int, int], *, nests: bool) -> int:
    """Write ``[NAME a b … ]``, note its value, and return it."""
    name = draw.choice(_NAMES)
    written.append(_DIGITS + _NAMES.index(name))
    operands = []
    for _ in range(draw.randint(2, _MOST_OPERANDS)):
        if nests and draw.random() < _NESTED_SHARE:
            operands.append(_operation(draw, written, values, nests=False))
        else:
            operands.append(draw.randrange(_DIGITS))
            written.append(operands[-1])
    values[len(written)] = value = _OPERATIONS[name](operands)
    written.append(_CLOSE)
    return value


def evaluated(tokens: list[int]) -> dict[int, int]:
    """The value at every closing bracket of a ListOps sequence, read with a stack."""
    stack: list[tuple[str, list[int]]] = []
    found = {}
    for place, token in enumerate(tokens):
        if token < _DIGITS:
            stack[-1][1].append(token)
        elif token < _CLOSE:
            stack.append((_NAMES[token - _DIGITS], []))
        elif token == _CLOSE:
            name, operands = stack.pop()
            found[place] = _OPERATIONS[name](operands)
            if stack:
                stack[-1][1].append(found[place])
    return found


_LISTOPS_CHANCE = 0.122  # the share of the most frequent value of 100,000 brackets

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task("recall", 2 * SYMBOLS, SYMBOLS, 1 / SYMBOLS, "which value belonged to a key", _recall, {"pairs": 16}),
        Task("copy", SYMBOLS, SYMBOLS, 1 / SYMBOLS, "the symbol half a sequence away", _copy, {}),
        Task("listops", _PAD + 1, _DIGITS, _LISTOPS_CHANCE, "what nested expressions come to", _listops, {}, layers=3),
        Task("needle", SYMBOLS + 2, SYMBOLS, 1 / SYMBOLS, "a marked symbol at any depth", _needle, {}),
    )
}
