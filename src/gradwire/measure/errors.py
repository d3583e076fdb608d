"""How much each codec loses of a model's own gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

import gradwire.codecs
from gradwire.codecs.base import Segments
from gradwire.key import Key
from gradwire.measure.kernels import codec_of
from gradwire.measure.model import Loss, gradients_of
from gradwire.planner.errors import RMS
from gradwire.spec import CodecSpec, LowRank, ReducerSpec, codec_name

_STEPS = 8
"""After so many steps the residual of every level has grown to what it stays at; that of signs
still grows by a tenth."""


def measure_errors(
    gradients: Mapping[str, Tensor], specs: Sequence[ReducerSpec]
) -> dict[str, dict[str, float]]:
    """Return the relative error of each codec on each gradient.

    With feedback, it is what a step leaves in the residual, over what was owed: each
    gradient is sent eight times in a row. What low rank defers is not to be seen so:
    its basis fits one gradient, and the residual of others grows for hundreds of steps.

    Args:
        gradients: By parameter name, any shape.
        specs: Reducers whose codecs to try; low rank is left out.

    Returns:
        By parameter name and short name of a codec, as `select_plan` takes it.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> errors = measure_errors({"w": torch.ones(256)}, [parse_reducer("int8")])
        >>> errors["w"]["int8"] < 1e-6, errors["w"]["rms"]
        (True, 1.0)
    """
    kept = [s for s in specs if not isinstance(s, LowRank)]
    codecs = {codec_name(codec_of(s)): (codec_of(s), s.feedback) for s in kept}
    errors: dict[str, dict[str, float]] = {}
    for name, gradient in gradients.items():
        x = gradient.detach().reshape(-1).to(torch.float32).contiguous()
        rms = float(x.norm()) / max(1, x.numel()) ** 0.5
        if rms < math.inf:  # and no NaN
            errors[name] = {RMS: rms}
        if 0 < rms < math.inf:
            errors[name] |= {c: _error(spec, x, how) for c, (spec, how) in codecs.items()}
    return errors


def measure_model_errors(
    model: nn.Module, loss: Loss, specs: Sequence[ReducerSpec]
) -> dict[str, dict[str, float]]:
    """Return the relative error of each codec on each gradient of a model.

    One forward and one backward pass; the model is left as it was.

    Args:
        model: A plain or DDP model.
        loss: As `measure_workload` takes it.
        specs: Reducers whose codecs to try.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> model = nn.Linear(32, 8)
        >>> found = measure_model_errors(
        ...     model, lambda m: m(torch.ones(2, 32)).sum(), [parse_reducer("int8")]
        ... )
        >>> sorted(found)
        ['bias', 'weight']
    """
    return measure_errors(gradients_of(model, loss), specs)


def _error(spec: CodecSpec, x: Tensor, feedback: bool) -> float:  # noqa: FBT001 - of a table
    """Return the norm of what is lost or deferred over that of what was to be sent."""
    codec, whole, out = gradwire.codecs.build(spec), Segments.whole(x.numel()), torch.zeros_like(x)
    if not feedback:
        codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
        return float((out - x).norm() / x.norm())
    residual, owed = torch.zeros_like(x), 0.0
    for step in range(_STEPS):
        owed = float((x + residual).norm())
        codec.encode(x, whole, Key(0, step, 0), residual)
    return float(residual.norm()) / owed
