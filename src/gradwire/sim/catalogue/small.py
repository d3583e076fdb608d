"""The networks that gradwire's own demo and bench train."""

from __future__ import annotations

import math
from itertools import pairwise

from gradwire.sim.catalogue.base import LayerShape, Network, Product, linear, norm, weights
from gradwire.workload import Layer, Workload

_ACTIVATION = 2
_RESIDUAL = 3


def mlp(width: int = 1536) -> Network:
    """Describe the perceptron of four linear layers on images of 8 x 8.

    Example:
        >>> mlp().numel
        4836874
    """
    sizes = (64, width, width, width, 10)
    layers = tuple(
        linear(f"net.{2 * i}", inner, columns, moved=_ACTIVATION * columns)
        for i, (inner, columns) in enumerate(pairwise(sizes))
    )
    return Network("mlp", layers)


def digits() -> Network:
    """Describe the demo's convolutional net on images of 8 x 8.

    Example:
        >>> digits().numel
        548746
    """
    convolutions = tuple(
        LayerShape(
            name,
            weights(name, weight=(columns, inner, 3, 3), bias=(columns,)),
            (Product(64, inner, columns, window=9),),
            _ACTIVATION * 64 * columns,
            kernels=2,
            has_input_gradient=name != "0",
        )
        for name, inner, columns in (("0", 1, 32), ("2", 32, 64))
    )
    head = (linear("6", 1024, 512, moved=_ACTIVATION * 512), linear("8", 512, 10))
    return Network("digits", (*convolutions, *head))


def text(*, width: int = 384, depth: int = 6, heads: int = 6, context: int = 64) -> Network:
    """Describe the demo's GPT on bytes.

    Example:
        >>> text().numel
        10868736
    """
    numel = context * width
    layers = [
        LayerShape(
            "byte",
            weights("byte", weight=(256, width)),
            moved_numel=_ACTIVATION * numel,
            has_input_gradient=False,
        ),
        LayerShape("position", weights("position", weight=(context, width)), (), _RESIDUAL * numel),
    ]
    for i in range(depth):
        layers += _block(f"blocks.{i}", width, context, heads)
    layers += [
        norm("norm", numel, width),
        linear("head", width, 256, rows=context, bias=False, moved=_RESIDUAL * 256 * context),
    ]
    return Network("text", tuple(layers), "sequences")


def _block(prefix: str, width: int, context: int, heads: int) -> list[LayerShape]:
    numel, size = context * width, width // heads
    scores = Product(context, size, context, groups=heads, has_weight=False)
    mix = Product(context, context, size, groups=heads, has_weight=False)

    def project(name: str, inner: int, columns: int, moved: int = 0) -> LayerShape:
        return linear(f"{prefix}.{name}", inner, columns, rows=context, moved=moved)

    return [
        norm(f"{prefix}.attention_norm", numel, width),
        project("query_key_value", width, 3 * width),
        LayerShape(f"{prefix}.attention", (), (scores, mix), 4 * numel),
        project("attention_out", width, width, _RESIDUAL * numel),
        norm(f"{prefix}.perceptron_norm", numel, width),
        project("up", width, 4 * width, _ACTIVATION * 4 * numel),
        project("down", 4 * width, width, _RESIDUAL * numel),
    ]


def accel() -> Workload:
    """Return the bench's simulated accelerator: twelve layers that sleep.

    It has about as many parameters as a ResNet-18 for small images, and the
    same times on every device: 100 ms forward, 200 ms backward.

    Example:
        >>> accel().numel, accel().compute_s
        (10875648, 0.3)
    """
    depth, rows = 12, math.isqrt(10_900_000 // 12 // 4)
    layers = tuple(
        Layer(f"{i}", weights(f"{i}", weight=(rows, 4 * rows)), 0.1 / depth, 0.2 / depth)
        for i in range(depth)
    )
    return Workload("accel", layers)
