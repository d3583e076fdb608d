"""Convolutional networks: LeNet-5, VGG-16, ResNets, EfficientNet-B0.

Shapes and names of parameters are those of torchvision's models. Sources:
LeCun et al. 1998; Simonyan and Zisserman, arXiv:1409.1556; He et al.,
arXiv:1512.03385; Tan and Le, arXiv:1905.11946.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradwire.sim.catalogue.base import LayerShape, Network, Product, linear, weights

_BATCH_NORM = 3
"""A batch norm reads its input twice (statistics, then values) and writes once."""
_ACTIVATION = 2
"""An activation reads and writes."""
_SUM = 3
"""A residual sum reads two tensors and writes one."""


@dataclass(slots=True)
class _Image:
    """Adds layers and keeps the size of what flows between them."""

    channels: int
    side: int
    layers: list[LayerShape] = field(default_factory=list)

    def conv(  # noqa: PLR0913 - a convolution's own parameters
        self,
        name: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = False,
        moved: int = 0,
    ) -> None:
        """Add a convolution; padding None keeps the size at stride 1."""
        pad = kernel // 2 if padding is None else padding
        side = (self.side + 2 * pad - kernel) // stride + 1
        inner = self.channels // groups
        shapes: dict[str, Sequence[int]] = {"weight": (channels, inner, kernel, kernel)}
        if bias:
            shapes["bias"] = (channels,)
        product = Product(
            side**2, inner, channels // groups, kernel**2, rows_in=self.side**2, groups=groups
        )
        numel = moved * side**2 * channels
        layer = LayerShape(name, weights(name, **shapes), (product,), numel, 1 + bool(moved))
        self.layers.append(replace(layer, has_input_gradient=bool(self.layers)))
        self.channels, self.side = channels, side

    def norm(self, name: str, *, moved: int = 0) -> None:
        """Add a batch norm, and what follows it as `moved` accesses of each value."""
        numel = self.channels * self.side**2 * (_BATCH_NORM + moved)
        parameters = weights(name, weight=(self.channels,), bias=(self.channels,))
        self.layers.append(LayerShape(name, parameters, (), numel, 1 + bool(moved)))

    def pool(self, factor: int = 2) -> None:
        """Shrink the image; the traffic counts to the layer before."""
        last = self.layers[-1]
        numel = self.channels * self.side**2
        self.side //= factor
        numel += self.channels * self.side**2
        self.layers[-1] = replace(
            last, moved_numel=last.moved_numel + numel, kernels=last.kernels + 1
        )

    def fc(self, name: str, columns: int, *, moved: int = 0) -> None:
        """Add a linear layer over everything that is left."""
        inner = self.channels * self.side**2
        self.layers.append(linear(name, inner, columns, moved=moved * columns))
        self.channels, self.side = columns, 1


def lenet5() -> Network:
    """Describe LeNet-5 for images of 32 x 32, with full connections between maps.

    Example:
        >>> lenet5().numel
        61706
    """
    image = _Image(1, 32)
    for name, channels in (("conv1", 6), ("conv2", 16)):
        image.conv(name, channels, 5, padding=0, bias=True, moved=_ACTIVATION)
        image.pool()
    for name, columns in (("fc1", 120), ("fc2", 84), ("fc3", 10)):
        image.fc(name, columns, moved=_ACTIVATION)
    return Network("lenet5", tuple(image.layers))


def vgg16() -> Network:
    """Describe VGG-16 without batch norm, configuration D.

    Example:
        >>> vgg16().numel
        138357544
    """
    image, index = _Image(3, 224), 0
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            image.conv(f"features.{index}", channels, 3, bias=True, moved=_ACTIVATION)
            index += 2
        image.pool()
        index += 1
    for place, columns in ((0, 4096), (3, 4096), (6, 1000)):
        image.fc(f"classifier.{place}", columns, moved=2 * _ACTIVATION)
    return Network("vgg16", tuple(image.layers))


def resnet(depth: int, *, strides_first: bool = False) -> Network:
    """Describe ResNet-18, 50 or 152.

    Args:
        depth: 18, 50 or 152.
        strides_first: Bottlenecks shrink the image in their first convolution,
            as in the paper; otherwise in the second, as torchvision does.

    Example:
        >>> resnet(50).numel, len(resnet(50).parameters)
        (25557032, 161)
    """
    blocks = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}[depth]
    block = _basic if depth == 18 else _bottleneck  # noqa: PLR2004 - the only one of basic blocks
    image = _Image(3, 224)
    image.conv("conv1", 64, 7, stride=2)
    image.norm("bn1", moved=_ACTIVATION)
    image.pool()
    for stage, repeats in enumerate(blocks):
        for index in range(repeats):
            stride = 2 if stage and not index else 1
            block(image, f"layer{stage + 1}.{index}", 64 << stage, stride, strides_first)
    image.pool(image.side)
    image.fc("fc", 1000)
    return Network(f"resnet{depth}" + ("_v1" if strides_first else ""), tuple(image.layers))


def _basic(image: _Image, name: str, width: int, stride: int, _: bool) -> None:  # noqa: FBT001
    entry = (image.channels, image.side)
    image.conv(f"{name}.conv1", width, 3, stride=stride)
    image.norm(f"{name}.bn1", moved=_ACTIVATION)
    image.conv(f"{name}.conv2", width, 3)
    image.norm(f"{name}.bn2", moved=_SUM + _ACTIVATION)
    if entry != (image.channels, image.side):
        _shortcut(image, name, entry, stride)


def _bottleneck(image: _Image, name: str, width: int, stride: int, first: bool) -> None:  # noqa: FBT001
    entry = (image.channels, image.side)
    image.conv(f"{name}.conv1", width, 1, stride=stride if first else 1)
    image.norm(f"{name}.bn1", moved=_ACTIVATION)
    image.conv(f"{name}.conv2", width, 3, stride=1 if first else stride)
    image.norm(f"{name}.bn2", moved=_ACTIVATION)
    image.conv(f"{name}.conv3", 4 * width, 1)
    image.norm(f"{name}.bn3", moved=_SUM + _ACTIVATION)
    if entry != (image.channels, image.side):
        _shortcut(image, name, entry, stride)


def _shortcut(image: _Image, name: str, entry: tuple[int, int], stride: int) -> None:
    channels = image.channels
    image.channels, image.side = entry
    image.conv(f"{name}.downsample.0", channels, 1, stride=stride)
    image.norm(f"{name}.downsample.1")


def efficientnet_b0() -> Network:
    """Describe EfficientNet-B0 for images of 224 x 224.

    Example:
        >>> efficientnet_b0().numel
        5288548
    """
    image = _Image(3, 224)
    image.conv("features.0.0", 32, 3, stride=2)
    image.norm("features.0.1", moved=_ACTIVATION)
    stages = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    for stage, (expand, channels, repeats, stride, kernel) in enumerate(stages):
        for index in range(repeats):
            name = f"features.{stage + 1}.{index}.block"
            first = stride if index == 0 else 1
            _inverted(image, name, expand, channels, (kernel, first))
    image.conv("features.8.0", 1280, 1)
    image.norm("features.8.1", moved=_ACTIVATION)
    image.pool(image.side)
    image.fc("classifier.1", 1000)
    return Network("efficientnet_b0", tuple(image.layers))


def _inverted(
    image: _Image, name: str, expand: int, channels: int, window: tuple[int, int]
) -> None:
    """Add an inverted bottleneck with squeeze and excitation."""
    entry, (kernel, stride), place = image.channels, window, 0
    hidden = entry * expand
    if expand > 1:
        image.conv(f"{name}.0.0", hidden, 1)
        image.norm(f"{name}.0.1", moved=_ACTIVATION)
        place = 1
    image.conv(f"{name}.{place}.0", hidden, kernel, stride=stride, groups=hidden)
    image.norm(f"{name}.{place}.1", moved=_ACTIVATION)
    side, squeezed = image.side, max(1, entry // 4)
    image.side = 1
    image.conv(f"{name}.{place + 1}.fc1", squeezed, 1, bias=True, moved=_ACTIVATION)
    image.conv(f"{name}.{place + 1}.fc2", hidden, 1, bias=True, moved=_ACTIVATION)
    scaled = image.layers[-1]
    moved = scaled.moved_numel + _SUM * hidden * side**2
    image.layers[-1] = replace(scaled, moved_numel=moved, kernels=scaled.kernels + 2)
    image.side = side
    image.conv(f"{name}.{place + 2}.0", channels, 1)
    is_residual = stride == 1 and entry == channels
    image.norm(f"{name}.{place + 2}.1", moved=_SUM if is_residual else 0)
