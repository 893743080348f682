"""``recommend``: what to use for one shape, from run files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import WrongUsageError

if TYPE_CHECKING:
    from bench.report.recommend import Advice, Candidate, Choice


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """A range of click's lets NaN through, since it is neither below nor above anything: no limit at all."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number, got {value}", context, parameter)
    return value


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])I?)?B?", re.IGNORECASE)
_SCALES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@click.command("recommend")
@click.argument("files", nargs=-1, required=True, metavar="FILES…", type=click.Path(path_type=Path))
@click.option("--seq-len", required=True, metavar="N", help="Length, such as 8k.")
@click.option("--mask", default="full", show_default=True, metavar="M")
@click.option("--mode", type=click.Choice(["fwd", "bwd", "fwd_bwd"]), default="fwd", show_default=True)
@click.option("--max-memory", metavar="SIZE", help="Peak memory of a call, such as 2GiB or 512M.")
@click.option(
    "--min-fidelity",
    type=click.FloatRange(-1, 1),
    callback=_finite,
    metavar="COSINE",
    help="Least cosine between the output and exact attention's; 1 is the same.",
)
@click.option(
    "--max-error",
    type=click.FloatRange(0),
    callback=_finite,
    metavar="E",
    help="Most relative error of the output against exact attention's; 0 is the same.",
)
@click.option("--dtype", metavar="T")
@click.option("--device", metavar="cpu|cuda")
@click.option("--device-name", metavar="NAME")
@click.option("--batch", type=int, metavar="B")
@click.option("--heads", type=int, metavar="H")
@click.option("--kv-heads", type=int, metavar="H")
@click.option("--head-dim", type=int, metavar="D")
@click.option("--threads", type=int, metavar="T")
@click.option("--inputs", metavar="NAME", help="Where the tensors came from.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def command(
    *,
    files: tuple[Path, ...],
    seq_len: str,
    mask: str,
    mode: str,
    max_memory: str | None,
    min_fidelity: float | None,
    max_error: float | None,
    as_json: bool,
    **narrowing: Any,
) -> int:
    """Name the fastest exact and approximate attention for one shape, with the evidence, from run files.

    Runs over several machines, shapes or versions give an answer each; --dtype and the like choose among them.
    Exits with 3 where nothing measured keeps the limits.
    """
    from bench import store
    from bench.cells import gather
    from bench.report.recommend import Need, advise

    reading = store.read(*files)
    for problem in reading.problems:
        click.echo(f"warning: {problem}", err=True)
    need = Need(
        length=_length(seq_len),
        mask=_mask(mask),
        mode=mode,
        narrowed={name: value for name, value in narrowing.items() if value is not None},
        most_bytes=None if max_memory is None else size_bytes(max_memory),
        least_cosine=min_fidelity,
        most_error=max_error,
    )
    found = advise(gather(reading.records), need)
    if as_json:
        click.echo(json.dumps([_built(advice) for advice in found], indent=2, ensure_ascii=False))
    else:
        click.echo("\n\n".join(_told(advice, need) for advice in found))
    if not any(advice.exact or advice.approximate for advice in found):
        click.echo("error: nothing that was measured keeps these limits; the lines above say by how much", err=True)
        return 3
    return 0


def size_bytes(text: str) -> int:
    """``2GiB``, ``512M`` or a number of bytes; all units are powers of 1024.

    Raises:
        WrongUsageError: none of these.

    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _SCALES[(match[2] or "").upper()]) if match else 0
    if size <= 0:
        raise WrongUsageError(f"--max-memory: expected a size such as 2GiB or 512M, got {text!r}")
    return size


def _length(text: str) -> int:
    from variants._mask import parse_length

    try:
        length = parse_length(text)
    except ValueError as error:
        raise WrongUsageError(f"--seq-len: {error}") from None
    if length < 1:
        raise WrongUsageError(f"--seq-len: expected a length of at least 1, got {text!r}")
    return length


def _mask(text: str) -> str:
    from variants._mask import Mask

    try:
        return str(Mask.parse(text))
    except ValueError as error:
        raise WrongUsageError(f"--mask: {error}") from None


# --- told ---------------------------------------------------------------------------------------------------


def _told(advice: Advice, need: Any) -> str:
    from bench import wording
    from bench.report.titles import plain_title

    lines = [f"{need.mask}, {need.mode}, {wording.length(need.length)} · {plain_title(advice.ground)}"]
    refused = {candidate.contender.exact for candidate, _ in advice.refused}
    lines += _choice("exact", advice.exact, refused=True in refused)
    lines += _choice("approximate", advice.approximate, refused=False in refused)
    if advice.approximate and advice.exact:
        gain = "" if advice.gain is None else f" ({wording.times(advice.gain)} the speed of the exact one)"
        lines.append(f"  → {_verdict(advice)}{gain}")
    if not advice.ground.inputs.startswith("minilm") and advice.approximate:
        lines.append(f"  fidelity is that on inputs {advice.ground.inputs!r}, which need not be yours")
    for candidate, objections in advice.refused:
        lines.append(f"  not {candidate.contender.label}: {'; '.join(objections)}")
    for contender, reason in advice.unmeasured:
        lines.append(f"  not {contender.label}: {reason}")
    return "\n".join(lines)


def _verdict(advice: Advice) -> str:
    assert advice.exact  # noqa: S101  # the caller has looked
    assert advice.approximate  # noqa: S101
    if advice.pays:
        return f"{advice.approximate.best.contender.label} if its fidelity is enough"
    return f"{advice.exact.best.contender.label}: no approximation is surely faster"


def _choice(kind: str, choice: Choice | None, *, refused: bool) -> list[str]:
    """``refused``: whether the limits speak against any of this kind."""
    from bench import wording
    from bench.report.recommend import evidence

    if choice is None:
        why = "nothing keeps the limits" if refused else f"no {kind} attention was measured at this length"
        return [f"  {kind + ':':<13}{why}"]
    lines = [f"  {kind + ':':<13}{choice.best.contender.label}: {evidence(choice.best)}"]
    if choice.rivals:
        names = wording.listed([rival.contender.label for rival in choice.rivals])
        lines.append(f"{'':15}within noise of {names}")
    return lines


def _built(advice: Advice) -> dict[str, Any]:
    ground = advice.ground
    return {
        "device_name": ground.device_name,
        "dtype": ground.dtype,
        "batch": ground.batch,
        "heads": ground.heads,
        "kv_heads": ground.kv_heads,
        "head_dim": ground.head_dim,
        "inputs": ground.inputs,
        "threads": ground.settings.threads,
        "exact": _built_choice(advice.exact),
        "approximate": _built_choice(advice.approximate),
        "approximate_pays": advice.pays,
        "gain": None if advice.gain is None else [advice.gain.value, advice.gain.low, advice.gain.high],
        "refused": {candidate.contender.label: list(objections) for candidate, objections in advice.refused},
        "unmeasured": {contender.label: reason for contender, reason in advice.unmeasured},
    }


def _built_choice(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {**_built_candidate(choice.best), "within_noise_of": [rival.contender.label for rival in choice.rivals]}


def _built_candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "variant": candidate.contender.variant,
        "label": candidate.contender.label,
        "parameters": json.loads(candidate.contender.parameters),
        "seconds": candidate.seconds.value,
        "seconds_interval": [candidate.seconds.low, candidate.seconds.high],
        "peak_bytes": candidate.peak_bytes,
        "cosine": candidate.cosine,
        "relative_error": candidate.relative_error,
        "interpolated_between": candidate.between,
    }
