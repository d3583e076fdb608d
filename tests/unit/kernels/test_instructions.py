"""Instructions per value of the AVX2 kernels: exact counts, whatever else the machine does."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gradwire.kernels import cpu

SOURCE = Path(__file__).with_name("instructions.cpp")
NUMEL = 1 << 18
COMPILER = shutil.which("c++") or shutil.which("g++")
GATES = {
    "feedback4": 3.8,
    "feedback8": 3.9,
    "feedback6": 3.9,
    "feedback3": 3.9,
    "feedback2": 3.9,
    "plain4": 2.4,
    "decode4": 1.0,
    "decode8": 1.1,
    "decode6": 1.1,
    "decode3": 1.1,
    "decode2": 1.1,
    "sign_encode": 2.0,
    "sign_decode": 0.75,
    "e4m3_encode": 2.9,
    "e4m3_accumulate": 2.1,
    "hadamard": 3.3,
    "shared_encode": 3.9,
    "shared_sum": 0.45,
}


def missing() -> str | None:
    if cpu.missing() is not None:
        return f"native: {cpu.missing()}"
    if cpu.best_isa() < 1:
        return "this processor has no AVX2"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    return None if COMPILER else "no C++ compiler"


pytestmark = pytest.mark.skipif(missing() is not None, reason=f"instructions: {missing()}")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("instructions") / "instructions"
    command = [COMPILER, "-O2", "-std=c++17", str(SOURCE), "-ldl", "-o", str(built)]
    subprocess.run(command, check=True)
    return built


def count(program: Path, kernel: str, calls: int) -> int:
    command = [
        *("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"),
        *(str(program), str(cpu.PATH), kernel, str(NUMEL), str(calls)),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if "Collected" in line)
    return int(line.split()[-1])


@pytest.mark.parametrize("kernel", GATES)
def test_kernel_stays_within_its_instructions(program: Path, kernel: str) -> None:
    per_value = (count(program, kernel, 2) - count(program, kernel, 1)) / NUMEL
    assert per_value <= GATES[kernel]
