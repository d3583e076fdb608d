"""A roofline: each kernel is as slow as its arithmetic or its memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gradwire.errors import SpecError, UnknownIdError
from gradwire.sim.catalogue import LayerShape, Product

_ITEM_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}

OPTIMISER_BYTES = 20
"""Bytes per value of SGD with momentum: three float32 read and two written."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device by its peak arithmetic and memory rates, and what is achieved of them.

    Attributes:
        peak_flops: Operations per second by dtype, without sparsity.
        memory_bytes_per_s: Peak rate of the memory.
        flops_fraction: Share of the peak that large products reach.
        memory_fraction: Share of the peak that a plain copy reaches.
        launch_s: What each kernel costs whatever its size.

    Example:
        >>> device = Roofline("toy", {"float32": 1e12}, 1e11, 0.5, 0.8, 0.0)
        >>> device.copy_bytes_per_s
        80000000000.0
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    flops_fraction: float
    memory_fraction: float
    launch_s: float

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes read plus written per second by a plain copy."""
        return self.memory_bytes_per_s * self.memory_fraction

    def forward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """Return the sum over kernels of the slower of arithmetic and memory."""
        products = sum(self._product_s(p, batch_size, dtype) for p in layer.products)
        return products + self._moved_s(layer, batch_size, dtype) + layer.kernels * self.launch_s

    def backward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """Return the time of two products for each of forward's, and twice the traffic.

        What is no product reads its input and a gradient where forward read its
        input, and writes a gradient.
        """
        sides = 2 if layer.has_input_gradient else 1
        products = sides * sum(self._product_s(p, batch_size, dtype) for p in layer.products)
        moved = 2 * self._moved_s(layer, batch_size, dtype)
        return products + moved + 2 * layer.kernels * self.launch_s

    def optimiser_s(self, numel: int) -> float:
        """Return the time of SGD with momentum in float32."""
        return OPTIMISER_BYTES * numel / self.copy_bytes_per_s + self.launch_s

    def _product_s(self, product: Product, batch_size: int, dtype: str) -> float:
        arithmetic = product.forward(batch_size).flops / (self._peak(dtype) * self.flops_fraction)
        if not product.has_weight:
            return arithmetic
        numel = (product.input_numel + product.output_numel) * batch_size + product.weight_numel
        return max(arithmetic, numel * _ITEM_BYTES[dtype] / self.copy_bytes_per_s)

    def _moved_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        self._peak(dtype)
        return layer.moved_numel * batch_size * _ITEM_BYTES[dtype] / self.copy_bytes_per_s

    def _peak(self, dtype: str) -> float:
        if dtype not in self.peak_flops:
            raise SpecError(
                "dtype", dtype, f"one that {self.name} has: {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]


DEVICES: Mapping[str, Roofline] = MappingProxyType(
    {
        device.name: device
        for device in (
            Roofline("v100", {"float32": 15.7e12, "float16": 125e12}, 0.9e12, 0.6, 0.8, 3e-6),
            Roofline(
                "a100",
                {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
                2.039e12,
                0.6,
                0.8,
                3e-6,
            ),
            Roofline(
                "h100",
                {"float32": 67e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12},
                3.35e12,
                0.6,
                0.8,
                3e-6,
            ),
            Roofline(
                "h200",
                {"float32": 67e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12},
                4.8e12,
                0.6,
                0.8,
                3e-6,
            ),
            Roofline("cpu", {"float32": 2.5e12, "bfloat16": 2.5e12}, 2e11, 0.5, 0.8, 1e-5),
        )
    }
)
"""Devices by name. Peaks without sparsity; sources in docs/explanation/compute-models.md."""


def find_device(name: str) -> Roofline:
    """Return a device by name.

    Raises:
        UnknownIdError: No such device.

    Example:
        >>> find_device("v100").peak_flops["float16"]
        125000000000000.0
    """
    if name not in DEVICES:
        raise UnknownIdError("device", name, sorted(DEVICES))
    return DEVICES[name]
