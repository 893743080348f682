"""A trial: a variant inside a model, either put there without retraining or trained with it; and its line of a run.

Lines of these kinds stand in run files beside those of bare attentions. :mod:`bench.store` reads and writes the files
and keeps such lines apart for whoever asks for it; :func:`of_lines` reads them. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from bench.record import Case, Crashed, Failed, OutOfMemory, Record, Timeout, Unsupported

DROP_IN: Literal["drop_in"] = "drop_in"
TASK: Literal["task"] = "task"
KINDS = (DROP_IN, TASK)
TRAINED_TASKS = ("recall", "copy", "listops", "needle")
NO_ATTENTION = "no_attention"
SOLVED = 0.9


class TrialCase(Case, frozen=True, kw_only=True):
    """``task``: ``news`` for a drop-in, else what is trained. ``options``: everything else that changes the result."""

    task: str
    options: dict[str, int | float] = msgspec.field(default_factory=dict)

    @property
    def title(self) -> str:
        """As it is asked for: its task, or that it is a drop-in."""
        return DROP_IN if self.kind == DROP_IN else self.task


class Replaced(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="replaced"):
    """A variant that took the place of attention in every layer of the shipped encoder, against the exact encoder.

    ``cosine``: between both embeddings of a document, the mean, the least of all beside it. ``neighbours_kept``: how
    many documents have the nearest neighbour that they had. ``rank_correlation``: Spearman's, of the similarities of
    all pairs. ``apart``: the mean cosine between different documents in the exact encoder, below which an embedding
    says nothing. A classifier of the documents' topics is trained on half of the embeddings and tried on the others,
    once for each seed: ``accuracy`` and ``macro_f1`` for one that saw this variant's, ``moved_…`` for one that was
    trained on the exact encoder's, ``exact_…`` for the exact encoder itself.
    """

    documents: int
    cosine: float
    least_cosine: float
    neighbours_kept: float
    rank_correlation: float | None
    apart: float
    accuracy: list[float]
    macro_f1: list[float]
    moved_accuracy: list[float]
    moved_macro_f1: list[float]
    exact_accuracy: list[float]
    exact_macro_f1: list[float]
    attention: Attention | None = None
    seconds: float
    notes: list[str] = []


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """What the encoder's attention looks like inside, of this variant and of the exact one: means over some documents.

    ``entropy`` of a row in nats; ``distance`` between query and key in tokens. Of the rollout (arXiv 2005.00928):
    its total variation from the exact one, and how many of the exact ten largest are kept. ``map`` and ``rollout``: of
    the first ``tokens`` of a document, what each gives to each, the mean over the heads of layer ``map_layer`` and
    through all layers; ``exact_…`` beside them.
    """

    entropy: float
    exact_entropy: float
    distance: float
    exact_distance: float
    rollout_total_variation: float
    rollout_top10_kept: float
    map_layer: int
    tokens: list[str]
    map: list[list[float]]
    exact_map: list[list[float]]
    rollout: list[list[float]]
    exact_rollout: list[list[float]]


class Trained(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="trained"):
    """A small model that was trained from scratch with a variant as its attention.

    ``accuracies``: ``(step, accuracy)`` on sequences that are not trained on. ``steps_to_target`` and
    ``seconds_to_target``: until the first of them that is at least 0.9, None if that did not come. ``chance``: the
    accuracy of guessing. ``by_depth``: accuracy by quarter of the sequence in which the answer stood, where a task has
    depths.
    """

    accuracies: list[tuple[int, float]]
    final_accuracy: float
    steps: int
    seconds: float
    steps_to_target: int | None
    seconds_to_target: float | None
    chance: float
    parameters: int
    stopped_early: bool
    by_depth: list[float] = []
    notes: list[str] = []

    @property
    def solved(self) -> bool:
        return self.steps_to_target is not None


TrialOutcome = Replaced | Trained | Unsupported | OutOfMemory | Timeout | Crashed | Failed


class TrialRecord(Record, frozen=True, kw_only=True):
    """One trial. Everything else is as in the record of a bare attention."""

    case: TrialCase
    outcome: TrialOutcome  # type: ignore[assignment]  # other ends than those of an attention that is timed


class Reading(msgspec.Struct, frozen=True):
    """Trials: the last line of each run, case and process. ``problems``: a sentence for every line that is none."""

    records: list[TrialRecord]
    problems: list[str]


NOTHING = Reading([], [])


def of_lines(lines: Iterable[tuple[str, bytes]]) -> Reading:
    """Of lines that are known to be trials, each with where it stands: :class:`bench.store.Reading` keeps them."""
    records: dict[tuple[str, str, int], TrialRecord] = {}
    problems: list[str] = []
    for place, line in lines:
        try:
            record = _RECORD.decode(line)
        except msgspec.DecodeError as error:
            problems.append(f"{place}: not a trial ({error})")
        else:
            records[record.run_id, record.case.key(), record.process] = record
    return Reading(list(records.values()), problems)


_RECORD = msgspec.json.Decoder(TrialRecord)
