from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gradwire.cli import main
from gradwire.cli import sweep as cli_sweep
from gradwire.cli.sweep import run_sweep
from gradwire.errors import CommandError
from gradwire.hardware import LinkSpeed
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


def simulate_command(*args: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *args], prog_name="gradwire")


def test_simulate_prints_one_step():
    done = simulate_command("--network", "accel", "--plan", "none", "--rate", "unlimited")
    assert done.exit_code == 0
    assert re.search(r"computation +300 ms", done.output)


def test_simulate_writes_what_it_is_asked_for(tmp_path):
    names = {"--json": "step.json", "--trace": "trace.json", "--html": "step.html"}
    args = [text for option, name in names.items() for text in (option, str(tmp_path / name))]
    for expected in (0, 2):
        done = simulate_command("--network", "lenet5:8", "--ranks", "2", *args)
        assert done.exit_code == expected
    assert json.loads((tmp_path / "step.json").read_text())["ranks"] == 2
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "step.json exists; --force overwrites it" in done.output


def test_simulate_sweep_writes_file_and_page(tmp_path):
    path = tmp_path / "sweep.json"
    done = simulate_command(
        *("--sweep", "--network", "lenet5:8", "--ranks", "2,4", "--rate", "1Gbit/s, 10Gbit/s"),
        *("--plan", "int4", "--engine", "ddp,overlap", "--json", str(path)),
    )
    assert done.exit_code == 0
    assert "Which plan wins where" in done.output
    assert len(SweepResult.from_json(path.read_text()).points) == 16
    assert path.with_suffix(".html").is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--network", "resnet51"), "resnet51"),
        (("--network", "resnet50:many"), "batch size='many' is not a whole number"),
        (("--network", "resnet50:" + "9" * 5000), "is not a whole number of up to 18 digits"),
        (("--network", f"resnet50:{10**15}"), "between 1 and 1073741824"),
        (("--ranks", "two"), "--ranks='two' is not a whole number"),
        (("--ranks", ""), "--ranks='' is not a whole number"),
        (("--ranks", "99999999999"), "Grid.ranks=99999999999 is not a whole number between 2 and"),
        (("--ranks", "2,4"), "several values need --sweep"),
        (("--plan", "int4", "--plan", "int8"), "several values need --sweep"),
        (("--rate", "fast"), "rate='fast' is not a rate"),
        (("--engine", "horovod"), "Grid.engines='horovod'"),
        (("--sweep", "--trace", "x.json"), "--trace is of one step"),
        (("--device", "b300"), "b300"),
        (("--dtype", "float8"), "float8"),
    ],
)
def test_simulate_refuses_in_one_line(args, message):
    done = simulate_command(*args)
    assert done.exit_code in {1, 2}
    assert message in done.output
    assert done.output.count("\n") == 1


def test_simulate_says_before_the_work_what_drawing_needs(monkeypatch):
    monkeypatch.setattr("gradwire.doctor.missing_extras", lambda: ["matplotlib"])
    done = simulate_command("--sweep")
    assert done.exit_code == 1
    assert "pages need matplotlib: pip install 'gradwire[demo]'" in done.output


def test_simulate_takes_the_measured_link_unless_told_otherwise(tmp_path):
    path = tmp_path / "hardware.json"
    path.write_text(replace(HARDWARE, between=LinkSpeed(0.0, 1e6)).to_json())
    args = ("--network", "accel", "--plan", "none", "--hardware", str(path))
    slow, fast = (
        re.search(r"^step +([0-9.]+) (m?)s$", simulate_command(*args, *rest).output, re.MULTILINE)
        for rest in ((), ("--rate", "100Gbit/s"))
    )
    assert float(slow[1]) > 10
    assert slow[2] == ""
    assert fast[2] == "m"
