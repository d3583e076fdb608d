"""Real networks as data: exact parameters, and what each layer computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from gradwire.errors import UnknownIdError
from gradwire.sim.catalogue.base import Gemm, LayerShape, Network, Product, linear, norm, weights
from gradwire.sim.catalogue.convolutional import efficientnet_b0, lenet5, resnet, vgg16
from gradwire.sim.catalogue.small import digits, mlp, text
from gradwire.sim.catalogue.transformer import bert_large, gpt2, llama, vit_b16

__all__ = [
    "NETWORKS",
    "Gemm",
    "LayerShape",
    "Network",
    "Product",
    "find_network",
    "linear",
    "norm",
    "weights",
]

NETWORKS: Mapping[str, Callable[[], Network]] = MappingProxyType(
    {
        "lenet5": lenet5,
        "vgg16": vgg16,
        "resnet18": partial(resnet, 18),
        "resnet50": partial(resnet, 50),
        "resnet50_v1": partial(resnet, 50, strides_first=True),
        "resnet152": partial(resnet, 152),
        "efficientnet_b0": efficientnet_b0,
        "vit_b16": vit_b16,
        "bert_large": bert_large,
        "gpt2_small": gpt2,
        "gpt2_medium": partial(gpt2, "medium"),
        "gpt2_large": partial(gpt2, "large"),
        "gpt2_xl": partial(gpt2, "xl"),
        "llama_7b": llama,
        "llama_70b": partial(llama, "70b"),
        "mlp": mlp,
        "digits": digits,
        "text": text,
    }
)
"""Constructors by name; `resnet50_v1` shrinks images in the first convolution of a block."""


def find_network(name: str) -> Network:
    """Build a network of the catalogue.

    Raises:
        UnknownIdError: No such network.

    Example:
        >>> find_network("gpt2_xl").numel
        1557611200
    """
    if name not in NETWORKS:
        raise UnknownIdError("network", name, sorted(NETWORKS))
    return NETWORKS[name]()
