"""The many-nodes example: over hosts with unequal lines, and with ranks that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.hardware import Hardware
from gradwire.lab.netns import Network, missing
from gradwire.plan import load_plan

FOLDER = Path(__file__).parents[2] / "examples" / "many_nodes"
REASON = missing()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.timeout(300)
def test_launch_script_measures_plans_and_trains_over_two_hosts(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADWIRE_LAB_NICE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Each host has a folder of its own: only host 0 has the plan.
    command = ["sh", "-c", 'mkdir "$0/$RANK" && cd "$0/$RANK" && NODE=$RANK exec sh "$1"']
    environment = {"NODES": "2", "RANKS_PER_NODE": "1", "STEPS": "4", "PYTHON": sys.executable}
    with Network(2, [12.5e6, 2.5e6], verify=False) as network:
        script = str(FOLDER / "launch.sh")
        outputs = network.run(
            [*command, str(tmp_path), script], environment=environment, timeout_s=280
        )
    assert "2 ranks, steps 0 to 4: 4 in all\nreplicas equal: True, loss fell: True" in outputs[0]
    assert "in all" not in outputs[1]
    assert {p.name for p in (tmp_path / "1").iterdir()} == set()
    hardware = Hardware.from_json((tmp_path / "0" / "machine.json").read_text())
    assert hardware.between.ranks == 2
    assert load_plan(tmp_path / "0" / "plan.json").rules  # 20 Mbit/s: compression pays


def _launch(folder: Path, ranks: int, *arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "--max-restarts", "1"),
            *(str(FOLDER / "train.py"), "--folder", str(folder), *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.timeout(300)
def test_crashed_ranks_restart_and_another_number_of_ranks_resumes(tmp_path):
    out, errors = _launch(tmp_path, 2, "--steps", "8", "--crash-at", "6")
    assert "failed (exitcode: 1) local_rank: 1" in errors
    assert "2 ranks, steps 4 to 8: 8 in all\nreplicas equal: True, loss fell: True" in out
    out, errors = _launch(tmp_path, 3, "--steps", "12")
    assert "3 ranks, steps 8 to 12: 12 in all\nreplicas equal: True, loss fell: True" in out
    assert "it holds rank 0 of 2, this is rank 2" in errors  # the others scale theirs
    assert errors.count("StateWarning") == 1
