"""What can run on this machine, and the reason for each thing that cannot."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

EXTRAS = {"jinja2": "jinja2", "matplotlib": "matplotlib", "scikit-learn": "sklearn"}
OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that can run here or cannot.

    Attributes:
        area: What it belongs to.
        name: What it is.
        is_available: Whether it can run.
        detail: Its version or place; where it cannot run, why.
        is_required: Whether nothing works without it.

    Example:
        >>> Check("python", "Python", True, "3.13.0", is_required=True).detail
        '3.13.0'
    """

    area: str
    name: str
    is_available: bool
    detail: str
    is_required: bool = False


def examine() -> list[Check]:
    """Look at everything gradwire can use here.

    Returns:
        One check a thing, by area. Nothing is changed or started.
    """
    return [_python(), *_torch(), *_extras(), *_lab()]


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        found += ", older than 3.11"
    return Check(
        "base", "Python", sys.version_info >= OLDEST_PYTHON, found, is_required=True
    )


def _torch() -> list[Check]:
    try:
        import torch  # noqa: PLC0415 - the command line starts without it
        import torch.distributed as dist  # noqa: PLC0415
    except (ImportError, OSError) as error:
        return [Check("base", "torch", False, f"does not load: {error}", is_required=True)]
    has_gloo = dist.is_available() and dist.is_gloo_available()
    has_nccl = dist.is_available() and dist.is_nccl_available()
    has_cuda = torch.cuda.is_available()
    return [
        Check("base", "torch", True, torch.__version__, is_required=True),
        Check(
            "base",
            "Gloo",
            has_gloo,
            "exchange between CPUs" if has_gloo else "this build of torch has none",
            is_required=True,
        ),
        Check(
            "gpu",
            "CUDA",
            has_cuda,
            torch.cuda.get_device_name() if has_cuda else _why_no_cuda(torch.version.cuda),
        ),
        Check(
            "gpu",
            "NCCL",
            has_nccl and has_cuda,
            "exchange between GPUs"
            if has_nccl and has_cuda
            else ("needs a CUDA device" if has_nccl else "this build of torch has none"),
        ),
    ]


def _why_no_cuda(built_for: str | None) -> str:
    return "this build of torch has none" if built_for is None else "no device found"


def _extras() -> list[Check]:
    checks = []
    for package, module in EXTRAS.items():
        is_there = importlib.util.find_spec(module) is not None
        detail = "not installed: pip install 'gradwire[demo]'"
        if is_there:
            try:
                detail = version(package)
            except PackageNotFoundError:
                detail = "version unknown"
        checks.append(Check("demo", package, is_there, detail))
    return checks


def _lab() -> list[Check]:
    is_linux = sys.platform == "linux"
    is_root = is_linux and os.geteuid() == 0
    why = "not Linux" if not is_linux else "run as root to emulate links in network namespaces"
    checks = [Check("lab", "root", is_root, "yes" if is_root else why)]
    for tool in ("ip", "tc"):
        path = shutil.which(tool)
        checks.append(Check("lab", tool, path is not None, path or "install iproute2"))
    return checks
