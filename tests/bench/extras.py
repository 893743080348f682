"""What is skipped where an optional extra is not installed."""

import pytest

from bench.fidelity import shipped

_REASON = "the extra `fidelity` is not installed"

needs_encoder = pytest.mark.skipif(bool(shipped.encoder_missing()), reason=_REASON)
needs_news = pytest.mark.skipif(bool(shipped.news_missing()), reason=_REASON)
