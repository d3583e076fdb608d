"""How much each codec loses, and how much a plan may lose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gradwire.errors import SpecError
from gradwire.plan import Parameter
from gradwire.spec import Auto, ReducerSpec, Sparse, spec_name

NORMAL_ERRORS: Mapping[str, float] = {
    "none": 0.0,
    "fp16": 0.0003,
    "bf16": 0.0017,
    "int8": 0.0099,
    "int7": 0.020,
    "fp8": 0.027,
    "int6": 0.041,
    "fp8_e5m2": 0.053,
    "int5": 0.084,
    "int4": 0.18,
    "int3": 0.42,
    "sign": 0.61,
    "int2": 0.81,
    "int1": 2.92,
}
"""Relative error of each codec on normally distributed values, rounded up.

Source: measured with the reference kernels, default block sizes, 2^18 values;
`tests/unit/planner/test_errors.py` measures them again.
"""

MAX_ERROR = Auto().max_error
"""What a plan may lose unless told otherwise: as much as 6 bits, the fewest whose
loss curves could not be told from float32's."""

Errors = Mapping[str, Mapping[str, float]]
"""Relative errors by parameter name and short name of a codec, as measured."""


def parse_errors(text: str) -> dict[str, dict[str, float]]:
    """Read errors from JSON.

    Raises:
        SpecError: It holds something else than numbers of at least 0 by parameter and codec.

    Example:
        >>> parse_errors('{"fc.weight": {"int4": 0.2}}')
        {'fc.weight': {'int4': 0.2}}
    """
    try:
        data: dict[str, dict[str, float]] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError("errors", text[:40], f"JSON: {error}") from None
    is_table = isinstance(data, dict) and all(isinstance(own, dict) for own in data.values())
    values = [v for own in data.values() for v in own.values()] if is_table else []
    if not is_table or not all(isinstance(v, (int, float)) and v >= 0 for v in values):
        allowed = "relative errors of at least 0, by parameter and codec"
        raise SpecError("errors", text[:40], allowed)
    return data


def relative_error(reducer: ReducerSpec, parameters: Sequence[Parameter], errors: Errors) -> float:
    """Return the relative error of a reducer on these parameters.

    The root mean square over parameters, each counted by its number of values:
    as measured on their own gradients, else as on normally distributed ones. A
    sparse codec loses what it does not send; low rank, unmeasured, loses all.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> from gradwire.workload import parameter
        >>> weight = parameter("w", (10, 10))
        >>> relative_error(parse_reducer("int4"), [weight], {"w": {"int4": 0.2}})
        0.2
    """
    name = spec_name(reducer)
    codec = getattr(reducer, "codec", None)
    unsent = (1 - codec.density) ** 0.5 if isinstance(codec, Sparse) else 1.0
    expected = NORMAL_ERRORS.get(name, unsent)
    total = square = 0.0
    for p in parameters:
        own = errors.get(p.name, {}).get(name, expected)
        total += p.entry.numel
        square += p.entry.numel * own**2
    return (square / total) ** 0.5 if total else 0.0
