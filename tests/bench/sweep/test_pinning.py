from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.sweep import pinning

ALONE = {cpu: {cpu} for cpu in range(4)}
PAIRS = {0: {0, 2}, 2: {0, 2}, 1: {1, 3}, 3: {1, 3}}


@pytest.mark.parametrize(
    ("threads", "busy", "siblings", "chosen"),
    [
        (1, {0: 90, 1: 5, 2: 50, 3: 50}, ALONE, [1]),
        (2, {0: 90, 1: 5, 2: 50, 3: 60}, ALONE, [1, 2]),
        (2, {0: 0, 1: 0, 2: 0, 3: 0}, ALONE, [0, 1]),
        (2, {0: 0, 1: 10, 2: 0, 3: 10}, PAIRS, [0, 1]),  # whole cores first, though 2 is idle
        (1, {0: 0, 1: 10, 2: 80, 3: 10}, PAIRS, [1]),  # a core is as busy as its busiest processor
        (3, {0: 0, 1: 10, 2: 0, 3: 10}, PAIRS, [0, 1, 2]),
        (1, {1: 0, 3: 50}, PAIRS, [1]),  # only what may be used
    ],
)
def test_the_idlest_whole_cores(threads, busy, siblings, chosen):
    assert pinning.choose(threads, busy=busy, siblings=siblings) == chosen


@pytest.mark.parametrize(("text", "cpus"), [("0", {0}), ("0,4\n", {0, 4}), ("0-2,7", {0, 1, 2, 7}), ("", set())])
def test_lists_of_siblings(tmp_path, text, cpus):
    (tmp_path / "list").write_text(text)
    assert pinning._parse(tmp_path / "list") == cpus


def test_a_system_that_does_not_tell():
    assert pinning._parse(pinning._TOPOLOGY / "nowhere") == set()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_process_is_pinned_and_one_that_wants_all_is_not():
    code = """
import os
from bench.sweep import pinning
all_cores = os.sched_getaffinity(0)
assert pinning.pin(len(all_cores)) is None
assert os.sched_getaffinity(0) == all_cores
(core,) = pinning.pin(1)
assert os.sched_getaffinity(0) == {core}
assert core in all_cores
"""
    subprocess.run([sys.executable, "-c", code], check=True)
