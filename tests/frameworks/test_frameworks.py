"""Each framework's example: two real processes, and what its `.out` file says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from scripts import preload, run_script

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
ON_RANKS = {
    "with_accelerate": "accelerate",
    "with_backend": "lightning",
    "with_fabric": "lightning",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
}
STARTS_RANKS_ITSELF = {"with_ray": "ray", "with_torchft": "torchft"}

QUICK_RAY = {  # each of its actors is a process that imports Ray
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
}


def _need(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module", autouse=True)
def _imported_once():
    preload("accelerate", "lightning.pytorch", "transformers.trainer", "gradwire.integrations.ddp")


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*ON_RANKS, *STARTS_RANKS_ITSELF}


@pytest.mark.timeout(300)  # the first one imports for all
@pytest.mark.parametrize("name", ON_RANKS)
def test_example_prints_its_stored_output(name, tmp_path):
    _need(ON_RANKS[name])
    path = FOLDER / f"{name}.py"
    assert run_script(path, tmp_path) == path.with_suffix(".out").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STARTS_RANKS_ITSELF)
def test_example_that_starts_its_ranks_prints_its_stored_output(name, tmp_path):
    _need(STARTS_RANKS_ITSELF[name])
    path = FOLDER / f"{name}.py"
    with tempfile.TemporaryDirectory(prefix="gw-") as short:  # Ray's sockets lie in it
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env={**os.environ, **QUICK_RAY, "OMP_NUM_THREADS": "1", "TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == path.with_suffix(".out").read_text(encoding="utf-8"), done.stderr
