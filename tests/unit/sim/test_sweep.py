from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.errors import SpecError, UnknownIdError
from gradwire.sim.catalogue import find_network
from gradwire.sim.compute import find_device, workload
from gradwire.sim.compute.nodes import find_hardware
from gradwire.sim.sweep import Grid, SweepResult, missing, plan_sweep, simulate_point

GRID = Grid((2, 8), (1.25e8, 1.25e10), ("none", "int4"))
HARDWARE = find_hardware("a100")
WORK = workload(find_network("lenet5"), find_device("a100"), 32)


def test_grid_puts_the_baseline_first_and_drops_repetitions():
    assert Grid((2,), (1e9,), ("int4", "none", "int4")).plans == ("none", "int4")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("ranks", {"ranks": ()}),
        ("ranks", {"ranks": (1,)}),
        ("ranks", {"ranks": (6,), "ranks_per_node": 4}),
        ("rates_bytes_per_s", {"rates_bytes_per_s": (0.0,)}),
        ("engines", {"engines": ("horovod",)}),
        ("topology", {"topology": "line"}),
        ("collective", {"collective": "gossip"}),
    ],
)
def test_impossible_grid_is_refused(field, values):
    with pytest.raises(SpecError, match=f"Grid.{field}"):
        Grid(**values)


def test_unknown_plan_is_refused_before_anything_is_simulated():
    with pytest.raises(UnknownIdError, match="gzip"):
        Grid(plans=("gzip",))


def test_workloads_of_one_name_are_refused():
    with pytest.raises(SpecError, match="different names"):
        plan_sweep(GRID, [WORK, WORK], HARDWARE)


def test_points_are_counted_once_and_end():
    sweep = plan_sweep(GRID, [WORK], HARDWARE)
    keys = list(missing(sweep))
    assert len(keys) == len(set(keys)) == sweep.size == 8
    point = simulate_point(keys[0], GRID, WORK, HARDWARE)
    rest = list(missing(replace(sweep, points=(point,))))
    assert rest == keys[1:]


def test_result_survives_its_json():
    sweep = plan_sweep(GRID, [WORK], HARDWARE, euro_per_rank_hour=2.0, samples=1e6)
    points = tuple(simulate_point(key, GRID, WORK, HARDWARE) for key in missing(sweep))
    result = replace(sweep, points=points)
    assert SweepResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_broken_file_is_refused(text):
    with pytest.raises(SpecError, match="sweep result"):
        SweepResult.from_json(text)


def test_stored_scale_study_is_complete():
    path = Path(__file__).parents[3] / "docs/assets/results/sweep.json"
    study = SweepResult.from_json(path.read_text(encoding="utf-8"))
    assert len(study.points) == len(study.by_key()) == study.size
    assert max(study.grid.ranks) == 1024


def test_another_workload_or_machine_is_another_sweep():
    sweep = plan_sweep(GRID, [WORK], HARDWARE)
    slower = replace(WORK, optimiser_s=1.0)
    assert sweep.is_same_sweep(plan_sweep(GRID, [WORK], HARDWARE, samples=1e6))
    assert not sweep.is_same_sweep(plan_sweep(GRID, [slower], HARDWARE))
    assert not sweep.is_same_sweep(plan_sweep(GRID, [WORK], find_hardware("h100")))


def test_step_falls_with_the_rate_and_no_faster_than_computation():
    points = {
        key: simulate_point(key, GRID, WORK, HARDWARE)
        for key in missing(plan_sweep(GRID, [WORK], HARDWARE))
    }
    for key, point in points.items():
        fast = points[key._replace(rate_bytes_per_s=1.25e10)]
        assert WORK.compute_s <= fast.step_s <= point.step_s


@pytest.mark.parametrize("name", ["euro_per_rank_hour", "samples"])
def test_price_of_nothing_is_refused(name):
    with pytest.raises(SpecError, match=name):
        plan_sweep(GRID, [WORK], HARDWARE, **{name: 0.0})
