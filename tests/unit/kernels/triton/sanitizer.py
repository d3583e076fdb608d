"""Watches every access of an interpreted kernel to memory.

Each lane must stay inside the tensors that the launch was given. Two programs
must not write one byte, nor one read what another writes, and programs run in
a shuffled order: on a GPU no order is promised.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder


class KernelFaultError(AssertionError):
    """A kernel touched memory that it must not touch."""


class _Watch:
    """What one launch may touch, and who has touched what."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        storages = {t.untyped_storage() for t in tensors}
        spans = sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages})
        self.starts = np.array([start for start, _ in spans], np.uint64)
        self.ends = np.array([end for _, end in spans], np.uint64)
        self.writers: dict[int, tuple] = {}
        self.readers: dict[int, tuple] = {}
        self.program: tuple = ()
        self.order: list[int] | None = None

    def check(self, pointers, mask, *, is_write: bool) -> None:
        lanes = pointers.data if mask is None else pointers.data[mask.data]
        places = np.asarray(lanes).ravel().astype(np.uint64)
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        self._check_bounds(places, size)
        if is_write and np.unique(places).size != places.size:
            raise KernelFaultError(f"two lanes of program {self.program} both write one place")
        for place in places.tolist():
            writer = self.writers.get(place, self.program)
            if writer != self.program:
                both = "both write" if is_write else "writes and reads"
                raise KernelFaultError(f"programs {writer} and {self.program}: {both} one place")
            if not is_write:
                self.readers.setdefault(place, self.program)
                continue
            if self.readers.get(place, self.program) != self.program:
                raise KernelFaultError(f"program {self.program} writes what another one reads")
            self.writers[place] = self.program

    def _check_bounds(self, places: np.ndarray, size: int) -> None:
        if not places.size:
            return
        at = np.searchsorted(self.starts, places, side="right").astype(np.int64) - 1
        outside = (at < 0) | (places + np.uint64(size) > self.ends[np.maximum(at, 0)])
        if outside.any():
            count = int(outside.sum())
            raise KernelFaultError(f"{count} lanes of program {self.program} are outside")


def _tensors(arguments) -> list[torch.Tensor]:
    return [a for a in arguments if isinstance(a, torch.Tensor)]


@contextmanager
def sanitized(seed: int = 1) -> Iterator[None]:
    """Watch all launches in the interpreter."""
    watch: _Watch | None = None
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    place, launch = InterpreterBuilder.set_grid_idx, GridExecutor.__call__

    def watched_load(self, pointers, mask, *rest):
        watch.check(pointers, mask, is_write=False)
        return load(self, pointers, mask, *rest)

    def watched_store(self, pointers, value, mask, *rest):
        watch.check(pointers, mask, is_write=True)
        return store(self, pointers, value, mask, *rest)

    def shuffled_place(self, x, y, z):
        sizes = self.grid_dim
        if watch.order is None:
            watch.order = list(range(sizes[0] * sizes[1] * sizes[2]))
            random.Random(seed).shuffle(watch.order)
        x, rest = divmod(watch.order[(x * sizes[1] + y) * sizes[2] + z], sizes[1] * sizes[2])
        watch.program = (x, *divmod(rest, sizes[2]))
        return place(self, *watch.program)

    def watched_launch(self, *args, **kwargs):
        nonlocal watch
        watch = _Watch(_tensors([*args, *kwargs.values()]))
        return launch(self, *args, **kwargs)

    builder = interpreter.InterpreterBuilder
    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.set_grid_idx, GridExecutor.__call__ = shuffled_place, watched_launch
    try:
        yield
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        builder.set_grid_idx, GridExecutor.__call__ = place, launch
