"""Below which link speed a compressor pays on given hardware."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

from gradwire.plan import DENSE
from gradwire.planner.cost import Cost
from gradwire.planner.errors import Losses
from gradwire.planner.search import EVEN, Search, weigh
from gradwire.planner.step import Setting
from gradwire.spec import parse_reducer
from gradwire.workload import Bucket

_SLOWEST, _FASTEST = 1e3, 1e13
_HALVINGS = 30


def break_even(dense: Cost, small: Cost) -> float:
    """Return the link speed below which the smaller one takes less time, alone.

    Both take codec time, latencies, and bytes over bandwidth; so they meet
    where the bytes saved, over the bandwidth, take the time spent to save them.

    Returns:
        Bytes per second; infinity where no time is spent, 0 where no bytes are saved.

    Example:
        >>> from gradwire.planner.cost import Stage
        >>> break_even(Cost((Stage(0.0, 0, 0, 1000),)), Cost((Stage(0.5, 0, 0, 500),)))
        1000.0
    """
    saved_bytes = dense.sent_bytes - small.sent_bytes
    spent_s = small.alone_s - small.link_s - dense.alone_s + dense.link_s
    if saved_bytes <= 0:
        return 0.0
    return saved_bytes / spent_s if spent_s > 0 else inf


def break_even_alone(setting: Setting, name: str) -> float:
    """Return below which link speed a compressor pays where nothing overlaps.

    All gradients are one bucket, in closed form.

    Returns:
        Bytes per second; 0 where the compressor cannot be used.
    """
    work = setting.workload
    whole = Bucket(0, 0, work.parameters, work.backward_s)
    reducers = (("none", DENSE), (name, parse_reducer(name)))
    losses = Losses({}, work.parameters)
    dense, small = (weigh(whole, n, r, setting, losses, inf).costs for n, r in reducers)
    return break_even(_joined(dense), _joined(small)) if dense and small else 0.0


def break_even_overlapped(setting: Setting, name: str) -> float:
    """Return below which link speed a compressor pays beside a backward pass.

    By search: the step must be more than `EVEN` faster than without
    compression, for buckets of the setting's size.

    Returns:
        Bytes per second; infinity if it pays at every speed, 0 if at none.
    """
    reducers = {"none": DENSE, name: parse_reducer(name)}

    def pays(rate: float) -> bool:
        search = Search(setting.at(rate), reducers, {}, inf)
        chosen = search.uniform(name)
        if chosen is None:
            return False
        return search.step_s(chosen) * (1 + EVEN) < search.step_s(search.none)

    return _highest(pays)


def _highest(pays: Callable[[float], bool]) -> float:
    """Halve the interval, in ratio, that holds the highest rate that pays."""
    low, high = _SLOWEST, _FASTEST
    if not pays(low):
        return 0.0
    if pays(high):
        return inf
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def _joined(costs: tuple[Cost, ...]) -> Cost:
    return Cost(tuple(stage for cost in costs for stage in cost.stages))
