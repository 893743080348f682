"""Which pictures a page has, and under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from bench import wording
from bench.cells import Cell, Contender, Ground
from bench.record import Host
from bench.report import attention_maps, breakdowns, front, heatmap, markdown, plots, roofline, titles
from bench.report.canvas import Picture
from bench.report.panels import Curve
from bench.stats import Estimate

_BYTES_PER_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A picture as the page refers to it: ``name`` lacks its ending."""

    name: str
    alt: str
    picture: Picture

    @property
    def markup(self) -> str:
        return markdown.picture(self.name, self.alt)

    @property
    def files(self) -> dict[str, bytes]:
        """By name, for light and dark pages and as pixels."""
        return {
            f"{self.name}.svg": self.picture.svg,
            f"{self.name}-dark.svg": self.picture.dark_svg,
            f"{self.name}.png": self.picture.png,
        }


def overview(
    cells: Sequence[Cell], speedups: Mapping[Cell, Estimate], over: str | None, prefix: str
) -> list[PictureFile]:
    """Speed-ups at a glance, as a heat map."""
    found = []
    if over is not None and speedups:
        for number, drawn in enumerate(heatmap.draw(cells, speedups, over), start=1):
            more = "" if number == 1 else f"-{number}"
            alt = f"Heat map: how many times as fast as {over} each variant is, by workload and length"
            found.append(PictureFile(f"{prefix}speedup{more}", alt, drawn))
    return found


def fronts(cells: Sequence[Cell], prefix: str) -> list[PictureFile]:
    """Speed and memory against fidelity, of each workload of one ground."""
    workloads = [list(group) for _, group in groupby(cells, key=lambda cell: (cell.mask, cell.mode))]
    found: list[PictureFile] = []
    for name, cost in (("front", front.SPEED), ("front-memory", front.MEMORY)):
        panels = [one for members in workloads for one in [front.front(members, cost)] if one is not None]
        alt = (
            f"{cost.name} against relative error of each approximation, with those that nothing beats joined by a line"
        )
        found += named(f"{prefix}{name}", alt, front.draw(panels, cost.name))
    return found


def machine(cells: Sequence[Cell], host: Host, prefix: str) -> list[PictureFile]:
    """How the machine is used: roofline, where time goes, forward and backward, memory, and who looks where."""
    drawings: dict[str, tuple[str, Callable[[], Picture | None]]] = {
        "phases": (
            "Time for building, compiling, the first call, forward and backward",
            partial(breakdowns.phases, cells),
        ),
        "passes": ("Time of the backward as a multiple of the forward", partial(breakdowns.passes, cells)),
        "holds": ("What the peak memory consists of: output, saved, workspace", partial(breakdowns.memory, cells)),
        "roofline": ("FLOP/s attained, under the ceilings of the machine", partial(roofline.draw, cells, host)),
        "maps": ("Which keys each query attends to, for each variant", partial(attention_maps.draw, cells)),
    }
    return [file for name, (alt, draw) in drawings.items() for file in named(f"{prefix}{name}", alt, draw())]


def named(name: str, alt: str, drawn: Picture | None) -> Iterator[PictureFile]:
    """The picture under its name, if there is one."""
    if drawn is not None:
        yield PictureFile(name, alt, drawn)


def curves(
    ground: Ground, cells: Sequence[Cell], host: Host, title: str, names: tuple[str, str]
) -> Iterator[PictureFile]:
    """Time and memory of one workload against the length; ``names``: what their names begin and end with."""
    prefix, slug = names
    axis = titles.axis(ground)
    limit = host.gpu_memory_bytes if ground.device == "cuda" else (host.memory_gib or 0) * _BYTES_PER_GIB or None
    drawn = {
        "time": (plots.TIME, {cell: cell.seconds for cell in cells if cell.seconds is not None}),
        "memory": (
            plots.memory(limit, "memory of the device" if ground.device == "cuda" else "memory of the machine"),
            {cell: Estimate(cell.peak_bytes) for cell in cells if cell.peak_bytes},
        ),
    }
    for name, (quantity, values) in drawn.items():
        alt = f"{name.capitalize()} of a call against the {axis}, {title}"
        yield from named(
            f"{prefix}{name}-{slug}", alt, plots.draw(_curves(values), quantity, f"{name.capitalize()} · {title}", axis)
        )


def _curves(values: Mapping[Cell, Estimate]) -> list[Curve]:
    points: dict[Contender, dict[int, Estimate]] = {}
    for cell, estimate in values.items():
        points.setdefault(cell.contender, {})[cell.length] = estimate
    return [Curve(contender, found) for contender, found in points.items()]


def slugs(workloads: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """A name for the files of each mask and mode, with a number if another one has the same."""
    found: dict[tuple[str, str], str] = {}
    used: set[str] = set()
    for mask, mode in workloads:
        slug = f"{wording.slug(mask)}-{wording.slug(mode)}"
        candidate, number = slug, 1
        while candidate in used:
            number += 1
            candidate = f"{slug}-{number}"
        used.add(candidate)
        found[mask, mode] = candidate
    return found
