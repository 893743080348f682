"""Calls that are heavy through their length, predicted and weighed, of every variant: some minutes."""

from __future__ import annotations

import pytest

from tests.bench.measure import test_predicted as heavy
from tests.variants.problems import VARIANTS

LENGTH = 4096

pytestmark = [pytest.mark.perf, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("name", "mode"), heavy.cells(VARIANTS))
def test_a_long_sequence_is_known_before(name, mode):
    changes = {"heads": 1, "kv_heads": 1, "head_dim": 32} | heavy.WIDE.get(name, {})
    workload = heavy.shape(name, mode=mode, query_length=LENGTH, key_length=LENGTH, **changes)
    assert workload is not None
    heavy.assert_predicted(name, *heavy.heavy(name, workload, batches=(2, 4)))
