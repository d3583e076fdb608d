"""What can run on this machine, and the reason for each thing that cannot."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version

from gradwire.errors import GradwireError
from gradwire.lab.latency import PROGRAM
from gradwire.version import installed_version

EXTRAS = {"jinja2": "jinja2", "matplotlib": "matplotlib", "scikit-learn": "sklearn"}
"""Packages of the extra `demo`, and the modules they bring."""

_MATRIX_UNITS = ("bf16", "int8", "fp8")

_NOT_BUILT = "this build of torch has none"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can run here or cannot.

    Attributes:
        area: What it belongs to.
        name: What it is.
        detail: Its version, place or use.
        reason: Why it cannot run here; None if it can.
        is_required: Whether nothing works without it.

    Example:
        >>> Check("base", "Python", "3.13.0").is_available
        True
    """

    area: str
    name: str
    detail: str
    reason: str | None = None
    is_required: bool = False

    @property
    def is_available(self) -> bool:
        """Whether it can run here."""
        return self.reason is None


def examine() -> list[Check]:
    """Look at everything gradwire can use here.

    Returns:
        One check a thing, by area. Nothing is changed or started.
    """
    base = [
        Check("base", "gradwire", installed_version()),
        Check("base", "Python", platform.python_version()),
    ]
    torch = _torch()
    kernels = [*_kernels(), *_device()] if torch[0].is_available else []
    return [*base, *torch, *kernels, *_extras(), *_lab()]


def _torch() -> list[Check]:
    try:
        import torch  # noqa: PLC0415 - the command line starts without it
        import torch.distributed as dist  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return [Check("base", "torch", "", f"does not load: {error}", is_required=True)]
    has_gloo = dist.is_available() and dist.is_gloo_available()
    has_nccl = dist.is_available() and dist.is_nccl_available()
    cuda = None if torch.cuda.is_available() else "no device found"
    if torch.version.cuda is None:
        cuda = _NOT_BUILT
    name = torch.cuda.get_device_name() if cuda is None else ""
    gloo = None if has_gloo else _NOT_BUILT
    return [
        Check("base", "torch", torch.__version__, is_required=True),
        Check("base", "Gloo", "exchange between CPUs", gloo, is_required=True),
        Check("gpu", "CUDA", name, cuda),
        Check("gpu", "NCCL", "exchange between GPUs", cuda if has_nccl else _NOT_BUILT),
    ]


def _kernels() -> list[Check]:
    try:
        from gradwire.kernels import select  # noqa: PLC0415 - loads torch
    except GradwireError as error:
        return [Check("kernels", "native kernels", "", str(error))]
    report = select.report()
    by_reason: dict[str | None, list[str]] = {}
    for choice in report.choices:
        by_reason.setdefault(choice.reason, []).append(choice.op)
    return [
        Check(
            "kernels",
            "native kernels" if reason is None else ", ".join(names),
            f"{report.isa}: {', '.join(names)}",
            reason and f"the reference runs instead: {reason}",
        )
        for reason, names in by_reason.items()
    ]


def _device() -> list[Check]:
    """Say what multiplies matrices here, and whether this machine was measured."""
    from gradwire.measure import cache, device  # noqa: PLC0415 - loads torch

    here = device.this_device()
    found = device.identify(here)
    missing = [unit for unit in _MATRIX_UNITS if unit not in found.capabilities]
    units = [unit for unit in found.capabilities if unit in _MATRIX_UNITS]
    checks = [Check("device", found.kind, f"{found.name}: {', '.join(found.capabilities)}")]
    checks += [Check("matrix units", unit, found.name) for unit in units]
    reason = f"{found.name} has none"
    checks += [Check("matrix units", unit, "", reason) for unit in missing]
    machine = cache.Machine.here()
    kept = cache.load(machine).reason
    advice = kept and f"{kept}; run: gradwire measure"
    return [*checks, Check("device", "measured speeds", str(cache.path_of(machine)), advice)]


def missing_extras() -> list[str]:
    """Return the packages of the extra `demo` that are not installed."""
    return [p for p, module in EXTRAS.items() if importlib.util.find_spec(module) is None]


def _extras() -> list[Check]:
    reason, missing = "not installed: pip install 'gradwire[demo]'", missing_extras()
    return [
        Check("demo", p, "", reason) if p in missing else Check("demo", p, version(p))
        for p in EXTRAS
    ]


def _lab() -> list[Check]:
    is_linux = sys.platform == "linux"
    root = None if is_linux and os.geteuid() == 0 else "needs root, for network namespaces"
    checks = [Check("lab", "root", "network namespaces", root if is_linux else "needs Linux")]
    for tool in ("ip", "tc"):
        path = shutil.which(tool)
        checks.append(Check("lab", tool, path or "", None if path else "install iproute2"))
    delay_line = None if PROGRAM.exists() else "was not built: needs Linux and a C++ compiler"
    return [*checks, Check("lab", "delay line", "latency without netem", delay_line)]
