from __future__ import annotations

import math
import random

import msgspec
import pytest

from bench.ab import evidence
from bench.errors import NotComparableError, WrongUsageError
from bench.gate import comparable, stored
from bench.gate.policy import Policy
from bench.record import Settings
from bench.store import Reading
from tests.bench import runs

LENGTHS = (256, 512, 1024)


def run(run_id="base", *, processes=10, slower=1.0, noise=0.002, drift=0.0, lengths=LENGTHS, **changes):
    """A run whose medians differ between processes by ``noise``."""
    records = []
    for process in range(processes):
        for length in lengths:
            draw = random.Random(f"{run_id} {process} {length}")  # noqa: S311  # no secret
            seconds = 1e-6 * length * slower * math.exp(draw.gauss(drift, noise))
            records.append(
                runs.record(
                    "naive_sdpa",
                    runs.measured([seconds * 0.99, seconds, seconds * 1.01]),
                    length=length,
                    process=process,
                    run_id=run_id,
                    **changes,
                )
            )
    return records


def compare(base, head, **more):
    return stored.compare(Reading(base, [], {}), Reading(head, [], {}), **more)


def verdicts(judgement):
    return {one.verdict for one in judgement.decisions}


def test_several_processes_are_tested():
    judgement = compare(run(), run("head"))
    assert verdicts(judgement) == {"same"}
    assert judgement.exit_code == 0
    assert verdicts(compare(run(), run("head", slower=1.2))) == {"slower"}
    assert verdicts(compare(run(), run("head", slower=0.8))) == {"faster"}


def test_runs_of_different_times_need_more_than_the_margin_of_pairs():
    judgement = compare(run(), run("head", slower=1.03))
    assert verdicts(judgement) == {"same"}
    assert {one.margin for one in judgement.decisions} == {0.05}
    assert any("nothing below 5.0% counts" in note for note in judgement.notes)


def test_the_noise_between_the_runs_of_base_widens_the_margin():
    base = [record for number in range(6) for record in run(f"base{number}", drift=0.1 * (-1) ** number, processes=3)]
    judgement = compare(base, run("head", slower=1.15))
    assert verdicts(judgement) & {"slower"} == set()
    assert all(one.margin > 0.15 for one in judgement.decisions)
    assert compare(base, run("head", slower=1.6)).exit_code == 1


def test_runs_that_hardly_differ_narrow_it():
    base = [record for number in range(6) for record in run(f"base{number}", processes=4)]
    judgement = compare(base, run("head", slower=1.03))
    assert all(one.margin == 0.01 for one in judgement.decisions)
    assert verdicts(judgement) == {"slower"}


@pytest.mark.parametrize(
    ("slower", "verdict", "code"), [(1.0, "same", 0), (1.3, "same", 0), (1.5, "slower", 1), (0.5, "faster", 0)]
)
def test_one_process_is_compared_coarsely(slower, verdict, code):
    judgement = compare(run(processes=1), run("head", processes=1, slower=slower))
    assert verdicts(judgement) == {verdict}
    assert judgement.exit_code == code
    assert all(one.coarse and one.margin == 0.4 and one.why.startswith("coarse") for one in judgement.decisions)


def test_few_processes_see_what_is_gross():
    base, head = run(processes=2, noise=0.05), run("head", processes=2, noise=0.05, slower=2.0)
    judgement = compare(base, head)
    assert verdicts(judgement) == {"slower"}
    assert judgement.exit_code == 1


@pytest.mark.parametrize("processes", [1, 2, 10])
def test_a_run_against_itself_is_the_same(processes):
    base = run(processes=processes, noise=0.3)
    judgement = compare(base, base)
    assert verdicts(judgement) == {"same"}
    assert not judgement.findings
    assert not any(one.coarse for one in judgement.decisions)


def test_only_equal_cases_are_compared():
    base, head = run(lengths=(256, 512)), run("head", lengths=(512, 1024))
    judgement = compare(base, head)
    assert sorted(one.verdict for one in judgement.decisions) == ["missing", "same"]
    assert judgement.exit_code == 3
    assert any("1 case only in head" in note for note in judgement.notes)


def test_the_noise_of_a_dtype_or_seed_is_another_case():
    assert compare(run(), run("head", seed=1)).exit_code == 3
    assert compare(run(), run("head", dtype="bfloat16")).exit_code == 3


def test_a_case_that_one_process_failed_is_not_measured():
    head = run("head")
    head[4] = msgspec.structs.replace(head[4], outcome=runs.Failed(stage="time", message="no"))
    judgement = compare(run(), head)
    assert sorted(one.verdict for one in judgement.decisions) == ["broke", "same", "same"]
    assert judgement.exit_code == 1


# --- comparable -----------------------------------------------------------------------------------------------

OTHERS = {
    "host": {"host": msgspec.structs.replace(runs.CPU, fingerprint="0" * 16)},
    "settings": {"settings": msgspec.structs.replace(runs.SETTINGS, threads=1)},
    "versions": {
        "source": msgspec.structs.replace(runs.SOURCE, versions=runs.SOURCE.versions | {"torch": "9.9"}),
    },
}


