from __future__ import annotations

import multiprocessing
import os
import time
from functools import partial

import pytest
from matplotlib.figure import Figure

from bench.report import canvas, drawing
from bench.report.gallery import PictureFile


@pytest.fixture(autouse=True)
def unpainted(monkeypatch):
    """A picture is the process that it was drawn in, and its title."""
    monkeypatch.setattr(canvas, "_rendered", lambda figure, _: f"{os.getpid()} {figure.texts[-1].get_text()}".encode())


@pytest.fixture
def cores(monkeypatch):
    """So many of them."""
    return lambda count: monkeypatch.setattr(drawing, "_cores", lambda: count)


def pictures(*draws):
    return [PictureFile(f"p{number}", "", canvas.Picture(draw, f"t{number}")) for number, draw in enumerate(draws)]


def elsewhere(happens):
    """Draws in the process of the test, and does something else in any other."""
    here = os.getpid()

    def draw():
        if os.getpid() != here:
            happens()
        return Figure()

    return draw


def drawn_by(files):
    return {content.split()[0] for content in files.values()}


def fail():
    raise ValueError("cannot be drawn")


@pytest.mark.parametrize(("count", "processes"), [(1, 1), (2, 2), (3, 3), (64, 4)])
def test_all_pictures_are_drawn_by_as_many_processes_as_there_are_cores_and_at_most_four(cores, count, processes):
    cores(count)
    files = drawing.files(pictures(*[Figure] * 7))
    assert {name: content.split()[1].decode() for name, content in files.items()} == {
        f"p{number}{ending}": f"t{number}" for number in range(7) for ending in (".svg", "-dark.svg", ".png")
    }
    assert len(drawn_by(files)) == processes
    assert not multiprocessing.active_children()


def test_there_are_no_more_processes_than_pictures(cores):
    cores(4)
    assert drawing.files([]) == {}
    assert drawn_by(drawing.files(pictures(Figure))) == {str(os.getpid()).encode()}


@pytest.mark.parametrize("happens", [fail, partial(os._exit, 0)])
def test_what_another_process_does_not_draw_is_drawn_here(cores, happens, capfd):
    cores(2)
    files = drawing.files(pictures(*[elsewhere(happens)] * 4))
    assert len(files) == 12
    assert drawn_by(files) == {str(os.getpid()).encode()}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_comes_through_whoever_meets_it_and_nobody_is_left(cores, number):
    cores(2)
    draws = [Figure, Figure]
    draws[number] = fail
    with pytest.raises(ValueError, match="cannot be drawn"):
        drawing.files(pictures(*draws))
    assert not multiprocessing.active_children()


def test_an_interruption_ends_all(cores):
    cores(2)
    here = os.getpid()

    def interrupted():
        if os.getpid() == here:
            raise KeyboardInterrupt
        time.sleep(3600)  # whoever waited for this one would not come back

    with pytest.raises(KeyboardInterrupt):
        drawing.files(pictures(*[interrupted] * 6))
    assert not multiprocessing.active_children()


def test_where_no_process_can_be_had_all_is_drawn_here(cores, monkeypatch):
    def none():
        raise BlockingIOError

    cores(2)
    monkeypatch.setattr(os, "fork", none)
    assert drawn_by(drawing.files(pictures(Figure, Figure))) == {str(os.getpid()).encode()}
