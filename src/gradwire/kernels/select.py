"""Which back end runs an op on which device, and why another one does not.

The environment variable `GRADWIRE_BACKEND` is read once, at import: `auto`
(the default) takes the native kernels for the CPU and Triton's for CUDA devices
where they can run, `native` or `triton` insists on them, `reference` leaves
both aside.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import BackendError, SpecError
from gradwire.hardware import Line
from gradwire.kernels import (
    cpu,
    cuda,
    forms,
    ops,
    reference,
    reference_float,
    reference_planes,
    reference_products,
    reference_rotated,
    reference_shared,
    reference_sparse,
)

BACKENDS = ("auto", "native", "triton", "reference")

_MODULES = {
    "float": reference_float,
    "mixed": reference_planes,
    "orthonormal": reference_products,
    "planes": reference_planes,
    "rotated": reference_rotated,
    "shared": reference_shared,
    "sparse": reference_sparse,
    "statistics": reference_products,
    "thin": reference_products,
    "transposed": reference_products,
}

REFERENCE = {
    name: getattr(_MODULES.get(name.partition("_")[0], reference), name) for name in ops.names()
}
"""The reference kernel of each op."""


_PRODUCTS = "sums and products are left to torch and its matrix library"
_NO_KERNEL = {
    ("native", "sparse_topk_encode"): "exact selection is left to torch.topk",
    ("native", "statistics"): _PRODUCTS,
    ("native", "thin_product"): _PRODUCTS,
    ("native", "transposed_product"): _PRODUCTS,
    ("native", "orthonormal"): _PRODUCTS,
    ("triton", "sparse_topk_encode"): "exact selection is left to torch.topk",
}


def no_kernel(backend: str, op: str) -> str:
    """Return why an op goes to the reference where its device's own back end can run.

    Example:
        >>> no_kernel("triton", "shared_sum")
        'it has no triton kernel'
    """
    return _NO_KERNEL.get((backend, op), f"it has no {backend} kernel")


@dataclass(frozen=True, slots=True)
class Choice:
    """The back end of one op on one kind of device.

    Attributes:
        op: Name of the op.
        backend: `"native"` (CPU), `"triton"` (CUDA) or `"reference"`.
        reason: Why the device's own kernel is not used, or None where it is.
    """

    op: str
    backend: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What `gradwire doctor` says about kernels.

    Attributes:
        requested: Value of `GRADWIRE_BACKEND`.
        isa: Instruction set of the native kernels, or None without them.
        choices: One for each op, on the CPU.
        cuda_choices: One for each op, on CUDA devices.
    """

    requested: str
    isa: str | None
    choices: tuple[Choice, ...]
    cuda_choices: tuple[Choice, ...]


def choose(
    requested: str,
    missing: str | None,
    backend: str = "native",
    kernels: Collection[str] = cpu.KERNELS,
) -> tuple[Choice, ...]:
    """Choose a back end for each op on one kind of device.

    Args:
        requested: One of `BACKENDS`.
        missing: Why the device's own back end cannot run, or None.
        backend: The device's own back end: `native` or `triton`.
        kernels: Ops for which it has a kernel.

    Raises:
        SpecError: No such back end.
        BackendError: The back end was asked for by name and cannot run.

    Example:
        >>> choose("reference", None)[0]
        Choice(op='quantize_encode', backend='reference', reason='GRADWIRE_BACKEND=reference')
        >>> choose("auto", None, "triton", cuda.OPS)[0]
        Choice(op='quantize_encode', backend='triton', reason=None)
    """
    if requested not in BACKENDS:
        raise SpecError("GRADWIRE_BACKEND", requested, "one of: " + ", ".join(BACKENDS))
    if requested == backend and missing:
        raise BackendError("every op", backend, missing)
    reason = "GRADWIRE_BACKEND=reference" if requested == "reference" else missing
    return tuple(
        Choice(name, "reference", reason or no_kernel(backend, name))
        if reason or name not in kernels
        else Choice(name, backend, None)
        for name in ops.names()
    )


_REQUESTED = os.environ.get("GRADWIRE_BACKEND", "auto")
_CHOICES = choose(_REQUESTED, cpu.missing())


@functools.cache
def cuda_choices() -> tuple[Choice, ...]:
    """Choose a back end for each op on CUDA devices.

    Asked when the first op meets one: looking for devices starts the driver.

    Raises:
        BackendError: `triton` was asked for and cannot run.
    """
    return choose(_REQUESTED, cuda.missing(), "triton", cuda.OPS)


def report() -> Report:
    """Return which back end serves each op in this process.

    Example:
        >>> len(report().choices) == len(ops.names())
        True
    """
    native = any(choice.backend == "native" for choice in _CHOICES)
    isa = cpu.ISA_LEVELS[cpu.isa()] if native else None
    return Report(_REQUESTED, isa, _CHOICES, cuda_choices())


def use_faster_forms(lines: Mapping[str, Line]) -> dict[str, forms.Form]:
    """Let each kernel that exists twice run in the form that was measured as faster.

    Forms sum in different orders, so all ranks have to be given the same lines.

    Args:
        lines: Measured kernels of `Hardware`.

    Example:
        >>> use_faster_forms({"hadamard, plain": Line(0, 1e-9), "hadamard, matrix": Line(0, 2e-9)})
        {'hadamard': 'plain'}
    """
    chosen = forms.faster(lines)
    forms.use(chosen)
    return chosen


def _register() -> None:
    for choice in _CHOICES:
        ops.implement(choice.op, "CompositeExplicitAutograd", REFERENCE[choice.op])
        if choice.backend == "native":
            ops.implement(choice.op, "CPU", cpu.KERNELS[choice.op])
        if choice.op in cuda.OPS:
            ops.implement(choice.op, "CUDA", _on_cuda(choice.op))


def _on_cuda(name: str) -> Callable[..., Tensor | None]:
    """Return a kernel that settles which back end it is when it first runs."""

    @functools.cache
    def kernel() -> Callable[..., Tensor | None]:
        chosen = {choice.op: choice.backend for choice in cuda_choices()}
        return cuda.kernels()[name] if chosen[name] == "triton" else REFERENCE[name]

    def run(*args: Any) -> Tensor | None:  # noqa: ANN401 - the op's own arguments
        first = args[0][0] if isinstance(args[0], list) else args[0]
        with torch.cuda.device(first.device):
            return kernel()(*args)

    return run


_register()
