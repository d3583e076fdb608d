"""What a network consists of: parameters, products, memory traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradwire.plan import Parameter
from gradwire.workload import parameter


class Gemm(NamedTuple):
    """Matrix products `[rows, inner] x [inner, columns]`, `repeats` of them.

    Example:
        >>> Gemm(2, 3, 4).flops
        48
    """

    rows: int
    inner: int
    columns: int
    repeats: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions, counted as two."""
        return 2 * self.rows * self.inner * self.columns * self.repeats


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution or a matrix product of one sample's forward pass.

    Attributes:
        rows: Positions of the output: pixels or tokens.
        inner: Input channels of one group.
        columns: Output channels of one group.
        window: Positions of the input that one of the output sees.
        rows_in: Positions of the input; None for as many as of the output.
        groups: Products side by side: groups of a convolution, attention heads.
        has_weight: Whether one factor is a parameter, which all samples share;
            otherwise each sample multiplies two activations.

    Example:
        >>> conv = Product(rows=16, inner=3, columns=8, window=9)
        >>> conv.forward(batch_size=2)
        Gemm(rows=32, inner=27, columns=8, repeats=1)
    """

    rows: int
    inner: int
    columns: int
    window: int = 1
    rows_in: int | None = None
    groups: int = 1
    has_weight: bool = True

    def forward(self, batch_size: int) -> Gemm:
        """Return the product of the forward pass."""
        return self._gemm(self.rows, self.window * self.inner, self.columns, batch_size)

    def input_gradient(self, batch_size: int) -> Gemm:
        """Return the product for the gradient of the input: each position in its turn.

        A stride makes it a convolution over an input spread with zeros, which
        are multiplied as well.
        """
        rows = self.rows if self.rows_in is None else self.rows_in
        return self._gemm(rows, self.window * self.columns, self.inner, batch_size)

    def weight_gradient(self, batch_size: int) -> Gemm:
        """Return the product for the gradient of the weight, summed over all samples."""
        inner, repeats = self.rows * batch_size, self.groups
        if not self.has_weight:
            inner, repeats = self.rows, self.groups * batch_size
        return Gemm(self.window * self.inner, inner, self.columns, repeats)

    def _gemm(self, rows: int, inner: int, columns: int, batch_size: int) -> Gemm:
        if self.has_weight:
            return Gemm(rows * batch_size, inner, columns, self.groups)
        return Gemm(rows, inner, columns, self.groups * batch_size)

    @property
    def input_numel(self) -> int:
        """Values of the input, of one sample."""
        rows = self.rows if self.rows_in is None else self.rows_in
        return rows * self.inner * self.groups

    @property
    def output_numel(self) -> int:
        """Values of the output, of one sample."""
        return self.rows * self.columns * self.groups

    @property
    def weight_numel(self) -> int:
        """Values of the weight; 0 where both factors are activations."""
        return self.window * self.inner * self.columns * self.groups if self.has_weight else 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One module, and what its forward pass computes.

    Attributes:
        parameters: In order of registration.
        products: Its convolutions and matrix products.
        moved_numel: Values of one sample that everything else reads and writes:
            norms, activations, sums, pooling.
        kernels: Kernels that its forward pass starts.
        has_input_gradient: False for what meets the data: nothing is behind it.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    products: tuple[Product, ...] = ()
    moved_numel: int = 0
    kernels: int = 1
    has_input_gradient: bool = True


@dataclass(frozen=True, slots=True)
class Network:
    """A network as layers in order of use.

    A tied weight belongs to the layer that uses it first, since the forward
    pass waits for it there; its gradient is complete when backward gets there.

    Attributes:
        samples: What a sample is, for reports: `"images"`, `"sequences"`.

    Example:
        >>> fc = LayerShape("fc", weights("fc", weight=(10, 4), bias=(10,)))
        >>> Network("tiny", (fc,)).numel
        50
    """

    name: str
    layers: tuple[LayerShape, ...]
    samples: str = "images"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, in order of use."""
        return tuple(p for layer in self.layers for p in layer.parameters)

    @property
    def numel(self) -> int:
        """Number of parameter values."""
        return sum(p.entry.numel for p in self.parameters)

    def flops(self, batch_size: int = 1) -> int:
        """Return the operations of the products of one forward pass."""
        products = (p for layer in self.layers for p in layer.products)
        return sum(p.forward(batch_size).flops for p in products)


def weights(module: str, **shapes: Sequence[int]) -> tuple[Parameter, ...]:
    """Name the parameters of a module.

    Example:
        >>> [p.name for p in weights("fc", weight=(10, 4), bias=(10,))]
        ['fc.weight', 'fc.bias']
    """
    prefix = f"{module}." if module else ""
    return tuple(parameter(f"{prefix}{name}", shape) for name, shape in shapes.items())


def linear(
    module: str, inner: int, columns: int, *, rows: int = 1, bias: bool = True, moved: int = 0
) -> LayerShape:
    """Describe `torch.nn.Linear` over `rows` positions.

    Args:
        module: Its name.
        inner: Features of the input.
        columns: Features of the output.
        rows: Positions of one sample.
        bias: Whether it adds one.
        moved: Values that what follows it reads and writes.

    Example:
        >>> linear("fc", 4, 10).products[0].forward(2)
        Gemm(rows=2, inner=4, columns=10, repeats=1)
    """
    shapes = {"weight": (columns, inner), **({"bias": (columns,)} if bias else {})}
    product = Product(rows, inner, columns)
    return LayerShape(module, weights(module, **shapes), (product,), moved, kernels=1 + bool(moved))


def norm(module: str, numel: int, width: int, *, bias: bool = True, moved: int = 2) -> LayerShape:
    """Describe a layer norm.

    Args:
        module: Its name.
        numel: Values of one sample.
        width: Values that are normalised together.
        bias: Whether it adds one.
        moved: How often each value is read or written.

    Example:
        >>> norm("ln", 1000, 10).moved_numel
        2000
    """
    shapes: dict[str, Sequence[int]] = {"weight": (width,), **({"bias": (width,)} if bias else {})}
    return LayerShape(module, weights(module, **shapes), (), moved * numel)
