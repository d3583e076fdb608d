from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradwire.cli import sweep as cli_sweep
from gradwire.cli.sweep import run_sweep
from gradwire.errors import CommandError
from gradwire.sim.catalogue import find_network
from gradwire.sim.compute import find_device, workload
from gradwire.sim.compute.nodes import find_hardware
from gradwire.sim.sweep import Grid, SweepResult, plan_sweep, simulate_point

GRID = Grid((2, 4), (1.25e8, 1.25e9), ("int4",))
HARDWARE = find_hardware("a100")
WORK = workload(find_network("lenet5"), find_device("a100"), 32)


@pytest.fixture
def run(tmp_path):
    paths = (tmp_path / "out/sweep.json", tmp_path / "out/sweep.html")

    def call(grid=GRID, **options):
        sweep = plan_sweep(grid, [WORK], HARDWARE)
        return run_sweep(sweep, [WORK], HARDWARE, paths, Console(file=io.StringIO()), **options)

    call.paths = paths
    return call


def test_sweep_writes_its_result_and_its_page(run):
    result = run()
    json_path, page = run.paths
    assert SweepResult.from_json(json_path.read_text()) == result
    assert len(result.points) == result.size == 8
    assert page.read_text().startswith("<!doctype html>")


def test_complete_sweep_is_not_overwritten_unasked(run):
    first = run()
    with pytest.raises(CommandError, match="is complete; --force"):
        run()
    assert run(force=True) == first


def test_another_sweep_is_not_overwritten_unasked(run):
    run()
    with pytest.raises(CommandError, match="another sweep; --force"):
        run(Grid((2,), (1.25e8,), ("int4",)))


def test_foreign_file_is_not_overwritten_unasked(run):
    run.paths[0].parent.mkdir()
    run.paths[0].write_text("mine")
    with pytest.raises(CommandError, match="holds no sweep"):
        run()
    assert run.paths[0].read_text() == "mine"


def test_interrupted_sweep_goes_on_where_it_stopped(run, monkeypatch):
    calls = []

    def interrupted(key, *rest):
        calls.append(key)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return simulate_point(key, *rest)

    monkeypatch.setattr("gradwire.sim.sweep.simulate_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(SweepResult.from_json(run.paths[0].read_text()).points) == 3
    result = run()
    assert len(calls) == 4 + 5
    assert len(result.points) == len(result.by_key()) == result.size
    assert not list(run.paths[0].parent.glob("*.part"))


def test_long_sweep_saves_as_it_grows(run, monkeypatch):
    saved = []
    monkeypatch.setattr(cli_sweep, "_SAVE_EVERY_S", -1.0)
    monkeypatch.setattr(cli_sweep, "_save", lambda result, _: saved.append(len(result.points)))
    run()
    assert saved == [*range(1, 9), 8]
