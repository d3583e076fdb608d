"""On a card, Triton kernels give the reference's bytes: what the interpreter cannot show."""

from __future__ import annotations

import pytest
import torch

from gradwire.kernels import checks, cuda, forms, ops, select
from gradwire.measure.selftest import check_kernels
from kernel_cases import FORMATS

pytestmark = pytest.mark.skipif(cuda.missing() is not None, reason=f"triton: {cuda.missing()}")
DEVICE = "cuda"
FORMS = ("plain", "matrix")


@pytest.fixture
def parity():
    return pytest.importorskip("parity")


@pytest.mark.parametrize("bits", range(1, 9))
def test_quantize_matches_the_reference(parity, bits):
    parity.quantize(DEVICE, bits)


@pytest.mark.parametrize("block_size", [768, 1024, 4096, 65536])
def test_longer_blocks_match_the_reference(parity, block_size):
    parity.long_blocks(DEVICE, block_size)


def test_sign_matches_the_reference(parity):
    parity.sign(DEVICE)


@pytest.mark.parametrize("format_name", FORMATS)
def test_float_matches_the_reference(parity, format_name):
    parity.floats(DEVICE, format_name)


@pytest.mark.parametrize("density", [0.01, 0.5])
def test_thresholds_match_the_reference(parity, density):
    parity.thresholds(DEVICE, density)


@pytest.mark.parametrize("form", FORMS)
def test_selection_matches_the_reference(parity, form):
    parity.selection(DEVICE, form)


@pytest.mark.parametrize("block_size", [256, 1024, 65536])
def test_levels_of_norms_match_the_reference(parity, block_size):
    parity.norms(DEVICE, block_size)


@pytest.mark.parametrize(("bits", "planes"), [(8, 4), (8, 8), (5, 3), (2, 2)])
def test_bit_planes_match_the_reference(parity, bits, planes):
    parity.bit_planes(DEVICE, bits, planes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block_size", [256, 512, 1024, 4096])
def test_rotated_levels_match_the_reference(parity, block_size, form):
    parity.rotation(DEVICE, block_size, form)


def test_mixed_payloads_match_the_reference(parity):
    formats = list(checks.MIXED_FORMATS)
    parity.mixtures(DEVICE, formats, [256] * len(formats))


@pytest.mark.parametrize("block_size", [2**k for k in range(13)])
def test_hadamard_matches_the_reference(parity, block_size):
    parity.butterflies(DEVICE, block_size)


@pytest.mark.parametrize("form", FORMS)
def test_statistics_match_float64(parity, form):
    parity.measures(DEVICE, form)


@pytest.mark.parametrize("form", FORMS)
def test_thin_products_match_float64(parity, form):
    parity.thin_products(DEVICE, form)


def test_ops_run_the_triton_kernels():
    assert {c.op for c in select.cuda_choices() if c.backend == "triton"} == set(cuda.OPS)


def test_every_kernel_agrees_on_the_card():
    found = check_kernels(torch.device(DEVICE))
    assert {parity.op for parity in found} >= set(ops.names())
    assert sum(", " in parity.op for parity in found) == sum(map(len, forms.OPS.values()))
    assert [p for p in found if p.mismatch] == []
