"""What a variant's own functions answer, held against what they were asked for. No torch is needed.

An answer of another kind would travel on and come to light where nobody can tell whose fault it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError
from bench.measure.verdicts import one_line
from bench.record import MOST_WHOLE

if TYPE_CHECKING:
    from variants._contract import Attend, Variant, Workload


class AnswerError(BenchError):
    """A function of a variant gave something else than it was asked for."""


def obstacles(variant: Variant, workload: Workload, parameters: Any) -> list[str]:
    """Reasons against the workload, each a line of text.

    Raises:
        AnswerError: it is no list of sentences. A text would be taken apart into its letters.

    """
    given: Any = variant.obstacles(workload, parameters)
    reasons: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [None]
    if not all(isinstance(reason, str) and reason.strip() for reason in reasons):
        raise AnswerError(
            f"the variant's obstacles gives {_shown(given, reasons)}; expected a list of sentences, "
            "an empty one where nothing stands against the case"
        )
    return [one_line(reason) for reason in reasons]


def _shown(given: Any, reasons: list[Any]) -> str:
    """A generator is shown by what it gave."""
    return repr(given if reasons == [None] or isinstance(given, list | tuple) else reasons)


def built(variant: Variant, workload: Workload, parameters: Any) -> Attend:
    """The attention that is to be measured.

    Raises:
        AnswerError: it cannot be called.

    """
    attend = variant.build(workload, parameters)
    if not callable(attend):
        raise AnswerError(f"the variant's build gives {attend!r}; expected a function of query, key and value")
    return attend


def flops(variant: Variant, workload: Workload, parameters: Any) -> int:
    """Its own count of what it issues: at least one, and no more than a record holds. Integers of numpy are integers.

    Raises:
        AnswerError: it is no such number.

    """
    count: Any = variant.flops(workload, parameters)
    is_whole, is_flag = isinstance(count, Integral), isinstance(count, bool)
    if is_whole and not is_flag and 0 < count <= MOST_WHOLE:
        return int(count)
    raise AnswerError(f"the variant counts {count!r} FLOPs; expected a whole number from 1 to {MOST_WHOLE}")
