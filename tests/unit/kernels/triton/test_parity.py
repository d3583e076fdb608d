"""In the interpreter, Triton kernels give the reference's bytes, residuals and means."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import interpreter
import numerics
import parity
import torch
from sanitizer import sanitized

from gradwire.errors import GradwireError, PayloadError, SpecError
from gradwire.kernels import checks, cuda
from gradwire.kernels.triton import floats
from gradwire.spec import BitPlanes
from kernel_cases import FORMATS

interpreter.install()
numerics.install()
FORMS = ("plain", "matrix")


@pytest.mark.parametrize("bits", range(1, 9))
def test_quantize_matches_the_reference(bits):
    parity.quantize("cpu", bits)


@pytest.mark.parametrize("block_size", [768, 1024])
def test_longer_blocks_match_the_reference(block_size):
    parity.long_blocks("cpu", block_size)


def test_sign_matches_the_reference():
    parity.sign("cpu")


@pytest.mark.parametrize("format_name", FORMATS)
def test_float_matches_the_reference(format_name):
    parity.floats("cpu", format_name)


@pytest.mark.parametrize("format_name", ["float8_e4m3", "float8_e5m2"])
def test_native_conversions_match_the_reference(format_name, monkeypatch):
    monkeypatch.setattr(floats, "converts_natively", lambda _: True)
    parity.floats("cpu", format_name)


@pytest.mark.parametrize("density", [0.01, 0.5])
def test_thresholds_match_the_reference(density):
    parity.thresholds("cpu", density)


@pytest.mark.parametrize("form", FORMS)
def test_selection_matches_the_reference(form):
    parity.selection("cpu", form)


@pytest.mark.parametrize("block_size", [256, 1024])
def test_levels_of_norms_match_the_reference(block_size):
    parity.norms("cpu", block_size)


@pytest.mark.parametrize(("bits", "planes", "block_size"), [(8, 4, 256), (5, 5, 768), (2, 2, 256)])
def test_bit_planes_match_the_reference(bits, planes, block_size):
    parity.bit_planes("cpu", bits, planes, block_size)


@pytest.mark.parametrize(("block_size", "form"), [(256, "plain"), (256, "matrix"), (4096, "plain")])
def test_rotated_levels_match_the_reference(block_size, form):
    parity.rotation("cpu", block_size, form)


def test_mixed_payloads_match_the_reference():
    parity.mixtures("cpu", list(checks.MIXED_FORMATS), [256] * len(checks.MIXED_FORMATS))
    parity.mixtures("cpu", ["quantize3", "sign", "bfloat16"], [256, 1024, 512])


def test_planes_that_cannot_be_held_are_refused():
    segments, size = torch.tensor([[0, 0, 100, 0, 0]]), BitPlanes(8, 4).num_bytes([100])
    payload, out = torch.zeros(1, size, dtype=torch.uint8), torch.zeros(100)
    payload[0, 0] = 5
    with pytest.raises(GradwireError, match="5 bit planes"):
        cuda.kernels()["planes_decode"](payload, segments, 8, 4, 256, 1.0, False, out)


@pytest.mark.parametrize("block_size", [1, 2, 16, 128, 4096])
def test_hadamard_matches_the_reference(block_size):
    parity.butterflies("cpu", block_size)


@pytest.mark.parametrize("form", FORMS)
def test_statistics_match_float64(form):
    parity.measures("cpu", form)


@pytest.mark.parametrize("form", FORMS)
def test_thin_products_match_float64(form):
    parity.thin_products("cpu", form)


@pytest.mark.parametrize(
    "case",
    [
        lambda: parity.quantize("cpu", 3),
        lambda: parity.bit_planes("cpu", 2, 2),
        lambda: parity.rotation("cpu", 256),
        lambda: parity.sign("cpu"),
        lambda: parity.floats("cpu", "float8_e4m3"),
        lambda: parity.thresholds("cpu", 0.5),
        lambda: parity.selection("cpu", "plain"),
        lambda: parity.butterflies("cpu", 256),
        lambda: parity.measures("cpu", "plain"),
        lambda: parity.thin_products("cpu", "plain"),
    ],
    ids=[
        *("quantize", "planes", "rotated", "sign", "float", "threshold", "sparse", "hadamard"),
        *("statistics", "low_rank"),
    ],
)
def test_programs_keep_to_their_own_memory(case):
    with sanitized():
        case()


def _sparse_payload(count, places):
    payload = torch.zeros(48, dtype=torch.uint8)
    payload.view(torch.int32)[0] = count
    payload.view(torch.int32)[4 : 4 + len(places)] = torch.tensor(places, dtype=torch.int32)
    return payload[None]


@pytest.mark.parametrize(
    ("count", "places"), [(-1, []), (5, []), (2, [3, 3]), (2, [1, 100]), (1, [-1])]
)
def test_malformed_sparse_payloads_are_refused(count, places):
    segments, out = torch.tensor([[0, 0, 100, 0, 0]]), torch.ones(100)
    decode = cuda.kernels()["sparse_decode"]
    with pytest.raises(GradwireError, match="stretch 0"):
        decode(_sparse_payload(count, places), segments, torch.tensor([4]), 1.0, False, out)
    assert torch.equal(out, torch.ones(100))


def test_wrong_arguments_are_refused():
    encode = cuda.kernels()["quantize_encode"]
    x, payload = torch.zeros(300), torch.zeros(200, dtype=torch.uint8)
    rest = (1, 4, 256, True, None, 0.0)
    with pytest.raises(SpecError, match="segments"):
        encode(x, torch.tensor([[0, 0, 301, 0, 0]]), *rest, payload)
    with pytest.raises(PayloadError):
        encode(x, torch.tensor([[0, 0, 300, 0, 0]]), *rest, payload)
    with pytest.raises(SpecError, match="payload"):
        encode(x, torch.tensor([[0, 0, 256, 0, 0]]), *rest, payload[4:148])


def test_a_written_table_of_segments_is_read_again():
    segments = torch.tensor([[0, 0, 256, 0, 0]])
    encode = cuda.kernels()["quantize_encode"]
    x = torch.cat([torch.zeros(256), torch.ones(256)])
    payloads = torch.zeros(2, 144, dtype=torch.uint8)
    encode(x, segments, 1, 4, 256, True, None, 0.0, payloads[0])
    segments[0, 0] = 256
    encode(x, segments, 1, 4, 256, True, None, 0.0, payloads[1])
    assert not torch.equal(payloads[0], payloads[1])


def test_nothing_to_encode_is_nothing_to_do():
    segments = torch.empty(0, 5, dtype=torch.int64)
    payload = torch.empty(0, dtype=torch.uint8)
    encode, decode = (cuda.kernels()[f"quantize_{name}"] for name in ("encode", "decode"))
    encode(torch.zeros(3), segments, 1, 4, 256, True, None, 0.0, payload)
    decode(payload[None], segments, 4, 256, 1.0, False, torch.zeros(3))
