"""One thread per process, since the suite runs on as many processes as there are cores; no deadline in hypothesis."""

from __future__ import annotations

import importlib.util

from hypothesis import HealthCheck, settings

settings.register_profile("small", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("small")

if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)
