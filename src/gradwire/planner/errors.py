"""What each codec defers or loses, and what that costs training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from gradwire.errors import SpecError
from gradwire.plan import Parameter, Plan
from gradwire.planner.harm import harm
from gradwire.spec import Hierarchical, ReducerSpec, Sparse, TwoPhase, codec_name, spec_name

NORMAL_ERRORS: Mapping[str, float] = {
    "none": 0.0,
    "fp16": 0.0003,
    "bf16": 0.0017,
    "int8": 0.0099,
    "int7": 0.020,
    "fp8": 0.027,
    "nearest6": 0.030,
    "int6": 0.041,
    "fp8_e5m2": 0.053,
    "nearest5": 0.061,
    "int5": 0.084,
    "nearest4": 0.13,
    "int4": 0.18,
    "nearest3": 0.30,
    "int3": 0.42,
    "int2": 0.79,
    "sign": 0.80,
    "int1": 2.92,
}
"""Relative error of each codec on normally distributed values, rounded up; with feedback
where the codec has it: what a step leaves in the residual, over what was owed.

Source: measured with the reference kernels, default block sizes, 2^18 values;
`tests/unit/planner/test_errors.py` measures them again.
"""

RMS = "rms"
"""Beside the errors of a parameter: root mean square of its gradient's values, from which
follows how much its errors count."""

Errors = Mapping[str, Mapping[str, float]]
"""Relative errors by parameter name and short name of a codec, as measured, and `RMS`."""


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


class Losses:
    """What reducers lose of a model's gradients, and how much longer training takes.

    Args:
        errors: As measured; what is missing loses as normally distributed values do.
        parameters: All of the model. Each counts by its squared norm; where that of one was
            not measured, all count by their number of values.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> from gradwire.workload import parameter
        >>> weight = parameter("w", (10, 10))
        >>> losses = Losses({"w": {"int4": 0.2}}, [weight])
        >>> losses.error(parse_reducer("int4@broadcast"), [weight])
        0.2
        >>> losses.harm(parse_reducer("none"), [weight])
        0.0
    """

    def __init__(self, errors: Errors, parameters: Sequence[Parameter]) -> None:
        self._errors, self._parameters = errors, parameters
        known = all(errors.get(p.name, {}).get(RMS) is not None for p in parameters)
        self._squares = {
            p.name: p.entry.numel * (errors[p.name][RMS] ** 2 if known else 1.0) for p in parameters
        }
        self._total = sum(self._squares.values()) or 1.0

    def error(self, reducer: ReducerSpec, parameters: Sequence[Parameter]) -> float:
        """Return the relative error of a reducer on these parameters."""
        square = sum(self._squares[p.name] for p in parameters)
        lost = sum(self._squares[p.name] * self._lost(reducer, p.name) for p in parameters)
        return (lost / square) ** 0.5 if square else 0.0

    def harm(self, reducer: ReducerSpec, parameters: Sequence[Parameter]) -> float:
        """Return the share by which training takes longer because of these parameters."""
        inner = reducer.inner if isinstance(reducer, Hierarchical) else reducer
        feedback = getattr(inner, "feedback", False)
        found = (
            self._squares[p.name] * harm(self._lost(inner, p.name), feedback=feedback)
            for p in parameters
        )
        return sum(found) / self._total

    def of_plan(self, plan: Plan, world_size: int) -> float:
        """Return the harm of a plan."""
        assigned = plan.assign(self._parameters, world_size)
        return sum(self.harm(assigned[p.name].reducer, [p]) for p in self._parameters)

    def _lost(self, reducer: ReducerSpec, name: str) -> float:
        """Return the squared relative error on one parameter, of both roundings of two phases."""
        own = self._errors.get(name, {})
        return sum(own.get(codec, normal) ** 2 for codec, normal in _encodings(reducer))


def _encodings(reducer: ReducerSpec) -> Iterator[tuple[str, float]]:
    """Yield the codecs that values pass on their way to the mean, and what each usually loses.

    A sparse codec loses what it does not send. Low rank loses all: how much it defers is not
    seen from the gradients of a few steps.
    """
    inner = reducer.inner if isinstance(reducer, Hierarchical) else reducer
    codec = getattr(inner, "codec", None)
    unsent = (1 - codec.density) ** 0.5 if isinstance(codec, Sparse) else 1.0
    yield spec_name(inner), NORMAL_ERRORS.get(spec_name(inner), unsent)
    if isinstance(inner, TwoPhase):
        name = codec_name(inner.mean_codec)
        yield name, NORMAL_ERRORS.get(name, 1.0)
