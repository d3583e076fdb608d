"""Hardware as data: written, read, refused."""

from __future__ import annotations

import json

import pytest

from gradwire.errors import SpecError
from gradwire.hardware import Device, Hardware, Line, LinkSpeed

LINK = LinkSpeed(1e-3, 1e8, 0.1, {"exchange": Line(1e-3, 1e-8, 0.1)}, ranks=4)
HARDWARE = Hardware(
    Device("cuda", "card", 132, ("sm_90", "fp8"), 4e12, 3e12, 5e-6, 0.25),
    {"encode int4": Line(1e-5, 1e-10, 0.02)},
    within=LINK,
    between=LinkSpeed(2e-3, 1e7),
    fingerprint="abc",
)


def test_hardware_comes_back_from_its_json():
    assert Hardware.from_json(HARDWARE.to_json()) == HARDWARE


def test_lines_without_spread_and_links_without_ranks_can_be_written_by_hand():
    data = json.loads(HARDWARE.to_json())
    data["kernels"]["encode int4"] = [1e-5, 1e-10]
    del data["within"]["ranks"], data["device"]["read_bytes_per_s"]
    found = Hardware.from_json(json.dumps(data))
    assert found.kernels["encode int4"].spread == 0.0
    assert (found.within.ranks, found.device.read_bytes_per_s) == (0, 0.0)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9}', '{"format": 1}'])
def test_other_json_is_refused(text):
    with pytest.raises(SpecError):
        Hardware.from_json(text)


@pytest.mark.parametrize("chi", [-0.1, 1.1, float("nan")])
def test_interference_is_a_share(chi):
    with pytest.raises(SpecError, match="interference"):
        Device(interference=chi)
