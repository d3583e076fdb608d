"""Runs Triton kernels on the CPU and compiles them for a GPU, in one process.

Triton decides when a kernel is defined whether it is interpreted, for its own
`tl.sum` and others even at import. Here a kernel is always compiled code, and
gets an interpreted twin when it is launched on tensors of the CPU; functions
that it calls get theirs while such a launch runs. This is private API of one
Triton version; `test_interpreter.py` fails first when it changes.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

_LANGUAGE = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_depth = 0
_twins: dict = {}
_call = JITFunction.__call__
_run = JITFunction.run


def _twin(function):
    if function.fn not in _twins:
        _twins[function.fn] = interpreter.InterpretedFunction(function.fn)
    return _twins[function.fn]


def _interpreted_call(self, *args, **kwargs):
    return _twin(self).rewrite()(*args, **kwargs) if _depth else _call(self, *args, **kwargs)


@contextmanager
def _interpreting() -> Iterator[None]:
    global _depth  # noqa: PLW0603 - Triton's own state is global as well
    scope = interpreter._patch_lang(_LANGUAGE)
    _depth += 1
    try:
        with np.errstate(all="ignore"):  # a GPU does not warn of infinity and NaN
            yield
    finally:
        _depth -= 1
        scope.restore()


def _routed_run(self, *args, grid, warmup, **kwargs):
    tensors = (a for a in (*args, *kwargs.values()) if hasattr(a, "data_ptr"))
    if next(tensors).device.type != "cpu":
        return _run(self, *args, grid=grid, warmup=warmup, **kwargs)
    with _interpreting():
        return _twin(self).run(*args, grid=grid, warmup=warmup, **kwargs)


def install() -> None:
    """Route launches on the CPU's tensors to the interpreter."""
    JITFunction.__call__ = _interpreted_call
    JITFunction.run = _routed_run
