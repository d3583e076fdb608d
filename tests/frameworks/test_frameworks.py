"""Each framework's example: two real processes, and what its `.out` file says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NEEDS = {
    "with_accelerate": ("accelerate", TORCHRUN),
    "with_backend": ("lightning", TORCHRUN),
    "with_fabric": ("lightning", TORCHRUN),
    "with_lightning": ("lightning", TORCHRUN),
    "with_ray": ("ray", ()),  # starts its workers itself
    "with_torchft": ("torchft", ()),  # as above
    "with_transformers": ("transformers", TORCHRUN),
}


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NEEDS)
def test_example_prints_its_stored_output(name, tmp_path):
    package, launcher = NEEDS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path = FOLDER / f"{name}.py"
    with tempfile.TemporaryDirectory(prefix="gw-") as short:  # Ray's sockets lie in it
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": short}
        environment.pop("GRADWIRE_PLAN", None)
        done = subprocess.run(
            [sys.executable, *launcher, str(path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == path.with_suffix(".out").read_text(encoding="utf-8"), done.stderr
