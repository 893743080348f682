"""Tasks that a model can only solve by attending: made-up sequences, with an answer at some of their positions.

=============  =====================================================================================================
``recall``     pairs of a key and its value, then keys in any order: which value belonged to each? (dense form of the
               multi-query associative recall of arXiv 2312.04927)
``copy``       random symbols: at every position, the symbol that stands half the sequence away
``listops``    a nested expression of MIN, MAX, MED and SM (sum modulo ten) over digits: its value, at the first
               position (a small form of arXiv 1804.06028)
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
    """``tokens`` and ``answers`` count the symbols; ``chance`` is the accuracy of the best constant answer."""

    name: str
    tokens: int
    answers: int
    chance: float
    summary: str
    draw: Callable[[int, int, Mapping[str, int | float], torch.Generator], Batch]
    defaults: Mapping[str, int | float]


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

_OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: sorted(values)[len(values) // 2],
    "SM": lambda values: sum(values) % _DIGITS,
}
_NAMES = list(_OPERATIONS)
_DIGITS = 10
_CLOSE, _PAD, _ASK = (_DIGITS + len(_NAMES) + further for further in range(3))
_MOST_ARGUMENTS, _MOST_DEPTH = 5, 4


def _listops(count: int, length: int, options: Mapping[str, int | float], generator: torch.Generator) -> Batch:
    """Digits are tokens 0 to 9, ``[MIN`` and the others 10 to 13, ``]`` 14, the rest 15, the question 16."""
    del options
    draw = random.Random(int(torch.randint(2**62, (1,), generator=generator)))  # noqa: S311  # no secret
    tokens = torch.full((count, length), _PAD)
    answers = torch.full((count, length), SILENT)
    for row in range(count):
        written, value = _expression(draw, length - 1)
        tokens[row, 0] = _ASK
        tokens[row, 1 : 1 + len(written)] = torch.tensor(written)
        answers[row, 0] = value
    return Batch(tokens, answers)


def _expression(draw: random.Random, room: int) -> tuple[list[int], int]:
    """An expression of five tokens at least, and what it comes to."""
    while True:
        written, value = _operation(draw, room, _MOST_DEPTH)
        if len(written) * 2 >= min(room, 2 * _MOST_ARGUMENTS):
            return written, value


def _operation(draw: random.Random, room: int, depth: int) -> tuple[list[int], int]:
    """``[NAME a b … ]`` in at most ``room`` tokens, of which the brackets take two and each argument at least one."""
    name = draw.choice(_NAMES)
    written, values = [_DIGITS + _NAMES.index(name)], []
    left = room - 2
    for remaining in range(draw.randint(2, _MOST_ARGUMENTS), 0, -1):
        if left < 1:
            break
        share = left // remaining
        if depth > 1 and share >= 2 + 2 and draw.random() < 0.6:  # noqa: PLR2004  # brackets and two arguments
            inner, value = _operation(draw, share, depth - 1)
        else:
            value = draw.randrange(_DIGITS)
            inner = [value]
        written += inner
        values.append(value)
        left -= len(inner)
    return [*written, _CLOSE], _OPERATIONS[name](values)


def evaluated(tokens: list[int]) -> int:
    """The value of a ListOps sequence, read with a stack."""
    stack: list[tuple[str, list[int]]] = []
    for token in tokens:
        if token == _CLOSE:
            name, values = stack.pop()
            value = _OPERATIONS[name](values)
            if not stack:
                return value
            stack[-1][1].append(value)
        elif _DIGITS <= token < _CLOSE:
            stack.append((_NAMES[token - _DIGITS], []))
        elif token < _DIGITS:
            stack[-1][1].append(token)
    raise ValueError("expected a closed expression")


_LISTOPS_CHANCE = 0.14  # the share of the most frequent value, nine, of 5,000 expressions at 32 to 128 tokens

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task("recall", 2 * SYMBOLS, SYMBOLS, 1 / SYMBOLS, "which value belonged to a key", _recall, {"pairs": 16}),
        Task("copy", SYMBOLS, SYMBOLS, 1 / SYMBOLS, "the symbol half a sequence away", _copy, {}),
        Task("listops", _ASK + 1, _DIGITS, _LISTOPS_CHANCE, "the value of a nested expression", _listops, {}),
        Task("needle", SYMBOLS + 2, SYMBOLS, 1 / SYMBOLS, "a marked symbol at any depth", _needle, {}),
    )
}
