from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.bench import lock
from gradwire.report.results import BenchResult

TINY = ["--models", "sleep:0.3:2:4:3", "--ranks", "2", "--rates", "1Gbit/s", "--rounds", "2"]
TINY += ["--steps", "2"]
HOOKS = ["none", "none@0.2", "fp16@0.2", "bf16@0.2", "powersgd1@1000", "powersgd2@1000"]
PLANS = ["gradwire:int4@0.2", "gradwire:topk:0.01", "gradwire:low_rank@0.2", "overlap:int4"]


def bench(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    with start(*args, folder=folder) as running:
        output, errors = running.communicate(timeout=100)
    return subprocess.CompletedProcess([], running.returncode, output, errors)


def start(*args: str, folder: Path) -> subprocess.Popen[str]:
    # A relative search path leads nowhere in another folder; the machine's lock
    # lies in the folder of temporary files.
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "gradwire", "bench", *TINY, *args],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read(path: Path) -> BenchResult:
    return BenchResult.from_json(path.read_text())


def test_bench_measures_all_modes_side_by_side_and_resumes(tmp_path: Path):
    names = ["nosync", *HOOKS, "powersgd_batched", *PLANS]
    args = ["--out", "r.json", "--modes", ",".join(names)]
    done = bench(*args, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first = read(tmp_path / "r.json")
    (cell,) = first.cells
    modes = {m.mode: m for m in cell.modes}
    assert list(modes) == names
    refused = modes.pop("powersgd_batched")
    assert refused.reason.startswith("AssertionError in _orthogonalize")
    assert not refused.rounds
    assert all([len(r.steps) for r in m.rounds] == [2, 2] for m in modes.values())
    assert modes.pop("nosync").digests == ()
    for name, mode in modes.items():
        assert len(mode.digests) == 2, name
        assert mode.is_replicated, name
    assert len({m.digests[0] for m in modes.values()}) > 1, "the digests tell modes apart"
    sent = {name: mode.rounds[1].sent_bytes for name, mode in modes.items()}
    numel = cell.num_parameters
    assert sent["none"] == sent["none@0.2"] == 4 * numel
    assert sent["fp16@0.2"] == sent["bf16@0.2"] == 2 * numel
    assert sent["powersgd1@1000"] < sent["powersgd2@1000"] < 0.1 * numel
    assert 0.5 * numel < sent["gradwire:int4@0.2"] < 0.6 * numel

    again = bench(*args, "--resume", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "cells to measure" not in again.stdout
    assert read(tmp_path / "r.json") == first
    more = bench(*args, "--models", "sleep:0.01:1:1:1", "--resume", folder=tmp_path)
    assert "1 cells to measure" in more.stdout
    assert [c.model for c in read(tmp_path / "r.json").cells] == [cell.model, "sleep:0.01:1:1:1"]


def test_bench_learns_on_real_data(tmp_path: Path):
    args = ["--models", "digits", "--rates", "unlimited", "--modes", "none,gradwire:int4"]
    done = bench(*args, "--out", "r.json", "--steps", "12", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (cell,) = read(tmp_path / "r.json").cells
    assert cell.network == "none"
    for mode in cell.modes:
        early, late = mode.validations
        assert late.loss < early.loss
        assert len(mode.elapsed_s) == 2
        assert mode.elapsed_s[0] < mode.elapsed_s[1]


def test_bench_interrupted_leaves_a_complete_file_and_no_process(tmp_path: Path):
    args = ["--rates", "1Gbit/s,1Mbit/s", "--modes", "none", "--steps", "50", "--round-time", "99s"]
    path = tmp_path / "r.json"
    with start(*args, "--out", "r.json", folder=tmp_path) as running:
        deadline = time.monotonic() + 60
        while not path.exists() or not children(running.pid):
            assert time.monotonic() < deadline, "the first cell does not end"
            assert running.poll() is None
            time.sleep(0.05)
        workers = children(running.pid)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.strip()) == (130, "gradwire: interrupted")
    assert len(read(path).cells) == 1
    # One that was just being started ends by itself, as its standard input is closed.
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline, "workers outlive the bench"
        time.sleep(0.05)
    assert sorted(p.name for p in tmp_path.glob("*.json*")) == ["r.json"]


def is_running(process_id: int) -> bool:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children(process_id: int) -> list[int]:
    listing = Path(f"/proc/{process_id}/task/{process_id}/children")
    return [int(pid) for pid in listing.read_text().split()] if listing.exists() else []


def test_bench_refuses_to_run_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    with lock.only_bench():
        done = bench("--modes", "none", folder=tmp_path)
    assert done.returncode == 1
    assert f"another bench runs on this machine (process {os.getpid()})" in done.stderr
    assert not list(tmp_path.glob("reports/*.json"))
