"""What is left of memory: the page cache is room, and the narrowest group around this process counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.measure import room
from bench.measure.room import Room

MAX_V1 = "9223372036854771712\n"


@pytest.fixture
def system(tmp_path):
    """Writes files of control groups, and gives the rooms that they tell of."""

    def rooms(files, membership="0::/\n"):
        for name, text in files.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(text)
        (tmp_path / "membership").write_text(membership)
        return room.group_rooms(tmp_path / "groups", tmp_path / "membership")

    return rooms


def stat(**figures):
    return "".join(f"{name} {value}\n" for name, value in figures.items())


V2 = {"memory.max": "100\n", "memory.current": "90\n"}
V1 = {"memory/memory.limit_in_bytes": "50\n", "memory/memory.usage_in_bytes": "45\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"memory.max": "max\n", "memory.current": "5\n"}, []),
        (V2, [Room(100, 10)]),
        (V2 | {"memory.stat": stat(anon=20, file=70, inactive_anon=7, inactive_file=60)}, [Room(100, 70)]),
        (V1, [Room(50, 5)]),
        (V1 | {"memory/memory.stat": stat(inactive_file=3, total_inactive_file=30)}, [Room(50, 35)]),
        (V1 | {"memory/memory.stat": stat(cache=9, inactive_file=3)}, [Room(50, 8)]),
        (V2 | V1, [Room(100, 10), Room(50, 5)]),
    ],
)
def test_the_page_cache_of_a_control_group_is_room(system, files, expected):
    assert system(files) == expected


def test_every_group_around_this_process_counts(system):
    files = {
        "batch/memory.max": "100\n",
        "batch/memory.current": "60\n",
        "batch/memory.stat": stat(inactive_file=20),
        "batch/job/memory.max": "max\n",
        "batch/job/step/memory.max": "80\n",
        "batch/job/step/memory.current": "50\n",
        "other/memory.max": "1\n",
        "other/memory.current": "1\n",
    }
    assert system(files, "0::/batch/job/step\n") == [Room(80, 30), Room(100, 60)]


def test_version_1_names_its_controllers(system):
    files = {
        "memory/memory.limit_in_bytes": MAX_V1,
        "memory/memory.usage_in_bytes": "5\n",
        "memory/job/memory.limit_in_bytes": "80\n",
        "memory/job/memory.usage_in_bytes": "50\n",
        "memory/cpu/memory.limit_in_bytes": "1\n",
        "memory/cpu/memory.usage_in_bytes": "1\n",
    }
    found = system(files, "5:cpu,cpuacct:/cpu\n4:memory:/job\n0::/\n")
    assert found == [Room(int(MAX_V1), int(MAX_V1) - 5), Room(80, 30)]


def test_a_container_sees_its_own_group_as_the_outermost(system):
    assert system(V2, "0::/docker/not/seen/from/inside\n") == [Room(100, 10)]


def test_a_system_without_control_groups(tmp_path):
    assert room.group_rooms(tmp_path / "nowhere", tmp_path / "none") == []


def test_the_tightest_counts(monkeypatch):
    memory = SimpleNamespace(total=1000, available=500)
    monkeypatch.setattr(room.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(room, "group_rooms", lambda: [Room(2000, 1900)])
    assert room.tightest() == Room(1000, 500)
    monkeypatch.setattr(room, "group_rooms", lambda: [Room(300, 20), Room(2000, 1900)])
    assert room.tightest() == Room(300, 20)


def test_a_limit_on_the_address_space_is_respected(monkeypatch):
    import resource

    memory = SimpleNamespace(vms=1000, rss=1, data=400)
    monkeypatch.setattr(room.psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: memory))
    limits = {resource.RLIMIT_AS: 5000, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], limits[kind]))
    assert room.limit_rooms() == [4000]
    assert room.available_bytes() == 4000
    limits[resource.RLIMIT_DATA] = 300
    assert room.available_bytes() == 0
