"""How much each codec loses of a model's own gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

import gradwire.codecs
from gradwire.codecs.base import Segments
from gradwire.key import Key
from gradwire.measure.kernels import codec_of
from gradwire.measure.model import Loss, gradients_of
from gradwire.spec import CodecSpec, LowRank, ReducerSpec, codec_name


def measure_errors(
    gradients: Mapping[str, Tensor], specs: Sequence[ReducerSpec]
) -> dict[str, dict[str, float]]:
    """Return the relative error of each codec on each gradient.

    Args:
        gradients: By parameter name, any shape.
        specs: Reducers whose codecs to try; low rank has no codec and is left out.

    Returns:
        By parameter name and short name of a codec, as `select_plan` takes it.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> errors = measure_errors({"w": torch.ones(256)}, [parse_reducer("int8")])
        >>> errors["w"]["int8"] < 1e-6
        True
    """
    errors: dict[str, dict[str, float]] = {}
    codecs = {codec_name(codec_of(s)): codec_of(s) for s in specs if not isinstance(s, LowRank)}
    for name, gradient in gradients.items():
        x = gradient.detach().reshape(-1).to(torch.float32).contiguous()
        norm = float(x.norm())
        if norm > 0:
            found = {c: float((_round_trip(spec, x) - x).norm()) for c, spec in codecs.items()}
            errors[name] = {c: distance / norm for c, distance in found.items()}
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


def _round_trip(spec: CodecSpec, x: Tensor) -> Tensor:
    codec, whole, out = gradwire.codecs.build(spec), Segments.whole(x.numel()), torch.zeros_like(x)
    codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
    return out
