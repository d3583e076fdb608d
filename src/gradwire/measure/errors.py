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
from gradwire.spec import CodecSpec, LowRank, ReducerSpec, codec_name, spec_name

_ITERATIONS = 2


def measure_errors(
    gradients: Mapping[str, Tensor], specs: Sequence[ReducerSpec]
) -> dict[str, dict[str, float]]:
    """Return the relative error of each codec on each gradient.

    Args:
        gradients: By parameter name, any shape.
        specs: Reducers whose codecs to try. Low rank, of matrices only, is
            taken after two steps of its iteration.

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
        if 0 < norm < math.inf:
            found = {c: float((_round_trip(spec, x) - x).norm()) for c, spec in codecs.items()}
            errors[name] = {c: distance / norm for c, distance in found.items()}
            ranks = specs if gradient.dim() > 1 else ()
            for spec in ranks:
                if isinstance(spec, LowRank):
                    matrix = x.view(LowRank.matrix_shape(tuple(gradient.shape)))
                    errors[name][spec_name(spec)] = _low_rank_error(matrix, spec.matrix_rank)
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


def _low_rank_error(matrix: Tensor, rank: int) -> float:
    """Return what is outside of the leading subspace, over the whole."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(matrix.shape[1], min(rank, *matrix.shape), generator=generator)
    factor = start.to(matrix.device)
    for _ in range(_ITERATIONS):
        basis: Tensor = torch.linalg.qr(matrix @ factor).Q
        factor = matrix.T @ basis
    return float((matrix - basis @ factor.T).norm() / matrix.norm())


def _round_trip(spec: CodecSpec, x: Tensor) -> Tensor:
    codec, whole, out = gradwire.codecs.build(spec), Segments.whole(x.numel()), torch.zeros_like(x)
    codec.decode(codec.encode(x, whole, Key(0, 0, 0))[None], whole, out)
    return out
