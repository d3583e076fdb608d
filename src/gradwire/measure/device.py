"""What this machine's processor or GPU is, and how fast it moves memory."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import torch

from gradwire.errors import BackendError
from gradwire.hardware import Device
from gradwire.kernels import select
from gradwire.measure.timing import median_s

_BUFFER_BYTES = 64 << 20
_BUDGET_S = 0.1
_LAUNCHES = 100

_CPU_UNITS = {
    "amx_bf16": "bf16",
    "avx512_bf16": "bf16",
    "amx_int8": "int8",
    "avx512_vnni": "int8",
    "avx_vnni": "int8",
    "amx_fp16": "fp16",
}
"""Flags of the processor, and what it multiplies with them in hardware.

Source: Linux, arch/x86/include/asm/cpufeatures.h.
"""

_GPU_UNITS = (((7, 0), "fp16"), ((7, 2), "int8"), ((8, 0), "bf16"), ((8, 9), "fp8"))
"""Compute capabilities from which on tensor cores multiply a type.

Source: CUDA C++ Programming Guide, table of features by compute capability.
"""


def this_device() -> torch.device:
    """Return what gradients live on here: the current GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def identify(device: torch.device) -> Device:
    """Say what a device is and has, without measuring anything.

    Raises:
        BackendError: There is no such device here.

    Example:
        >>> identify(torch.device("cpu")).kind
        'cpu'
    """
    if device.type == "cpu":
        return Device("cpu", cpu_name(), available_cores(), _cpu_capabilities())
    if device.type != "cuda" or not torch.cuda.is_available():
        raise BackendError("measure", str(device), "no such device here; cpu and cuda are known")
    found = torch.cuda.get_device_properties(device)
    version = (found.major, found.minor)
    units = tuple(unit for least, unit in _GPU_UNITS if version >= least)
    name = f"sm_{found.major}{found.minor}"
    return Device("cuda", found.name, found.multi_processor_count, (name, *units))


def measure_device(device: torch.device) -> Device:
    """Say what a device is, and measure its memory and launch cost.

    Takes under a second. `interference` is left as it is; see
    `gradwire.measure.interference`.
    """
    size = _BUFFER_BYTES // 4
    source, target = torch.ones(size, device=device), torch.zeros(size, device=device)
    tiny = torch.ones(1, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            tiny.add_(1.0)

    copy_s = median_s(lambda: target.copy_(source), device, _BUDGET_S)
    read_s = median_s(source.sum, device, _BUDGET_S)
    launch_s = median_s(launch, device, _BUDGET_S) / _LAUNCHES
    return replace(
        identify(device),
        copy_bytes_per_s=2 * _BUFFER_BYTES / copy_s,
        read_bytes_per_s=_BUFFER_BYTES / read_s,
        launch_s=launch_s,
    )


def cpu_name() -> str:
    """Return the processor's model name.

    Example:
        >>> bool(cpu_name())
        True
    """
    names = [v for k, v in _cpu_info() if k == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_capabilities() -> tuple[str, ...]:
    flags = {flag for k, v in _cpu_info() if k == "flags" for flag in v.split()}
    units = sorted({unit for flag, unit in _CPU_UNITS.items() if flag in flags})
    vectors = torch.backends.cpu.get_cpu_capability().lower()
    native = select.report().isa
    return tuple(filter(None, (vectors, native, *units)))


def _cpu_info() -> list[tuple[str, str]]:
    """Read what Linux knows of its first processor; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return []
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return [(key.strip(), value.strip()) for key, _, value in pairs]
