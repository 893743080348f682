"""A small classifier on frozen embeddings: what is lost of what they are for. Nothing here imports torch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SEEDS = 3
_HIDDEN, _ITERATIONS = 64, 300


class Scores(NamedTuple):
    """On documents that were not trained on; one number for each seed, which draws both the halves and the start."""

    accuracy: list[float]
    macro_f1: list[float]


def judged(given: Any, exact: Any, topics: Sequence[str]) -> tuple[Scores, Scores, Scores]:
    """Classifiers of embeddings ``(M, C)``: trained on ``given``; trained on ``exact``; both tried on ``given``.

    The third is trained and tried on ``exact``: what could be reached.
    """
    own, moved, exactly = (Scores([], []) for _ in range(3))
    labels = np.asarray(topics)
    for seed in range(SEEDS):
        train, test = _halves(labels, seed)
        of_exact = _fitted(exact[train], labels[train], seed)
        _add(own, _fitted(given[train], labels[train], seed).predict(given[test]), labels[test])
        _add(moved, of_exact.predict(given[test]), labels[test])
        _add(exactly, of_exact.predict(exact[test]), labels[test])
    return own, moved, exactly


def _halves(labels: Any, seed: int) -> tuple[Any, Any]:
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(labels)), test_size=0.5, stratify=labels, random_state=seed)
    return train, test


def _fitted(embeddings: Any, labels: Any, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier((_HIDDEN,), max_iter=_ITERATIONS, random_state=seed, learning_rate_init=5e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many iterations for each, converged or not
        return network.fit(embeddings, labels)


def _add(scores: Scores, predicted: Any, labels: Any) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    scores.accuracy.append(float(accuracy_score(labels, predicted)))
    scores.macro_f1.append(float(f1_score(labels, predicted, average="macro")))
