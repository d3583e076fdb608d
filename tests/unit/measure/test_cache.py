"""What is kept, and why something kept is not used."""

from __future__ import annotations

import errno
import json
import tempfile
import time
from dataclasses import replace

import pytest

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.measure import cache

LINK = LinkSpeed(1e-3, 1e8)
HARDWARE = Hardware(Device(), {"encode int4": Line(0.0, 1e-9)}, LINK, LINK)
DAY_S = 24 * 3600


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.Machine.here(("a", "a", "b", "b"), 4, "gloo")


def test_what_was_saved_is_loaded(machine, tmp_path):
    assert cache.load(machine) == cache.Cached(None, "nothing was measured here yet")
    path = cache.save(HARDWARE, machine)
    assert path.parent == tmp_path / "gradwire"
    assert cache.load(machine) == cache.Cached(HARDWARE, None)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no unfinished file is left


def test_a_measurement_that_cannot_be_kept_is_a_warning(machine, monkeypatch, tmp_path):
    (tmp_path / "gradwire").write_text("in the way", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match=r"cannot be kept: .*XDG_CACHE_HOME"):
        cache.keep(HARDWARE, machine)
    (tmp_path / "gradwire").unlink()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.Path, "write_text", fail)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.keep(HARDWARE, machine)
    assert list((tmp_path / "gradwire").iterdir()) == []


def test_without_a_home_measurements_lie_with_temporary_files(monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache.Path, "home", fail)
    assert cache.folder() == cache.Path(tempfile.gettempdir()) / "gradwire"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cores": 999}, "foreign: measured with cores 999, here it is "),
        ({"processor": "other"}, "foreign: measured with processor 'other', here it is "),
        ({"torch": "0.1"}, "stale: measured with torch '0.1', here it is "),
        ({"gradwire": "0.0"}, "stale: measured with gradwire '0.0', here it is "),
    ],
)
def test_other_machines_and_versions_are_told_apart(machine, changes, reason):
    cache.save(HARDWARE, replace(machine, **changes))
    found = cache.load(machine)
    assert found.hardware is None
    assert found.reason.startswith(reason)
    assert machine.fingerprint() != replace(machine, **changes).fingerprint()


@pytest.mark.parametrize(
    "changes", [{"world_size": 2}, {"hosts": ("a",)}, {"backend": "nccl"}, {"interface": "ib0"}]
)
def test_each_topology_has_a_file_of_its_own(machine, changes):
    other = replace(machine, **changes)
    cache.save(HARDWARE, machine)
    assert cache.load(other).reason == "nothing was measured here yet"
    assert cache.path_of(other) != cache.path_of(machine)


def test_old_measurements_are_stale(machine):
    cache.save(HARDWARE, machine)
    assert cache.load(machine, now_s=time.time() + 29 * DAY_S).hardware == HARDWARE
    old = cache.load(machine, now_s=time.time() + 31 * DAY_S)
    assert old == cache.Cached(None, "stale: measured 31 days ago, at most 30 count")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1}'])
def test_damaged_files_are_said_to_be(machine, text):
    path = cache.save(HARDWARE, machine)
    path.write_text(text)
    found = cache.load(machine)
    assert found.hardware is None
    assert found.reason


def test_a_file_without_usable_numbers_is_not_used(machine):
    path = cache.save(HARDWARE, machine)
    data = json.loads(path.read_text())
    del data["hardware"]["kernels"]
    path.write_text(json.dumps(data))
    assert "hardware" in cache.load(machine).reason


def test_the_interface_is_that_of_the_back_end(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert cache.Machine.here(backend="gloo").interface == "eth0"
    assert cache.Machine.here(backend="nccl").interface == "ib0"
    assert cache.Machine.here().interface == ""
