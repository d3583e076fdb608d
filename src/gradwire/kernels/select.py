"""Which back end runs an op on the CPU, and why another one does not.

The environment variable `GRADWIRE_BACKEND` is read once, at import: `auto`
(the default) takes the native kernels where they can run, `native` insists on
them, `reference` leaves them aside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gradwire.errors import BackendError, SpecError
from gradwire.kernels import (
    cpu,
    ops,
    reference,
    reference_float,
    reference_planes,
    reference_sparse,
)

BACKENDS = ("auto", "native", "reference")

_MODULES = {
    "float": reference_float,
    "mixed": reference_planes,
    "planes": reference_planes,
    "sparse": reference_sparse,
}

REFERENCE = {
    name: getattr(_MODULES.get(name.partition("_")[0], reference), name) for name in ops.names()
}
"""The reference kernel of each op."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The back end of one op on the CPU.

    Attributes:
        op: Name of the op.
        backend: `"native"` or `"reference"`.
        reason: Why the native kernel is not used, or None where it is.
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
        choices: One for each op.
    """

    requested: str
    isa: str | None
    choices: tuple[Choice, ...]


def choose(requested: str, missing: str | None) -> tuple[Choice, ...]:
    """Choose a back end for each op.

    Args:
        requested: One of `BACKENDS`.
        missing: Why there is no native library, or None.

    Raises:
        SpecError: No such back end.
        BackendError: `native` was asked for and cannot run.

    Example:
        >>> choose("reference", None)[0]
        Choice(op='quantize_encode', backend='reference', reason='GRADWIRE_BACKEND=reference')
    """
    if requested not in BACKENDS:
        raise SpecError("GRADWIRE_BACKEND", requested, "one of: " + ", ".join(BACKENDS))
    if requested == "native" and missing:
        raise BackendError("every op", "native", missing)
    reason = "GRADWIRE_BACKEND=reference" if requested == "reference" else missing
    return tuple(
        Choice(name, "reference", reason or "exact selection is left to torch.topk")
        if reason or name not in cpu.KERNELS
        else Choice(name, "native", None)
        for name in ops.names()
    )


_REQUESTED = os.environ.get("GRADWIRE_BACKEND", "auto")
_CHOICES = choose(_REQUESTED, cpu.missing())


def report() -> Report:
    """Return which back end serves each op in this process.

    Example:
        >>> len(report().choices) == len(ops.names())
        True
    """
    native = any(choice.backend == "native" for choice in _CHOICES)
    return Report(_REQUESTED, cpu.ISA_LEVELS[cpu.isa()] if native else None, _CHOICES)


def _register() -> None:
    for choice in _CHOICES:
        ops.implement(choice.op, "CompositeExplicitAutograd", REFERENCE[choice.op])
        if choice.backend == "native":
            ops.implement(choice.op, "CPU", cpu.KERNELS[choice.op])


_register()
