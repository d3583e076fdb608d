from __future__ import annotations

import pytest

from gradwire.bench.modes import DEFAULT_MODES, MODES, parse_mode, parse_modes
from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import Plan


def test_every_known_mode_is_read():
    for name, known in MODES.items():
        mode = parse_mode(name)
        assert (mode.name, mode.family, mode.bucket_cap_mb) == (name, known.family, None)
        assert mode.hook == (None if name == "none" else name)


def test_bucket_size_follows_the_last_at():
    assert parse_mode("none@2.5").bucket_cap_mb == 2.5
    mode = parse_mode("gradwire:int4@broadcast@5")
    assert (mode.plan, mode.bucket_cap_mb) == ("int4@broadcast", 5.0)
    assert mode.label == "gradwire int4@broadcast, 5 MiB buckets"


def test_plan_files_are_named_by_their_stem(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(Plan.of("int2").to_json())
    assert parse_mode(f"gradwire:{path}@5").label == "gradwire mine, 5 MiB buckets"


@pytest.mark.parametrize("text", ["zip", "zip@5", "gradwire", "gradwire:zip9", "", "none@fast"])
def test_unknown_modes_are_refused(text):
    with pytest.raises(UnknownIdError, match="is not one of"):
        parse_mode(text)


@pytest.mark.parametrize("text", ["none@0", "none@1.2.3"])
def test_bucket_sizes_out_of_range_are_refused(text):
    with pytest.raises(SpecError, match="bucket size above 0"):
        parse_mode(text)


def test_default_modes_hold_both_bounds_and_the_strong_baselines():
    names = [m.name for m in parse_modes(DEFAULT_MODES)]
    assert {"nosync", "none", "none@5", "fp16@5", "powersgd1@1000"} <= set(names)
    assert any(name.startswith("gradwire:") for name in names)
