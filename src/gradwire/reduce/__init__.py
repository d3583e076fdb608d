"""Reducers: how ranks average a part of a bucket, one module each."""

from gradwire.reduce import all_reduce, broadcast, hierarchical, low_rank, shared_scale, two_phase
from gradwire.reduce.base import REDUCERS, Part, Reducer, Slot, State, build

__all__ = [
    "REDUCERS",
    "Part",
    "Reducer",
    "Slot",
    "State",
    "all_reduce",
    "broadcast",
    "build",
    "hierarchical",
    "low_rank",
    "shared_scale",
    "two_phase",
]
