"""The grammar: what is a mask, and what its one spelling is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from variants._mask import BigBird, Mask, MaskError, parse_length

lengths = st.integers(1, 10**6)
built = st.builds(
    Mask,
    softcap=st.none() | st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    alibi=st.booleans(),
    causal=st.booleans(),
    window=st.none() | lengths,
    band=st.none() | st.integers(0, 10**6),
    prefix=st.none() | st.integers(0, 10**6),
    document=st.none() | lengths,
    padding=st.none() | st.floats(min_value=0, max_value=1, exclude_min=True),
    bigbird=st.none() | st.builds(BigBird, lengths, st.integers(0, 99), st.integers(0, 99)),
)


@given(built)
def test_a_canonical_text_is_its_own_canonical_text(mask):
    parsed = Mask.parse(str(mask))
    assert Mask.parse(str(parsed)) == parsed
    assert str(Mask.parse(str(parsed))) == str(parsed)


@given(built)
def test_parsing_keeps_every_term_that_means_something(mask):
    parsed = Mask.parse(str(mask))
    for name in ("softcap", "alibi", "window", "band", "document", "padding", "bigbird"):
        assert getattr(parsed, name) == getattr(mask, name)
    assert parsed.is_causal == (mask.is_causal or mask.prefix == 0)


@given(st.lists(st.sampled_from(["causal", "alibi", "softcap:3", "band:4", "document:2", "padding:0.5"]), min_size=1))
def test_order_and_repetition_do_not_matter(terms):
    assert Mask.parse("+".join(terms)) == Mask.parse("+".join(sorted(set(terms))))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("full", "full"),
        (" causal ", "causal"),
        ("causal+softcap:30", "softcap:30+causal"),
        ("causal + alibi + softcap:30.0", "softcap:30+alibi+causal"),
        ("window:1k", "window:1024"),
        ("window:8+causal", "window:8"),
        ("causal+prefix:4", "causal"),
        ("prefix:4+window:2", "window:2"),
        ("prefix:0", "causal"),
        ("full+band:3", "band:3"),
        ("padding:1", "padding:1"),
        ("padding:0.50", "padding:0.5"),
        ("softcap:1e20", "softcap:1e20"),
        ("softcap:30.1234567", "softcap:30.1234567"),
        ("document:3+bigbird:64x2x3+padding:0.8", "document:3+padding:0.8+bigbird:64x2x3"),
    ],
)
def test_one_spelling(text, canonical):
    assert str(Mask.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("casual", "did you mean 'causal'"),
        ("", "expected a mask of"),
        ("causal+", "expected a mask of"),
        ("causal:3", "takes no argument"),
        ("window", "whole number of at least 1"),
        ("window:0", "whole number of at least 1"),
        ("window:-1", "whole number of at least 1"),
        ("window:1.5", "got '1.5'"),
        ("band:x", "as in 'band:128'"),
        ("document:0", "at least 1"),
        ("padding:0", "fraction kept"),
        ("padding:1.1", "fraction kept"),
        ("padding:nan", "fraction kept"),
        ("softcap:0", "a number above 0"),
        ("softcap:inf", "a number above 0"),
        ("bigbird:64", "block size x global blocks x random blocks"),
        ("bigbird:0x1x1", "block size x global blocks x random blocks"),
        ("window:3+window:4", "'window' twice"),
    ],
)
def test_what_is_no_mask_is_refused_in_one_line(text, said):
    with pytest.raises(MaskError) as refusal:
        Mask.parse(text)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_lengths():
    assert (parse_length("512"), parse_length("8k"), parse_length(" 2K ")) == (512, 8192, 2048)
    for text in ("", "k", "1.5k", "-3", "8kb"):
        with pytest.raises(ValueError, match="expected a length"):
            parse_length(text)


def test_what_a_variant_does_not_support_is_spelled():
    mask = Mask.parse("softcap:30+causal+document:4")
    assert mask.unsupported("causal", "document") == ["softcap:30"]
    assert mask.unsupported() == ["softcap:30", "causal", "document:4"]
    assert Mask.parse("full").unsupported() == []
    assert Mask.parse("full").terms == frozenset()


@pytest.mark.parametrize(
    ("text", "is_causal", "changes_scores"),
    [
        ("causal", True, False),
        ("window:3", True, False),
        ("prefix:3", False, False),
        ("alibi", False, True),
        ("softcap:2", False, True),
    ],
)
def test_what_it_does(text, is_causal, changes_scores):
    mask = Mask.parse(text)
    assert (mask.is_causal, mask.changes_scores) == (is_causal, changes_scores)
    assert math.isfinite(mask.softcap or 0)
