"""How long torch.compile has worked in this process, and how often it found its work already done on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compilation:
    """Since the process began."""

    seconds: float = 0.0
    cache_hits: int = 0

    @staticmethod
    def so_far() -> Compilation:
        """What the compiler has counted; nothing if it was never imported."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return Compilation()
        return Compilation(
            seconds=float(dynamo.calculate_time_spent()["total_wall_time"]),
            cache_hits=int(dynamo.counters["inductor"]["fxgraph_cache_hit"]),
        )

    def until(self, later: Compilation) -> Compilation:
        """What was added."""
        return Compilation(later.seconds - self.seconds, later.cache_hits - self.cache_hits)
