from __future__ import annotations

import pytest

from bench.errors import WrongUsageError
from bench.fidelity import shipped, texts
from tests.bench.extras import needs_encoder, needs_news


@needs_encoder
def test_windows_follow_each_other_and_begin_again():
    found = texts.windows((11, 12, 13, 14, 15), length=5, count=3, first=0)
    assert found == [[101, 11, 12, 13, 102], [101, 14, 15, 11, 102], [101, 12, 13, 14, 102]]
    assert texts.windows((11, 12, 13, 14, 15), length=5, count=1, first=2) == found[2:]
    assert texts.windows((11, 12), length=2, count=1, first=0) == [[11, 12]]  # no room for special tokens


@needs_encoder
def test_texts_become_tokens_without_special_ones(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("hello world")
    assert texts.tokens_of(file) == (7592, 2088)
    assert len(texts.tokens_of(None)) > 100_000
    file.with_name("empty.txt").write_text("")
    with pytest.raises(WrongUsageError, match="is empty"):
        texts.tokens_of(file.with_name("empty.txt"))
    file.with_name("binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WrongUsageError, match="expected a text in UTF-8"):
        texts.tokens_of(file.with_name("binary.txt"))


@needs_encoder
def test_documents_are_cut_or_left_out():
    assert texts.documents(["hello world hello", "hello"], 4) == [[101, 7592, 2088, 102], None]


@needs_news
def test_the_labelled_news_have_five_topics_and_no_doubles():
    news = shipped.news()
    assert {topic for _, topic in news} == {"business", "entertainment", "politics", "sports", "tech"}
    assert len({text for text, _ in news}) == len(news) > 2000
