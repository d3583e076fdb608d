"""Buckets and times of a training step."""

from __future__ import annotations

import pytest

from gradwire.errors import SpecError
from gradwire.workload import Layer, Workload, parameter


def _workload(*numels, dtypes=()):
    dtypes = dtypes or ("float32",) * len(numels)
    layers = [
        Layer(f"l{i}", (parameter(f"l{i}.weight", (n,), d),), 1.0, 2.0)
        for i, (n, d) in enumerate(zip(numels, dtypes, strict=True))
    ]
    return Workload("w", tuple(layers), optimiser_s=0.5)


def test_rear_layers_are_ready_first_and_front_layers_due_first():
    work = _workload(1, 1, 1)
    assert work.ready_s() == (6.0, 4.0, 2.0)
    assert work.due_s() == (0.0, 1.0, 2.0)
    assert work.compute_s == 9.5


def test_buckets_close_once_they_reach_their_limit():
    buckets = _workload(10, 10, 10, 10).buckets(cap_bytes=80, first_bytes=40)
    assert [[p.name for p in b.parameters] for b in buckets] == [
        ["l3.weight"],
        ["l2.weight", "l1.weight"],
        ["l0.weight"],
    ]
    assert [b.ready_s for b in buckets] == [2.0, 6.0, 8.0]
    assert [b.layer for b in buckets] == [3, 1, 0]


def test_buckets_hold_one_dtype_each():
    buckets = _workload(10, 10, dtypes=("float32", "float16")).buckets()
    assert sorted(p.dtype for b in buckets for p in b.parameters) == ["float16", "float32"]
    assert all(len(b.parameters) == 1 for b in buckets)


def test_workload_refuses_a_layer_name_used_twice():
    layer = Layer("a", (), 0.0, 0.0)
    with pytest.raises(SpecError, match="a name used once"):
        Workload("w", (layer, layer))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9}', '{"format": 1, "name": "w"}'])
def test_workload_refuses_other_json(text):
    with pytest.raises(SpecError):
        Workload.from_json(text)
