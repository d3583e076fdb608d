"""Times of calls on a device, repeated within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

LEAST = 3
"""Fewest repetitions that a median is taken of."""


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed_s(call: Callable[[], object], device: torch.device) -> float:
    """Return how long one call takes, to its end on the device.

    Example:
        >>> elapsed_s(lambda: torch.ones(10).sum(), torch.device("cpu")) > 0
        True
    """
    wait_for(device)
    start_s = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start_s


def median_s(call: Callable[[], object], device: torch.device, budget_s: float) -> float:
    """Return the median time of a call, repeated until the budget is used up.

    The first call is not counted: it touches fresh memory. At least three are.

    Example:
        >>> median_s(lambda: torch.ones(10).sum(), torch.device("cpu"), 0.001) > 0
        True
    """
    elapsed_s(call, device)
    times: list[float] = []
    while len(times) < LEAST or sum(times) < budget_s:
        times.append(elapsed_s(call, device))
    return median(times)
