"""The mask grammar: who attends to whom, and any change of the scores, as one short text.

With ``s = i + (Nk − Nq) − j`` (aligned bottom-right, so that the last query sees the last key):

==================  ==========================================================================
``full``            everything
``causal``          s ≥ 0
``window:W``        0 ≤ s < W: causal, W keys with itself
``band:W``          |s| ≤ W
``prefix:P``        j < P, or causal
``document:K``      same one of K documents of seeded, skewed lengths
``padding:F``       the first keys of each sequence, a fraction F on average, seeded per batch item
``bigbird:BxGxR``   blocks of B: a window of 3, G global ones at the ends, R random ones, seeded
``alibi``           scores − slope(head) · |s|  (arXiv 2108.12409)
``softcap:C``       C · tanh(scores / C)
==================  ==========================================================================

``+`` composes: boolean masks intersect. What a mask means as tensors is in :mod:`variants._pattern`.
Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from functools import lru_cache

_LENGTH = re.compile(r"(\d+)(k?)")
_BIGBIRD = re.compile(r"(\d+)x(\d+)x(\d+)")


class MaskError(ValueError):
    """A text that is no mask. The message says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class BigBird:
    """Block size, number of global blocks (half at each end), number of random blocks per block row."""

    block: int
    global_blocks: int
    random_blocks: int

    def __str__(self) -> str:
        return f"{self.block}x{self.global_blocks}x{self.random_blocks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A parsed mask. ``None`` and ``False`` mean that a term is absent; ``str`` gives the canonical text."""

    softcap: float | None = None
    alibi: bool = False
    causal: bool = False
    window: int | None = None
    band: int | None = None
    prefix: int | None = None
    document: int | None = None
    padding: float | None = None
    bigbird: BigBird | None = None

    @staticmethod
    def parse(text: str) -> Mask:
        """The mask that ``text`` spells.

        Raises:
            MaskError: an unknown term, a missing or unusable argument, or one term twice with different arguments.

        """
        return _parse(text.strip())

    def __str__(self) -> str:
        terms = [_spell(name, value) for name in _ORDER if _in_use(value := getattr(self, name))]
        return "+".join(terms) or "full"

    @property
    def terms(self) -> frozenset[str]:
        """Names of the terms in use; empty for ``full``."""
        return frozenset(name for name in _ORDER if _in_use(getattr(self, name)))

    @property
    def changes_scores(self) -> bool:
        return self.softcap is not None or self.alibi

    @property
    def is_causal(self) -> bool:
        """Whether no query can see a key after itself."""
        return self.causal or self.window is not None

    def unsupported(self, *supported: str) -> list[str]:
        """The spelled terms outside ``supported``, for a variant's ``obstacles``."""
        return [_spell(name, getattr(self, name)) for name in _ORDER if name in self.terms - set(supported)]


_ORDER = ("softcap", "alibi", "causal", "window", "band", "prefix", "document", "padding", "bigbird")
EXAMPLES = {  # each term alone
    "full": "full",
    "causal": "causal",
    "window": "window:256",
    "band": "band:128",
    "prefix": "prefix:64",
    "document": "document:4",
    "padding": "padding:0.8",
    "bigbird": "bigbird:64x2x3",
    "alibi": "alibi",
    "softcap": "softcap:30",
}


def parse_length(text: str) -> int:
    """``8k`` is 8192. Raises ValueError on anything but a whole number with an optional ``k``."""
    match = _LENGTH.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"expected a length such as 512 or 8k, got {text!r}")
    return int(match[1]) * (1024 if match[2] else 1)


def _in_use(value: object) -> bool:
    return value is not None and value is not False  # `band:0` is a mask too, and 0 == False


@lru_cache(maxsize=1024)
def _parse(text: str) -> Mask:
    values: dict[str, object] = {}
    for term in text.split("+"):
        name, _, argument = term.strip().partition(":")
        value = _parse_term(name, argument, term, text)
        if values.setdefault(name, value) != value:
            raise MaskError(f"mask {text!r} has {name!r} twice with different arguments; give it once")
    values.pop("full", None)
    if values.get("prefix") == 0:
        values["causal"] = True
    if "window" in values:  # a window is causal
        values.pop("causal", None)
    if "causal" in values or "window" in values:  # (a prefix or causal) and causal is causal
        values.pop("prefix", None)
    return Mask(**values)  # type: ignore[arg-type]  # each value has the type of its field, by _parse_term


def _parse_term(name: str, argument: str, term: str, text: str) -> object:
    match name:
        case "full" | "causal" | "alibi" if not argument:
            return True
        case "window" | "document":
            return _at_least(1, name, argument)
        case "band" | "prefix":
            return _at_least(0, name, argument)
        case "padding":
            return _fraction(argument)
        case "softcap":
            return _positive(argument)
        case "bigbird":
            return _bigbird(argument)
    if name in EXAMPLES:
        raise MaskError(f"mask term {name!r} takes no argument, got {term!r}")
    near = difflib.get_close_matches(name, EXAMPLES, n=1)
    hint = f"; did you mean {EXAMPLES[near[0]]!r}?" if near else ""
    raise MaskError(f"expected a mask of {', '.join(EXAMPLES.values())}, joined by '+', got {text!r}{hint}")


def _bad(name: str, argument: str, expected: str) -> MaskError:
    return MaskError(f"mask {name!r} takes {expected}, as in {EXAMPLES[name]!r}, got {argument!r}")


def _at_least(least: int, name: str, argument: str) -> int:
    try:
        value = parse_length(argument)
    except ValueError:
        value = -1
    if value < least:
        raise _bad(name, argument, f"a whole number of at least {least}")
    return value


def _number(argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        return math.nan


def _fraction(argument: str) -> float:
    value = _number(argument)
    if not 0 < value <= 1:
        raise _bad("padding", argument, "the fraction kept, above 0 and at most 1")
    return value


def _positive(argument: str) -> float:
    value = _number(argument)
    if not 0 < value < math.inf:
        raise _bad("softcap", argument, "a number above 0")
    return value


def _bigbird(argument: str) -> BigBird:
    match = _BIGBIRD.fullmatch(argument)
    if match is None or int(match[1]) < 1:
        raise _bad("bigbird", argument, "block size x global blocks x random blocks")
    return BigBird(*(int(group) for group in match.groups()))


def _spell(name: str, value: object) -> str:
    match value:
        case True:
            return name
        case float():
            short = f"{value:g}"
            exact = short if float(short) == value else repr(value)
            return f"{name}:{exact.replace('+', '')}"  # "+" joins terms
        case _:
            return f"{name}:{value}"
