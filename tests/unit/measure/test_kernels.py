"""Speeds of codecs, and the comparison of kernels with the reference."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import BackendError
from gradwire.hardware import Device
from gradwire.kernels import forms, ops
from gradwire.measure import device, selftest
from gradwire.measure.errors import measure_errors
from gradwire.measure.interference import measure_interference, share
from gradwire.measure.kernels import SPECS, measure_kernels
from gradwire.spec import parse_reducer

CPU = torch.device("cpu")


def test_every_short_name_gets_its_lines():
    specs = [parse_reducer(name) for name in SPECS]
    lines = measure_kernels(specs, CPU, sizes_bytes=(1 << 12, 1 << 14), budget_s=0.0)
    named = {"topk": "topk:0.01", "threshold": "threshold:0.01", "random_k": "random_k:0.01"}
    expected = {f"encode {named.get(name, name)}" for name in SPECS}
    expected |= {f"decode {named.get(n, n)}" for n in SPECS if not n.startswith("low_rank")}
    assert set(lines) == expected
    assert all(line.time_s(1 << 14) > 0 for line in lines.values())


def test_equal_codecs_are_measured_once():
    specs = [parse_reducer(name) for name in ("int4", "int4@broadcast")]
    assert len(measure_kernels(specs, CPU, sizes_bytes=(4096,), budget_s=0.0)) == 2


def test_errors_are_of_the_gradients_given():
    gradients = {"a": torch.tensor([[1.0, -1.0]] * 256), "b": torch.zeros(300)}
    errors = measure_errors(gradients, [parse_reducer(n) for n in ("int8", "sign", "low_rank")])
    assert errors["b"] == {"rms": 0.0}  # zeros have no relative error
    assert errors["a"]["sign"] == pytest.approx(0.0, abs=1e-6)
    assert set(errors["a"]) == {"rms", "int8", "sign"}  # what low rank defers shows later
    assert errors["a"]["rms"] == pytest.approx(1.0)


def test_cpu_is_identified_and_others_refused():
    found = device.measure_device(CPU)
    assert found.kind == "cpu"
    assert found.cores == device.available_cores()
    assert found.copy_bytes_per_s > 0
    assert found.read_bytes_per_s > 0
    assert found.launch_s > 0
    with pytest.raises(BackendError, match="no such device here"):
        device.identify(torch.device("meta"))


def test_interference_is_a_share():
    assert 0 <= measure_interference(CPU, 0.05) <= 1
    assert share(2.0, 3.0, 4.0) == 0.25
    assert Device(interference=share(1.0, 9.0, 1.0)).interference == 1.0


def test_selftest_compares_every_kernel():
    names = ("bf16", "int3", "sign", "planes8:4", "hadamard4", "topk:0.1", "threshold:0.1")
    found = {p.op: p for p in selftest.check_kernels(CPU, names)}
    twice = {forms.line_name(op, "matrix") for op in forms.OPS["hadamard"]}
    assert set(found) == {*ops.names(), *twice}
    assert {p.mismatch for p in found.values()} == {None}
    assert all(p.comparisons for p in found.values())


def test_selftest_finds_a_kernel_that_differs(monkeypatch):
    right = selftest.REFERENCE["sign_encode"]

    def wrong(x, segments, block_size, residual, gain, payload):
        right(x, segments, block_size, residual, gain, payload)
        payload[-1] ^= 1

    monkeypatch.setitem(selftest.REFERENCE, "sign_encode", wrong)
    found = {p.op: p.mismatch for p in selftest.check_kernels(CPU, ["sign"])}
    assert found["sign_encode"].startswith("1 of ")
    assert found["sign_decode"] is None
