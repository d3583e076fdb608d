"""From a network and a device to the layer times of a workload."""

from __future__ import annotations

from typing import Protocol

from gradwire.sim.catalogue import LayerShape, Network
from gradwire.spec import check_whole
from gradwire.workload import Layer, Workload

_MOST_SAMPLES = 1 << 30


class ComputeModel(Protocol):
    """Predicts how long a device takes for a layer. Pure."""

    @property
    def name(self) -> str:
        """Names the device."""

    def forward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """Return the time of the forward pass of one layer."""

    def backward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """Return the time of its backward pass: the gradients of weights and input."""

    def optimiser_s(self, numel: int) -> float:
        """Return the time of the optimiser for this many parameter values."""


def workload(
    network: Network, device: ComputeModel, batch_size: int, dtype: str = "float32"
) -> Workload:
    """Predict the layer times of a network on a device.

    Args:
        network: Such as `find_network("resnet50")`.
        device: Such as `find_device("a100")` or a `SystolicArray`.
        batch_size: Samples of one rank and step.
        dtype: Of products and activations; gradients stay float32, as under
            autocast.

    Raises:
        SpecError: The device does not compute in `dtype`, or the batch is empty.

    Example:
        >>> from gradwire.sim.catalogue import find_network
        >>> from gradwire.sim.compute import find_device
        >>> work = workload(find_network("lenet5"), find_device("a100"), 32)
        >>> work.name, work.numel
        ('lenet5 on a100', 61706)
    """
    check_whole("batch_size", batch_size, 1, _MOST_SAMPLES)
    layers = tuple(
        Layer(
            shape.name,
            shape.parameters,
            device.forward_s(shape, batch_size, dtype),
            device.backward_s(shape, batch_size, dtype),
        )
        for shape in network.layers
    )
    name = f"{network.name} on {device.name}"
    return Workload(name, layers, device.optimiser_s(network.numel), batch_size)
