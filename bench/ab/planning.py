"""How many pairs there will be: settled by what they cost, before anybody looks at what they say.

Adding pairs until something is significant would be optional stopping. So the number for screening follows from the
first pair's cost, and the number of fresh pairs for suspects from how many suspects there are and the time that is
left.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bench.errors import WrongUsageError
from bench.gate import decision
from bench.gate.inference import fewest_pairs
from bench.gate.policy import Policy

DEFAULT_BUDGET_SECONDS = 600.0
# More pairs than these change little, and time is worth something too.
MOST_SCREENING, MOST_CONFIRMING = 34, 30
FEWEST_SCREENING = 4
# Fresh pairs over screening pairs where the user says how many.
CONFIRMING_SHARE = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a pair: ``start_seconds`` for its processes, and what each case takes on both sides, by key."""

    start_seconds: float
    case_seconds: Mapping[str, float]

    def pair_seconds(self, keys: Collection[str] | None = None) -> float:
        """Of a pair that visits these cases, or all."""
        visited = self.case_seconds if keys is None else keys
        return self.start_seconds + sum(self.case_seconds.get(key, 0.0) for key in visited)


@dataclass(frozen=True, slots=True)
class Planner:
    """``pairs``: for screening, if the user says so; ``budget_seconds``: of the job, None for no bound."""

    policy: Policy
    pairs: int | None = None
    budget_seconds: float | None = None

    def check(self, cases: int) -> None:
        """Whether the pairs asked for can find anything at all.

        Raises:
            WrongUsageError: they cannot.

        """
        if self.pairs is None:
            return
        fresh = CONFIRMING_SHARE * self.pairs
        fewest = math.ceil(fewest_pairs(cases, self.policy.significance) / CONFIRMING_SHARE)
        if self.pairs < fewest:
            raise WrongUsageError(
                f"--pairs {self.pairs}: the {fresh} fresh pairs that suspects get then cannot show that "
                f"{decision.one_of(cases)} is slower at significance {self.policy.significance:g}; "
                f"give --pairs {fewest} at least"
            )

    def screening(self, cost: Cost, spent_seconds: float) -> int:
        """The pairs for screening, the first one included, which told the cost.

        So many that enough time is left to measure every case again, should all be suspect.

        Raises:
            WrongUsageError: the budget is too small for that.

        """
        wanted = self.pairs or MOST_SCREENING
        if self.budget_seconds is None:
            return wanted
        fresh = fewest_pairs(len(cost.case_seconds), self.policy.significance)
        left = self.budget_seconds - spent_seconds
        affordable = 1 + math.floor(left / cost.pair_seconds()) - fresh
        least = min(wanted, FEWEST_SCREENING)
        if affordable < least:
            needed = math.ceil(spent_seconds + (least - 1 + fresh) * cost.pair_seconds())
            raise WrongUsageError(
                f"--budget {self.budget_seconds:g}: expected {needed} seconds at least, since {least} pairs of "
                f"processes and {fresh} fresh ones for suspects take {cost.pair_seconds():.0f} s each; give more, "
                "measure fewer cases, or lower --time-budget"
            )
        return min(wanted, affordable)

    def confirming(self, cost: Cost, suspects: Collection[str], spent_seconds: float) -> int:
        """The fresh pairs for the suspects: as many as there is time for."""
        if not suspects:
            return 0
        wanted = MOST_CONFIRMING if self.pairs is None else CONFIRMING_SHARE * self.pairs
        if self.budget_seconds is None:
            return wanted
        affordable = math.floor((self.budget_seconds - spent_seconds) / cost.pair_seconds(suspects))
        return min(wanted, max(affordable, fewest_pairs(len(suspects), self.policy.significance)))
