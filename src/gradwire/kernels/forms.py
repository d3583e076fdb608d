"""Which form kernels take that exist twice: plain fused code, or matrix products.

By roofline matrix units win only where arithmetic binds, so the plain form
is usual, and a measurement decides (`gradwire.measure.kernels.measure_forms`).
Except for `prefix_sum`, whose sums are whole numbers, the forms sum in
different orders: all ranks have to take the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

from gradwire.errors import SpecError
from gradwire.hardware import Line

Form = Literal["plain", "matrix"]
"""How a kernel adds: as plain code, or as products on matrix units (or in MKL)."""

FORMS: tuple[Form, ...] = get_args(Form)

USUAL: Mapping[str, Form] = {
    "hadamard": "plain",
    "prefix_sum": "plain",
    "statistics": "plain",
    "low_rank": "matrix",
}
"""What exists in both forms, and which one runs unless another was chosen."""

OPS: Mapping[str, tuple[str, ...]] = {
    "hadamard": ("hadamard", "rotated_encode", "rotated_decode"),
    "prefix_sum": ("sparse_encode",),
    "statistics": ("statistics",),
    "low_rank": ("thin_product", "transposed_product", "orthonormal"),
}
"""The ops that a step is part of. On a CPU only transforms exist in both forms."""

_TYPICAL_BYTES = 4 << 20
_chosen: dict[str, Form] = dict(USUAL)


def form_of(step: str) -> Form:
    """Return the form that runs.

    Example:
        >>> form_of("hadamard")
        'plain'
    """
    return _chosen[step]


def use(chosen: Mapping[str, Form]) -> None:
    """Let steps run in other forms from now on; on all ranks alike.

    Raises:
        SpecError: No such step or form.
    """
    for step, form in chosen.items():
        if step not in USUAL:
            raise SpecError("step", step, "one of: " + ", ".join(USUAL))
        if form not in FORMS:
            raise SpecError("form", form, "one of: " + ", ".join(FORMS))
    _chosen.update(chosen)


@contextmanager
def using(step: str, form: Form) -> Iterator[None]:
    """Let a step run in one form for a while.

    Example:
        >>> with using("hadamard", "matrix"):
        ...     form_of("hadamard")
        'matrix'
    """
    before = _chosen[step]
    use({step: form})
    try:
        yield
    finally:
        use({step: before})


def line_name(step: str, form: Form) -> str:
    """Name a form's line among the measured kernels of `Hardware`.

    Example:
        >>> line_name("hadamard", "matrix")
        'hadamard, matrix'
    """
    return f"{step}, {form}"


def faster(lines: Mapping[str, Line], num_bytes: int = _TYPICAL_BYTES) -> dict[str, Form]:
    """Choose the faster form of each step that was measured in both.

    Args:
        lines: Measured kernels by name.
        num_bytes: For input of this size.

    Example:
        >>> faster({"hadamard, plain": Line(0, 1e-9), "hadamard, matrix": Line(0, 2e-9)})
        {'hadamard': 'plain'}
    """
    return {
        step: min(FORMS, key=lambda form: lines[line_name(step, form)].time_s(num_bytes))
        for step in USUAL
        if all(line_name(step, form) in lines for form in FORMS)
    }
