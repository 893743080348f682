"""A policy from TOML. Every key and value is checked, and a mistake is one line with the nearest match.

.. code-block:: toml

    margin = "1%"
    significance = 0.01

    [[margins]]            # the last that matches a case holds
    mask = "causal"
    mode = ["bwd", "fwd_bwd"]
    variant = "reformer_*"
    margin = "3%"

    [[advisory]]
    variant = "uniform"
    reason = "a floor, nobody runs it"

    [[removals]]
    variant = "chunked_mha"
    until = 2030-01-31
    reason = "replaced by flex"

    [[accepted]]
    variant = "bigbird"
    gates = ["memory", "dispatch"]
    until = 2030-01-31
    reason = "gathers in one piece now"
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from bench.errors import WrongUsageError, unknown
from bench.gate.exact import Gate
from bench.gate.policy import ANY, Accepted, Advisory, Margin, Policy, Removal, Where
from variants._contract import MODES

_SHARES = ("margin", "stored_margin", "coarse_margin", "exponent_margin")
_PROBABILITIES = ("significance", "false_discovery", "confidence", "decided_share")
_WHERE = ("variant", "mask", "mode")

_T = TypeVar("_T")
_Table = Mapping[str, Any]


def load(path: Path) -> Policy:
    """The policy of a file.

    Raises:
        WrongUsageError: it cannot be read, or holds something unusable; the message names it.

    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUsageError(f"expected a policy in TOML, cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUsageError(f"{path} is not TOML: {error}") from error
    return parse(table, str(path))


def parse(table: _Table, where: str = "policy") -> Policy:
    """A policy from what TOML gives.

    Raises:
        WrongUsageError: an unknown key or an unusable value; the message names it.

    """
    _known(table, [*_SHARES, *_PROBABILITIES, *_LISTS], where)
    values: dict[str, Any] = {name: share(table[name], f"{where}: {name}") for name in _SHARES if name in table}
    values |= {name: _probability(table[name], f"{where}: {name}") for name in _PROBABILITIES if name in table}
    for name, read in _LISTS.items():
        values[name] = _each(table.get(name, []), read, f"{where}, [[{name}]]")
    return Policy(**values)


def _each(tables: Any, read: Callable[[_Table, str], _T], where: str) -> tuple[_T, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise WrongUsageError(f"{where}: expected a list of tables, got {tables!r}")
    return tuple(read(table, f"{where} {number}") for number, table in enumerate(tables, start=1))


def _margin(table: _Table, where: str) -> Margin:
    _known(table, [*_WHERE, "margin"], where)
    return Margin(where=_where(table, where), margin=share(_needed(table, "margin", where), f"{where}: margin"))


def _advisory(table: _Table, where: str) -> Advisory:
    _known(table, [*_WHERE, "reason"], where)
    return Advisory(where=_named(table, where), reason=_text(table, "reason", where))


def _removal(table: _Table, where: str) -> Removal:
    _known(table, [*_WHERE, "until", "reason"], where)
    return Removal(where=_named(table, where), until=_until(table, where), reason=_text(table, "reason", where))


def _accepted(table: _Table, where: str) -> Accepted:
    _known(table, [*_WHERE, "gates", "until", "reason"], where)
    gates = _patterns(_needed(table, "gates", where), f"{where}: gates")
    for gate in gates:
        if gate not in get_args(Gate):
            raise unknown(f"{where}: gate", gate, get_args(Gate))
    return Accepted(
        where=_named(table, where), gates=gates, until=_until(table, where), reason=_text(table, "reason", where)
    )


_LISTS: Mapping[str, Callable[[_Table, str], Any]] = {
    "margins": _margin,
    "advisory": _advisory,
    "removals": _removal,
    "accepted": _accepted,
}


# --- values ---------------------------------------------------------------------------------------------------


def share(value: Any, what: str) -> float:
    """A fraction above 0 and below 1, from ``"3%"`` or 0.03.

    Raises:
        WrongUsageError: anything else; 3 too, since it may mean 3% or thrice.

    """
    number: float | None = None
    match value:
        case str() if value.strip().endswith("%"):
            try:
                number = float(value.strip().removesuffix("%")) / 100
            except ValueError:
                number = None
        case int() | float() if not isinstance(value, bool):
            number = float(value)
    if number is None or not 0 < number < 1:
        raise WrongUsageError(f"{what}: expected a share such as '3%' or 0.03, got {value!r}")
    return number


def _probability(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise WrongUsageError(f"{what}: expected a probability such as 0.01, got {value!r}")
    return share(value, what)


def _known(table: _Table, keys: list[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise unknown(f"{where}: key", key, keys)


def _needed(table: _Table, key: str, where: str) -> Any:
    if key not in table:
        raise WrongUsageError(f"{where}: expected a {key}, got none; add it")
    return table[key]


def _text(table: _Table, key: str, where: str) -> str:
    value = _needed(table, key, where)
    if not isinstance(value, str) or not value.strip():
        raise WrongUsageError(f"{where}: {key}: expected some words, got {value!r}")
    return " ".join(value.split())


def _until(table: _Table, where: str) -> dt.date:
    value = _needed(table, "until", where)
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise WrongUsageError(f"{where}: until: expected a date such as 2030-01-31, without quotes, got {value!r}")
    return value


def _named(table: _Table, where: str) -> Where:
    """What excuses something names what it excuses."""
    found = _where(table, where)
    if found == Where():
        raise WrongUsageError(f"{where}: expected a {', '.join(_WHERE)} that it is for, got none; add one")
    return found


def _where(table: _Table, where: str) -> Where:
    chosen = {name: _patterns(table[name], f"{where}: {name}") for name in _WHERE if name in table}
    for mode in chosen.get("mode", ANY):
        if mode not in MODES and not set("*?[") & set(mode):
            raise unknown(f"{where}: mode", mode, MODES)
    return Where(**chosen)


def _patterns(value: Any, what: str) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item for item in items):
        raise WrongUsageError(f"{what}: expected a text or a list of them, got {value!r}")
    return tuple(items)
