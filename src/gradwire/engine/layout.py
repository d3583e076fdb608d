"""Layouts: how the parameters of a bucket are split by reducer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gradwire.errors import SpecError
from gradwire.plan import DENSE, Assignment, Parameter
from gradwire.reduce.base import Part, Reducer, Slot, build
from gradwire.spec import ReducerSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """What is done with one bucket.

    Attributes:
        names: Its parameters, in order.
        parts: A reducer for each group of them, compressed ones first.
        numel: Values in the bucket.
    """

    names: tuple[str, ...]
    parts: tuple[tuple[Reducer, Part], ...]
    numel: int


class Layouts:
    """Makes the layout of a bucket when its composition is first seen.

    Args:
        parameters: All parameters of the plan.
        assignments: Their reducers.
        offsets: Their places in the residual.
        world_size: Number of ranks.
        build: Makes the reducer of a spec.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        assignments: Mapping[str, Assignment],
        offsets: Mapping[str, int],
        world_size: int,
        build: Callable[[ReducerSpec], Reducer] = build,
    ) -> None:
        self._entries = {p.name: p.entry for p in parameters}
        self._assignments = assignments
        self._offsets = offsets
        self._world_size = world_size
        self._build = build
        self._reducers: dict[ReducerSpec, Reducer] = {}
        self._known: dict[tuple[tuple[str, ...], bool], Layout] = {}

    def of(self, names: tuple[str, ...], numel: int, *, all_dense: bool) -> Layout:
        """Return the layout of a bucket.

        Args:
            names: Its parameters, in order.
            numel: Values in its buffer.
            all_dense: Whether the plan's warm-up is still on.

        Raises:
            SpecError: The parameters do not fill the buffer.
        """
        layout = self._known.get((names, all_dense))
        if layout is None:
            layout = self._make(names, all_dense=all_dense)
            self._known[names, all_dense] = layout
        if layout.numel != numel:
            raise SpecError("bucket size", numel, f"{layout.numel}, the size of {list(names)}")
        return layout

    def _make(self, names: tuple[str, ...], *, all_dense: bool) -> Layout:
        groups: dict[ReducerSpec, list[Slot]] = {}
        offset = 0
        for name in names:
            entry = self._entries[name]
            reducer = DENSE if all_dense else self._assignments[name].reducer
            slot = Slot(name, entry, offset, self._offsets.get(name, 0))
            if entry.numel:
                groups.setdefault(reducer, []).append(slot)
            offset += entry.numel
        ordered = sorted(groups.items(), key=lambda item: item[0] == DENSE)
        parts = [
            (reducer, reducer.part(tuple(slots), self._world_size))
            for reducer, slots in ((self._reducer(spec), slots) for spec, slots in ordered)
        ]
        return Layout(names, tuple(parts), offset)

    def _reducer(self, spec: ReducerSpec) -> Reducer:
        if spec not in self._reducers:
            self._reducers[spec] = self._build(spec)
        return self._reducers[spec]


def storage_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a dense tensor's sizes in the order its values lie in memory.

    DDP copies a gradient into its bucket in the parameter's memory order, so
    a channels_last weight arrives permuted. A complex value counts as two.

    Example:
        >>> weight = torch.zeros(8, 4, 3, 3).to(memory_format=torch.channels_last)
        >>> storage_shape(weight)
        (8, 3, 3, 4)
    """
    strides = tensor.stride()
    dims = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
    expected = 1
    for d in reversed(dims):
        if tensor.shape[d] > 1 and strides[d] != expected:
            dims = sorted(dims)  # neither dense nor a permutation: DDP makes it contiguous
            break
        expected *= tensor.shape[d]
    shape = tuple(tensor.shape[d] for d in dims)
    return (*shape, 2) if tensor.is_complex() else shape
