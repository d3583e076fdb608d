"""A systolic array: cycles of products that pass through a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gradwire.errors import SpecError
from gradwire.sim.catalogue import Gemm, LayerShape
from gradwire.spec import check_whole

Dataflow = Literal["output_stationary", "weight_stationary"]


@dataclass(frozen=True, slots=True)
class SystolicArray:
    """A grid of multipliers fed from memory that is never too slow.

    Only convolutions and matrix products take time, in whichever dtype the
    grid is built for. Backward is one product for the gradient of the weight
    and one for that of the input, where there is one.

    Source: the analytical model of SCALE-Sim (Samajdar et al., ISPASS 2020,
    arXiv:1811.02883).

    Attributes:
        rows: Of the grid, as `columns`.
        clock_hz: Cycles per second.
        dataflow: What rests in the grid: sums of outputs, or weights.

    Example:
        >>> array = SystolicArray(128, 128, 0.94e9)
        >>> array.cycles(Gemm(128, 64, 128))
        446
    """

    rows: int
    columns: int
    clock_hz: float
    dataflow: Dataflow = "output_stationary"

    def __post_init__(self) -> None:
        check_whole("SystolicArray.rows", self.rows, 1)
        check_whole("SystolicArray.columns", self.columns, 1)
        if not 0 < self.clock_hz < math.inf:
            raise SpecError("SystolicArray.clock_hz", self.clock_hz, "above 0 and finite")
        known = ("output_stationary", "weight_stationary")
        if self.dataflow not in known:
            raise SpecError("SystolicArray.dataflow", self.dataflow, "one of: " + ", ".join(known))

    @property
    def name(self) -> str:
        """Names the device."""
        return f"systolic {self.rows}x{self.columns}"

    def cycles(self, gemm: Gemm) -> int:
        """Return the cycles of products, one fold of the grid after the other.

        With sums at rest, a fold holds `rows x columns` outputs and `inner`
        values pass through it; with weights at rest it holds weights, and the
        rows of the input pass. A fold of length `t` takes
        `2 rows + columns + t - 2` cycles to fill, run and drain.
        """
        rest, stream = (gemm.rows, gemm.columns), gemm.inner
        if self.dataflow == "weight_stationary":
            rest, stream = (gemm.inner, gemm.columns), gemm.rows
        folds = math.ceil(rest[0] / self.rows) * math.ceil(rest[1] / self.columns)
        return (2 * self.rows + self.columns + stream - 2) * folds * gemm.repeats

    def forward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """See `ComputeModel.forward_s`."""
        return self._time_s([p.forward(batch_size) for p in layer.products])

    def backward_s(self, layer: LayerShape, batch_size: int, dtype: str) -> float:
        """See `ComputeModel.backward_s`."""
        products = [p.weight_gradient(batch_size) for p in layer.products]
        if layer.has_input_gradient:
            products += [p.input_gradient(batch_size) for p in layer.products]
        return self._time_s(products)

    def optimiser_s(self, numel: int) -> float:
        """Return 0: the grid only multiplies matrices."""
        return 0.0

    def _time_s(self, gemms: list[Gemm]) -> float:
        return sum(self.cycles(gemm) for gemm in gemms) / self.clock_hz