@pytest.mark.parametrize("group", OTHERS)
def test_what_differs_is_refused_unless_allowed_by_its_name(group):
    base, head = run(), run("head", **OTHERS[group])
    with pytest.raises(NotComparableError, match=f"same {group}.*--allow {group}"):
        compare(base, head)
    others = set(OTHERS) - {group}
    with pytest.raises(NotComparableError):
        compare(base, head, allowed=others)
    judgement = compare(base, head, allowed={group})
    assert judgement.exit_code == 0
    assert any(group in note for note in judgement.notes)


def test_one_field_can_be_allowed():
    head = run("head", **OTHERS["versions"])
    assert compare(run(), head, allowed={"versions.torch"}).exit_code == 0
    with pytest.raises(NotComparableError):
        compare(run(), head, allowed={"versions.numpy"})


def test_every_setting_counts():
    for field in Settings.__struct_fields__:
        other = msgspec.structs.replace(
            runs.SETTINGS, **{field: "other" if "precision" in field or field == "timer" else 7}
        )
        with pytest.raises(NotComparableError, match=field):
            compare(run(), run("head", settings=other))


def test_our_own_version_may_differ():
    source = msgspec.structs.replace(
        runs.SOURCE, versions=runs.SOURCE.versions | {"attention-bench": "9"}, git="f" * 40
    )
    assert compare(run(), run("head", source=source)).exit_code == 0


def test_a_side_of_several_hosts_is_refused():
    with pytest.raises(NotComparableError, match="one record of base"):
        compare([*run(), *run("more", **OTHERS["host"])], run("head"))


@pytest.mark.parametrize("name", ["hosts", "settings.thread", "versions.", "nonsense"])
def test_only_known_names_can_be_allowed(name):
    with pytest.raises(WrongUsageError, match="--allow"):
        comparable.parse_allowed([name])


def test_lists_of_names():
    assert comparable.parse_allowed(["host, settings.threads", "versions.torch"]) == {
        "host",
        "settings.threads",
        "versions.torch",
    }


def test_what_could_not_be_read_is_refused_unless_allowed():
    base = Reading(run(), ["base.jsonl line 3: not a record"], {"module": 2})
    head = Reading(run("head"), [], {})
    with pytest.raises(NotComparableError, match="--allow damaged"):
        stored.compare(base, head)
    with pytest.raises(NotComparableError, match="--allow kinds"):
        stored.compare(base, head, allowed={"damaged"})
    assert stored.compare(base, head, allowed={"damaged", "kinds"}).exit_code == 0


# --- both sides of an interleaved job ---------------------------------------------------------------------------


def job(*, slower=1.0, fresh=1.0, confirming=12):
    """Two files of pairs: 10 for screening, and more for confirming. A pair shares what the machine was like."""
    sides = ([], [])
    for process in range(10 + confirming):
        stage = evidence.SCREENING if process < 10 else evidence.CONFIRMING
        day = random.Random(process).gauss(0, 0.3)  # noqa: S311  # no secret
        for side, name, factor in zip(sides, ("base", "head"), (1.0, slower if process < 10 else fresh), strict=True):
            noise = random.Random(f"{process} {len(side)} {factor}").gauss(0, 0.001)  # noqa: S311  # no secret
            outcome = runs.measured([1e-3 * factor * math.exp(day + noise)], conditions={evidence.STAGE: stage})
            side.append(runs.record(outcome=outcome, process=process, run_id=f"job-{name}"))
    return sides


@pytest.mark.parametrize(
    ("slower", "fresh", "verdict"), [(1.0, 1.0, "same"), (1.05, 1.05, "slower"), (1.05, 1.0, "same")]
)
def test_pairs_are_decided_as_pairs(slower, fresh, verdict):
    judgement = compare(*job(slower=slower, fresh=fresh))
    assert verdicts(judgement) == {verdict}


def test_both_sides_of_a_job_in_the_wrong_order_are_refused():
    base, head = job(slower=1.05, fresh=1.05)
    with pytest.raises(WrongUsageError, match=r"got its head h\.jsonl first: give b\.jsonl h\.jsonl"):
        stored.compare(Reading(head, [], {}), Reading(base, [], {}), names=("h.jsonl", "b.jsonl"))


def test_pairs_must_be_readable_and_alike_too():
    base, head = job()
    with pytest.raises(NotComparableError, match="--allow damaged"):
        stored.compare(Reading(base, ["base.jsonl line 3: not a record"], {}), Reading(head, [], {}))
    with pytest.raises(NotComparableError, match="same settings"):
        compare(base, [msgspec.structs.replace(one, **OTHERS["settings"]) for one in head])
    judgement = compare(base, [msgspec.structs.replace(one, **OTHERS["versions"]) for one in head])
    assert verdicts(judgement) == {"same"}
    assert any("versions.torch" in note for note in judgement.notes)


def test_the_names_of_runs_alone_make_no_pairs():
    base, head = run("one-base"), run("one-head")
    assert verdicts(compare(base, head)) == {"same"}
    assert {one.margin for one in compare(base, head).decisions} == {0.05}


def test_without_the_same_run_they_are_no_pairs():
    base, head = job(slower=1.05, fresh=1.05)
    head = [msgspec.structs.replace(record, run_id="other") for record in head]
    assert verdicts(compare(base, head)) == {"unclear"}


def test_the_policy_is_asked():
    assert verdicts(compare(run(), run("head", slower=1.2), policy=Policy(margin=0.5))) == {"same"}
