"""Which back end runs an op on which device, and what is said of the others."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gradwire.errors import BackendError
from gradwire.kernels import cuda, ops, select


@pytest.fixture(autouse=True)
def _fresh():
    cuda.missing.cache_clear()
    yield
    cuda.missing.cache_clear()


def test_without_a_device_the_reason_is_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.missing() == "no CUDA device was found"
    choices = select.choose("auto", cuda.missing(), "triton", cuda.OPS)
    assert {(c.backend, c.reason) for c in choices} == {("reference", "no CUDA device was found")}


def test_old_devices_and_missing_triton_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    assert "7.0, 8.0 is needed" in cuda.missing()
    cuda.missing.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda _: None)
    assert "pip install triton" in cuda.missing()


def test_with_a_device_each_op_has_a_kernel_or_a_reason():
    choices = select.choose("auto", None, "triton", cuda.OPS)
    assert {c.op for c in choices if c.backend == "triton"} == set(cuda.OPS)
    assert set(cuda.OPS) <= set(ops.names())
    others = {c.op: c.reason for c in choices if c.backend == "reference"}
    assert others == {op: select.no_kernel("triton", op) for op in others}


def test_triton_asked_for_by_name_must_run():
    with pytest.raises(BackendError, match="no CUDA device"):
        select.choose("triton", "no CUDA device was found", "triton", cuda.OPS)
    assert select.choose("triton", None)[0].backend == "native"


def test_importing_gradwire_does_not_import_triton():
    code = "import sys, gradwire.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_op_with_a_kernel_finds_it():
    pytest.importorskip("triton", reason="triton is not installed")
    assert set(cuda.kernels()) == set(cuda.OPS)
