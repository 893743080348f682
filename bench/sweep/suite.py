"""What a run is asked to cover: axes and settings, from a TOML file, from options, or from both.

A suite has ``[[sweep]]`` tables of bare attentions, each the product of its axes, ``[[trial]]`` tables of attentions
inside a model, or both, and settings at the top. Every key and value is checked, and a mistake is one line. Nothing
here imports torch.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.errors import WrongUsageError, unknown
from bench.fidelity import sources
from bench.fidelity.trial import DROP_IN, TRAINED_TASKS
from bench.record import MOST_WHOLE
from variants._contract import DTYPES, MODES, Dtype, Mode
from variants._mask import Mask, MaskError, parse_length

ALL = "all"
PRECISIONS = ("highest", "high")

DEFAULT_TIME_BUDGET_SECONDS = 3.0
LEAST_REPLICATE_SECONDS = 0.3
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_TRIAL_TIMEOUT_SECONDS = 1800.0

TASKS = (*TRAINED_TASKS, DROP_IN)
TRIAL_AXES = ("variants", "skip", "param", "seed")  # what options say of sweeps and trials alike

_TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("batch", "steps", "mask"), TRAINED_TASKS),
    "pairs": ("recall",),
    "documents": (DROP_IN,),
}

Parameters = dict[str, dict[str, tuple[Any, ...]]]

_T = TypeVar("_T")

_DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
_DTYPE_NAMES: dict[str, Dtype] = {
    **{name: name for name in DTYPES},
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The product of its axes. ``parameters``: of a variant, by name, the values to go through.

    ``seq_len_kv`` empty: as long as the query. ``kv_heads`` empty: as many as ``heads``. Patterns such as ``sdpa_*``
    may stand for variants.
    """

    variants: tuple[str, ...] = (ALL,)
    skip: tuple[str, ...] = ()
    seq_len: tuple[int, ...] = (1024,)
    seq_len_kv: tuple[int, ...] = ()
    batch: tuple[int, ...] = (1,)
    heads: tuple[int, ...] = (8,)
    kv_heads: tuple[int, ...] = ()
    head_dim: tuple[int, ...] = (64,)
    dtype: tuple[Dtype, ...] = ("float32",)
    mask: tuple[str, ...] = ("full",)
    mode: tuple[Mode, ...] = ("fwd",)
    inputs: tuple[str, ...] = ("normal",)
    seed: tuple[int, ...] = (0,)
    value_head_dim: tuple[int | None, ...] = (None,)
    scale: tuple[float | None, ...] = (None,)
    parameters: Parameters = {}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Variants inside a model: every task by every variant, length and seed; the task ``drop_in`` trains nothing.

    ``batch``, ``steps`` and ``mask`` are of trainings, ``pairs`` of recall, ``documents`` of drop-ins. The variant
    ``no_attention`` puts zeros in its place.
    """

    task: tuple[str, ...]
    variants: tuple[str, ...]
    skip: tuple[str, ...] = ()
    seq_len: tuple[int, ...] = (128,)
    seed: tuple[int, ...] = (0,)
    batch: int = 32
    steps: int = 2000
    pairs: int = 16
    documents: int = 160
    mask: str = "full"
    parameters: Parameters = {}


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """Sweeps and trials, and how to make them. ``threads`` None: as many as there are usable cores.

    ``time_budget`` is of a case in one process, None as :attr:`time_budget_seconds` has it; ``timeout`` of a case,
    ``trial_timeout`` of a trial. ``insisted``: variants that must be among the chosen ones, since an option speaks of
    them; None: those with parameters, and the baseline.
    """

    description: str = ""
    device: str = "auto"
    time_budget: float | None = None
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    threads: int | None = None
    float32_precision: str = "highest"
    processes: int = 1
    baseline: str | None = None
    trial_timeout: float = DEFAULT_TRIAL_TIMEOUT_SECONDS
    sweeps: tuple[Sweep, ...] = (Sweep(),)
    trials: tuple[Trial, ...] = ()
    insisted: tuple[str, ...] | None = None

    @property
    def time_budget_seconds(self) -> float:
        """Of timing a case in one process. Unless it is given, replicates share what a single process has.

        What differs between them is not known sooner by staying longer in each.
        """
        if self.time_budget is not None:
            return self.time_budget
        return max(LEAST_REPLICATE_SECONDS, DEFAULT_TIME_BUDGET_SECONDS / self.processes)

    @property
    def attempt_timeout(self) -> float:
        """What a case may take, or a trial where there are trials alone; and so what a variant file may."""
        return self.timeout if self.sweeps else self.trial_timeout


# --- from a file ----------------------------------------------------------------------------------------------


def load(name: str) -> Suite:
    """The built-in suite of that name, or that of a TOML file.

    Raises:
        WrongUsageError: there is neither, or it holds something unusable.

    """
    built_in = built_in_suites()
    path = Path(name)
    if name in built_in:
        text, where = (_folder() / f"{name}.toml").read_text(encoding="utf-8"), f"suite {name!r}"
    elif path.suffix == ".toml" or path.is_file():
        text, where = _read(path), str(path)
    else:
        raise unknown("suite", name, [*built_in, "a TOML file"])
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongUsageError(f"{where} is not TOML: {error}") from error
    return parse(table, where)


def built_in_suites() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def _folder() -> Any:
    return resources.files("bench") / "suites"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise WrongUsageError(f"expected a suite in TOML, cannot read {path}: {why}") from error


def parse(table: Mapping[str, Any], where: str = "suite") -> Suite:
    """A suite from what TOML gives.

    Raises:
        WrongUsageError: an unknown key or an unusable value; the message names it.

    """
    settings = dict(table)
    sweeps = [
        Sweep(**_checked(each, _AXES, partial(_in_table, place))) for place, each in _tables(settings, "sweep", where)
    ]
    trials = [trial(each, partial(_in_table, place)) for place, each in _tables(settings, "trial", where)]
    if not sweeps and not trials:
        raise WrongUsageError(f"{where}: expected at least one [[sweep]] table, or [[trial]]; see bench/suites")
    parsed = _checked(settings, _SETTINGS, partial(_in_table, where))
    return Suite(**parsed, sweeps=tuple(sweeps), trials=tuple(trials))


def _tables(settings: dict[str, Any], name: str, where: str) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a kind, taken out, each with its place in words."""
    tables = settings.pop(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise WrongUsageError(f"{where}: expected at least one [[{name}]] table, in two brackets")
    return [(f"{where}, [[{name}]] {number}", each) for number, each in enumerate(tables, start=1)]


def trial(table: Mapping[str, Any], spell: Callable[[str], str]) -> Trial:
    """A trial from TOML's names and values; ``spell`` says where a key stands.

    Raises:
        WrongUsageError: an unknown key, an unusable value, one that no chosen task takes, or one missing without which
            there is no trial.

    """
    checked = _checked(table, _TRIAL, spell)
    for key in ("task", "variants"):
        if key not in checked:
            raise WrongUsageError(f"{spell(key)}: expected it, a trial has no default for it")
    for key in checked:
        takers = _TAKEN_BY.get(key, checked["task"])
        if set(takers).isdisjoint(checked["task"]):
            chosen = ", ".join(checked["task"])
            raise WrongUsageError(
                f"{spell(key)}: expected a task that takes it ({', '.join(takers)}), got {chosen}; leave it out"
            )
    return Trial(**checked)


def override(suite: Suite, *, axes: Mapping[str, Any], settings: Mapping[str, Any]) -> Suite:
    """The suite with other axes (in every sweep) and settings, under TOML's names; they came from options.

    Trials take the variants, parameters and seeds among them. What the suite says of a variant that options have left
    out counts no more.

    Raises:
        WrongUsageError: as for :func:`parse`, or axes that only sweeps have, and there are none.

    """
    changed = _checked(axes, _AXES, _option)
    of_sweeps = [key for key in axes if key not in TRIAL_AXES]
    if of_sweeps and not suite.sweeps:
        raise WrongUsageError(f"{_option(of_sweeps[0])}: this suite has trials alone, which take it from their table")
    parameters = changed.pop("parameters", {})
    shared = {key: changed[key] for key in TRIAL_AXES if key in changed}
    made = _checked(settings, _SETTINGS, _option)
    chooses = not {"variants", "skip"}.isdisjoint(changed)
    insisted = (*parameters, *([made["baseline"]] if "baseline" in made else [])) if chooses else suite.insisted
    return msgspec.structs.replace(
        suite,
        **made,
        sweeps=tuple(_with(sweep, changed, parameters) for sweep in suite.sweeps),
        trials=tuple(_with(trial, shared, parameters) for trial in suite.trials),
        insisted=insisted,
    )


_Table = TypeVar("_Table", Sweep, Trial)


def _with(table: _Table, changed: Mapping[str, Any], parameters: Parameters) -> _Table:
    return msgspec.structs.replace(table, **changed, parameters=_merged(table.parameters, parameters))


def _in_table(where: str, key: str) -> str:
    return f"{where}, {key}"


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _merged(below: Parameters, above: Parameters) -> Parameters:
    return {variant: below.get(variant, {}) | above.get(variant, {}) for variant in dict.fromkeys([*below, *above])}


# --- values ---------------------------------------------------------------------------------------------------


def _checked(
    table: Mapping[str, Any], parsers: Mapping[str, Callable[[Any], Any]], spell: Callable[[str], str]
) -> dict[str, Any]:
    """Every value parsed, under the names of the struct's fields."""
    for key in table:
        if key not in parsers:
            raise unknown(spell("key"), key, parsers)
    checked = {}
    for key, value in table.items():
        try:
            checked["parameters" if key == "param" else key] = parsers[key](value)
        except ValueError as error:
            raise WrongUsageError(f"{spell(key)}: {error}") from error
    return checked


def _several(one: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    """Parses a value or a list of them, which may not be empty; what comes twice counts once."""

    def parse_several(value: Any) -> tuple[_T, ...]:
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise ValueError("expected at least one value, got an empty list")
        return tuple(dict.fromkeys(one(each) for each in values))

    return parse_several


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected text, got {value!r}")
    return value.strip()


def _length(value: Any) -> int:
    if isinstance(value, str):
        value = parse_length(value)
    return _whole(1)(value)


def _whole(least: int) -> Callable[[Any], int]:
    def parse_whole(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else least - 1
        except ValueError:
            number = least - 1
        if number < least:
            raise ValueError(f"expected a whole number of at least {least}, got {value!r}")
        if number > MOST_WHOLE:
            raise ValueError(f"expected a whole number of at most {MOST_WHOLE}, which a record can hold, got {value!r}")
        return number

    return parse_whole


def _above_zero(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return number


def _number(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {value!r}")
    return number


def _one_of(known: Mapping[str, _T], what: str) -> Callable[[Any], _T]:
    def parse_one(value: Any) -> _T:
        if str(value) not in known:
            raise ValueError(str(unknown(what, value, known)))
        return known[str(value)]

    return parse_one


def _mask(value: Any) -> str:
    try:
        return str(Mask.parse(_text(value)))
    except MaskError as error:
        raise ValueError(str(error)) from error


def _inputs(value: Any) -> str:
    try:
        return str(sources.parse(_text(value)))
    except WrongUsageError as error:
        raise ValueError(str(error)) from error


def _device(value: Any) -> str:
    if not isinstance(value, str) or not _DEVICES.fullmatch(value):
        raise ValueError(f"expected auto, cpu, cuda or cuda:1, got {value!r}")
    return value


def _parameters(value: Any) -> Parameters:
    """``{variant: {name: value or list}}``, as ``param.linformer.rank = [64, 128]`` gives it."""
    if not isinstance(value, Mapping) or not all(isinstance(each, Mapping) for each in value.values()):
        raise ValueError("expected variant.name = value, as in param.linformer.rank = 128")
    several = _several(_storable)
    return {variant: {name: several(each) for name, each in named.items()} for variant, named in value.items()}


def _storable(value: Any) -> Any:
    """A parameter's value as it is, unless it is a whole number, perhaps as text, that no record can hold."""
    try:
        number = int(value) if isinstance(value, (int, str)) else 0
    except ValueError:  # text that is no whole number
        return value
    if abs(number) > MOST_WHOLE:
        raise ValueError(f"expected whole numbers of at most {MOST_WHOLE}, which a record can hold, got {value!r}")
    return value


_AXES: dict[str, Callable[[Any], Any]] = {
    "variants": _several(_text),
    "skip": _several(_text),
    "seq_len": _several(_length),
    "seq_len_kv": _several(_length),
    "batch": _several(_whole(1)),
    "heads": _several(_whole(1)),
    "kv_heads": _several(_whole(1)),
    "head_dim": _several(_whole(1)),
    "dtype": _several(_one_of(_DTYPE_NAMES, "dtype")),
    "mask": _several(_mask),
    "mode": _several(_one_of({name: name for name in MODES}, "mode")),
    "inputs": _several(_inputs),
    "seed": _several(_whole(0)),
    "value_head_dim": _several(_whole(1)),
    "scale": _several(_above_zero),
    "param": _parameters,
}

_TRIAL: dict[str, Callable[[Any], Any]] = {
    "task": _several(_one_of({name: name for name in TASKS}, "task")),
    **{key: _AXES[key] for key in (*TRIAL_AXES, "seq_len")},
    "batch": _whole(1),
    "steps": _whole(20),
    "pairs": _whole(1),
    "documents": _whole(40),
    "mask": _mask,
}

_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "description": _text,
    "device": _device,
    "time_budget": _above_zero,
    "timeout": _above_zero,
    "trial_timeout": _above_zero,
    "threads": _whole(1),
    "float32_precision": _one_of({name: name for name in PRECISIONS}, "precision"),
    "processes": _whole(1),
    "baseline": _text,
}
