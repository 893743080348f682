from __future__ import annotations

import datetime as dt

import pytest

from bench.errors import WrongUsageError
from bench.gate import policy_file
from bench.gate.judgement import judge
from bench.gate.policy import DEFAULT
from tests.bench.gate.pairs_of import case, cell

WHOLE = """
margin = "2%"
stored_margin = 0.08
coarse_margin = "50%"
significance = 0.005
false_discovery = 0.1
confidence = 0.99
decided_share = "90%"
exponent_margin = 0.05

[[margins]]
mask = "causal*"
mode = ["bwd", "fwd_bwd"]
margin = "3%"

[[margins]]
variant = "reformer_*"
margin = 0.1

[[advisory]]
variant = "uniform"
reason = "a floor"

[[removals]]
variant = "chunked_mha"
until = 2030-01-31
reason = "replaced"

[[accepted]]
mode = "fwd"
gates = ["memory", "dispatch"]
until = 2030-01-31
reason = "gathers in one piece"
"""


@pytest.fixture
def parsed(tmp_path):
    def parse(text):
        (tmp_path / "policy.toml").write_text(text)
        return policy_file.load(tmp_path / "policy.toml")

    return parse


def test_every_key(parsed):
    rules = parsed(WHOLE)
    assert (rules.margin, rules.stored_margin, rules.coarse_margin) == (0.02, 0.08, 0.5)
    assert (rules.significance, rules.false_discovery, rules.confidence) == (0.005, 0.1, 0.99)
    assert (rules.decided_share, rules.exponent_margin) == (0.9, 0.05)
    assert rules.margin_of(case()) == 0.02
    assert rules.margin_of(case(mask="causal+softcap:30", mode="bwd")) == 0.03
    assert rules.margin_of(case(mask="causal")) == 0.02
    assert rules.margin_of(case("reformer_lsh", mask="causal", mode="bwd")) == 0.1
    assert rules.advisory_reason(case("uniform")) == "a floor"
    assert rules.advisory_reason(case()) is None
    assert rules.removal(case("chunked_mha")).until == dt.date(2030, 1, 31)
    assert rules.acceptance(case(), "memory", dt.date(2030, 1, 31)) == "gathers in one piece"
    assert rules.acceptance(case(), "memory", dt.date(2030, 2, 1)) is None
    assert rules.acceptance(case(mode="bwd"), "memory", dt.date(2030, 1, 1)) is None
    assert rules.acceptance(case(), "flops", dt.date(2030, 1, 1)) is None


def test_rules_that_apply_to_nothing_are_told(parsed):
    rules = parsed("[[advisory]]\nvariant = 'naive_spda'\nreason = 'known'")
    assert "a rule of the policy applies to no case here: variant=naive_spda" in judge([cell([0.0])], rules).notes
    assert parsed(WHOLE).idle([case("uniform")]) == [
        parsed(WHOLE).margins[0].where,
        parsed(WHOLE).margins[1].where,
        parsed(WHOLE).removals[0].where,
    ]


def test_nothing_is_the_default(parsed):
    assert parsed("").margin == DEFAULT.margin == 0.01


@pytest.mark.parametrize("written", ['"3%"', "0.03", '"3.0 %"'])
def test_percent_and_fraction_are_the_same(parsed, written):
    assert parsed(f"margin = {written}").margin == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("margn = 0.1", "did you mean 'margin'"),
        ("margin = 3", "'3%' or 0.03"),
        ("margin = 1", "'3%' or 0.03"),
        ('margin = "3"', "'3%' or 0.03"),
        ('margin = "300%"', "'3%' or 0.03"),
        ("margin = 0", "'3%' or 0.03"),
        ("margin = -0.1", "'3%' or 0.03"),
        ("margin = nan", "'3%' or 0.03"),
        ("margin = true", "'3%' or 0.03"),
        ("significance = 5", "share"),
        ("significance = []", "probability"),
        ("[[margins]]\nmode = 'bwd'", "expected a margin"),
        ("[[margins]]\nmode = 'bkw'\nmargin = 0.1", "did you mean 'bwd'"),
        ("[[margins]]\nmasks = 'full'\nmargin = 0.1", "did you mean 'mask'"),
        ("[[margins]]\nmask = []\nmargin = 0.1", "a text or a list"),
        ("[[advisory]]\nvariant = 'x'", "expected a reason"),
        ("[[advisory]]\nreason = 'all of them'", "that it is for"),
        ("[[removals]]\nvariant = 'x'\nreason = 'y'", "expected a until"),
        ("[[removals]]\nvariant = 'x'\nreason = 'y'\nuntil = '2030-01-31'", "without quotes"),
        ("[[accepted]]\nvariant='x'\nreason='y'\nuntil=2030-01-31\ngates=['memmory']", "did you mean 'memory'"),
        ("[advisory]\nvariant = 'x'", "list of tables"),
        ("margin =", "not TOML"),
    ],
)
def test_mistakes_are_one_line(parsed, text, said):
    with pytest.raises(WrongUsageError) as error:
        parsed(text)
    assert said in str(error.value)
    assert "policy.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(WrongUsageError, match="cannot read"):
        policy_file.load(tmp_path / "no.toml")
