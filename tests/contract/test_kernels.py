"""Native kernels give the same bytes and the same residual as the reference."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.kernels import (
    checks,
    cpu,
    ops,
    reference,
    reference_float,
    reference_shared,
    reference_sparse,
)
from gradwire.kernels.select import REFERENCE
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse
from kernel_cases import (
    FEEDBACK,
    FORMATS,
    UNWRITTEN,
    assert_same_bits,
    harsh_values,
    length,
    residual_of,
    stretches,
    values,
)

SIZES = (1, 7, 8, 255, 256, 257, 1000, 1023, 1024, 1025)
LEVELS = range(0 if cpu.missing() else cpu.best_isa() + 1)

pytestmark = pytest.mark.skipif(cpu.missing() is not None, reason=f"native: {cpu.missing()}")


@pytest.fixture(params=LEVELS, ids=lambda level: cpu.ISA_LEVELS[level], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[int]:
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)


def check_encode(
    op: str, segments: Tensor, size: int, details: tuple, x: Tensor, mode: str
) -> Tensor:
    """Run both back ends; return the payload they agree on."""
    feedback, gain = FEEDBACK[mode]
    results = []
    for kernel in (REFERENCE[op], cpu.KERNELS[op]):
        payload = torch.full((size + 32,), UNWRITTEN, dtype=torch.uint8)
        residual = residual_of(x.numel()) if feedback else None
        before = x.clone()
        kernel(x, segments, *details, residual, gain, payload[16 : 16 + size])
        assert_same_bits(before, x)
        results.append((payload, residual))
    (expected, expected_residual), (actual, actual_residual) = results
    assert torch.equal(expected, actual)
    assert (actual[:16] == UNWRITTEN).all()
    assert (actual[16 + size :] == UNWRITTEN).all()
    if feedback:
        assert_same_bits(expected_residual, actual_residual)
    return actual[16 : 16 + size].clone()


def check_decode(op: str, segments: Tensor, details: tuple, payloads: Tensor) -> None:
    for divisor, accumulate in ((1.0, False), (1.0, True), (2.0, True), (3.0, False)):
        outs = []
        for kernel in (REFERENCE[op], cpu.KERNELS[op]):
            out = values(length(segments), 5)
            kernel(payloads, segments, *details, divisor, accumulate, out)
            outs.append(out)
        assert_same_bits(*outs)


def check(
    op: str, segments: Tensor, spec: Quantize | Sign | Float, details: tuple, x: Tensor
) -> None:
    numels = segments[:, 2].tolist()
    encode = (details[0], *details[1:])
    decode = details[1:3] if op == "quantize" else details
    payloads = [
        check_encode(f"{op}_encode", segments, spec.num_bytes(numels), encode, x, mode)
        for mode in FEEDBACK
    ]
    check_decode(f"{op}_decode", segments, decode, torch.stack(payloads))
    check_decode(f"{op}_decode", segments, decode, payloads[1][None])


LAYOUTS = [(n,) for n in SIZES] + [(), SIZES]


@pytest.mark.parametrize("bits", range(1, 9))
def test_quantize_matches_the_reference(bits: int) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, 256)
        x = values(length(segments))
        check("quantize", segments, Quantize(bits), (7, bits, 256, False), x)


@pytest.mark.parametrize("bits", range(1, 9))
def test_quantize_matches_with_other_blocks_and_rounding(bits: int) -> None:
    segments = stretches((3000, 1024, 5), 1024)
    x = values(length(segments))
    for nearest in (False, True):
        check("quantize", segments, Quantize(bits, 1024), (2**63 - 1, bits, 1024, nearest), x)


@pytest.mark.parametrize("bits", range(1, 9))
def test_quantize_matches_on_odd_values(bits: int) -> None:
    segments = stretches((13 * 256 + 9,), 256)
    x = torch.zeros(length(segments))
    x[3:] = harsh_values(x.numel() - 3)
    for nearest in (False, True):
        check("quantize", segments, Quantize(bits), (7, bits, 256, nearest), x)


@pytest.mark.parametrize("bits", range(2, 9))
def test_levels_of_the_norm_match_the_reference(bits: int) -> None:
    for numels, block_size in ((SIZES, 256), ((3000, 1024, 5), 1024), ((13 * 256 + 9,), 256)):
        segments = stretches(numels, block_size)
        for x in (values(length(segments)), harsh_values(length(segments))):
            for nearest in (False, True):
                payloads = []
                for mode, (feedback, gain) in FEEDBACK.items():
                    for kernel in (reference.quantize_encode, cpu.KERNELS["quantize_encode"]):
                        payload = torch.zeros(
                            Quantize(bits, block_size).num_bytes(numels), dtype=torch.uint8
                        )
                        residual = residual_of(x.numel()) if feedback else None
                        details = (7, bits, block_size, nearest, residual, gain, payload, True)
                        kernel(x, segments, *details)
                        payloads.append((mode, payload, residual))
                for (_, a, kept), (_, b, native) in zip(payloads[::2], payloads[1::2], strict=True):
                    assert torch.equal(a, b)
                    if kept is not None:
                        assert_same_bits(kept, native)


@pytest.mark.parametrize(("bits", "planes"), [(8, 8), (8, 4), (8, 2), (5, 3), (2, 2)])
def test_planes_match_the_reference(bits: int, planes: int) -> None:
    for numels in (*LAYOUTS, (13 * 256 + 9,)):
        segments = stretches(numels, 256)
        x = values(length(segments))
        if len(numels) == 1:
            x = harsh_values(length(segments))
        size = BitPlanes(bits, planes).num_bytes(numels)
        details = (7, bits, planes, 256)
        payloads = [
            check_encode("planes_encode", segments, size, details, x, mode) for mode in FEEDBACK
        ]
        check_decode("planes_decode", segments, details[1:], torch.stack(payloads))
        if size and planes > 2:
            payloads[1][:4] = torch.tensor([planes - 1], dtype=torch.int32).view(torch.uint8)
            check_decode("planes_decode", segments, details[1:], torch.stack(payloads))


def test_mixed_payloads_match_the_reference() -> None:
    for numels in (*LAYOUTS, (13 * 256 + 9,)):
        for block_sizes in ((256,) * len(checks.MIXED_FORMATS), (512, 256) * 7):
            segments = stretches(numels, 512)
            payloads = []
            for form, block_size in zip(checks.MIXED_FORMATS, block_sizes, strict=True):
                spec = checks.mixed_spec(form, block_size)
                payload = torch.zeros(spec.num_bytes(numels), dtype=torch.uint8)
                x = values(length(segments), len(payloads))
                match spec:
                    case Float():
                        reference_float.float_encode(
                            x, segments, spec.format, block_size, None, 0.0, payload
                        )
                    case Sign():
                        reference.sign_encode(x, segments, block_size, None, 0.0, payload)
                    case Quantize():
                        details = (7, spec.bits, block_size, False)
                        reference.quantize_encode(x, segments, *details, None, 0.0, payload)
                payloads.append(payload)
            check_decode("mixed_decode", segments, (checks.MIXED_FORMATS, block_sizes), payloads)
            check_decode(
                "mixed_decode",
                segments,
                (checks.MIXED_FORMATS[::-1], block_sizes[::-1]),
                payloads[::-1],
            )


@pytest.mark.parametrize("block_size", [256, 1024])
def test_sign_matches_the_reference(block_size: int) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, block_size)
        x = values(length(segments))
        check("sign", segments, Sign(block_size), (block_size,), x)
    segments = stretches((13 * 256 + 9,), block_size)
    x = torch.zeros(length(segments))
    x[3:] = harsh_values(x.numel() - 3)
    check("sign", segments, Sign(block_size), (block_size,), x)


@pytest.mark.parametrize("format_name", FORMATS)
def test_float_matches_the_reference(format_name: str) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, 256)
        x = values(length(segments))
        check("float", segments, Float(format_name), (format_name, 256), x)
    segments = stretches((13 * 256 + 9,), 256)
    x = torch.zeros(length(segments))
    x[3:] = harsh_values(x.numel() - 3)
    check("float", segments, Float(format_name), (format_name, 256), x)


@pytest.mark.parametrize("density", [0.001, 0.05, 0.5, 1.0])
def test_sparse_matches_the_reference(density: float) -> None:
    spec = Sparse(density, "threshold")
    for numels in [*LAYOUTS, (50_000,)]:
        segments = stretches(numels, 256)
        capacities = torch.tensor([spec.capacity(n) for n in numels], dtype=torch.int64)
        x = values(length(segments))
        check_sparse(segments, spec, capacities, x)
        x[::97] = torch.nan
        x[5::131] = torch.inf
        check_sparse(segments, spec, capacities, x)
        check_sparse(segments, spec, capacities, x, cut=0.01)


def check_sparse(
    segments: Tensor, spec: Sparse, capacities: Tensor, x: Tensor, cut: float | None = None
) -> None:
    for residual in (None, residual_of(x.numel())):
        thresholds = [
            kernel(x, segments, residual, spec.density)
            for kernel in (reference_sparse.sparse_threshold, cpu.KERNELS["sparse_threshold"])
        ]
        assert_same_bits(*thresholds)
    if cut is not None:
        thresholds[0].fill_(cut)
    size = spec.num_bytes(segments[:, 2].tolist())
    payloads = [
        check_encode("sparse_encode", segments, size, (thresholds[0], capacities), x, mode)
        for mode in FEEDBACK
    ]
    check_decode("sparse_decode", segments, (capacities,), torch.stack(payloads))


def odd_peaks(x: Tensor, segments: Tensor, block_size: int) -> Tensor:
    """Peaks above this rank's own, as other ranks would raise them, and a few odd ones."""
    blocks = sum(-(-n // block_size) for n in segments[:, 2].tolist())
    peaks = torch.empty(blocks, dtype=torch.int32)
    reference_shared.shared_peaks(x, segments, None, block_size, peaks)
    raised = peaks.view(torch.float32) * 1.75
    for place, value in ((3, 1e-40), (4, 3e38), (5, torch.nan), (6, torch.inf), (7, 0.0)):
        raised[place : place + 1] = value
    return raised.view(torch.int32)


@pytest.mark.parametrize("block_size", [256, 1024])
def test_shared_peaks_match_the_reference(block_size: int) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, block_size)
        x = harsh_values(length(segments) + 13 * 256)
        blocks = sum(-(-n // block_size) for n in numels)
        for residual in (None, residual_of(x.numel())):
            expected, actual = torch.empty(2, blocks, dtype=torch.int32)
            reference_shared.shared_peaks(x, segments, residual, block_size, expected)
            cpu.KERNELS["shared_peaks"](x, segments, residual, block_size, actual)
            assert_same_bits(expected.view(torch.float32), actual.view(torch.float32))


@pytest.mark.parametrize("bits", range(3, 9))
def test_shared_encode_matches_the_reference(bits: int) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, 256)
        x = values(length(segments))
        peaks = odd_peaks(x, segments, 256)
        for feedback in (False, True):
            results = []
            for kernel in (reference_shared.shared_encode, cpu.KERNELS["shared_encode"]):
                levels = torch.full((sum(numels) + 32,), 85, dtype=torch.int8)
                residual = residual_of(x.numel()) if feedback else None
                inner = levels[16 : 16 + sum(numels)]
                kernel(x, segments, peaks, 7, bits, 256, residual, inner)
                results.append((levels, residual))
            (expected, expected_residual), (actual, actual_residual) = results
            assert torch.equal(expected, actual)
            if feedback:
                assert_same_bits(expected_residual, actual_residual)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_shared_sum_matches_the_reference(
    dtype: torch.dtype,
    accumulate: bool,  # noqa: FBT001 - an op's argument
) -> None:
    generator = torch.Generator().manual_seed(0)
    for numel in (0, *SIZES, 5000):
        levels = torch.randint(-30, 31, (3, numel), generator=generator, dtype=torch.int8)
        expected, actual = torch.full((2, numel), 7, dtype=dtype)
        reference_shared.shared_sum(levels, accumulate, expected)
        cpu.KERNELS["shared_sum"](levels, accumulate, actual)
        assert torch.equal(expected, actual)
        exact = levels.to(torch.int64).sum(0) + 7 * accumulate
        assert torch.equal(actual.to(torch.int64), exact)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_shared_decode_matches_the_reference(dtype: torch.dtype) -> None:
    for numels in LAYOUTS:
        segments = stretches(numels, 256)
        x = values(length(segments))
        peaks = odd_peaks(x, segments, 256)
        sums = values(sum(numels), 9).mul(40).clamp(-100, 100).to(dtype)
        for divisor in (1.0, 2.0, 3.0):
            outs = []
            for kernel in (reference_shared.shared_decode, cpu.KERNELS["shared_decode"]):
                out = values(length(segments), 5)
                kernel(sums, segments, peaks, 4, 256, divisor, out)
                outs.append(out)
            assert_same_bits(*outs)


@pytest.mark.parametrize("block_size", [2**k for k in range(13)])
def test_hadamard_matches_the_reference(block_size: int) -> None:
    x = values(4096 * 2 + 3)[3:]
    outs = [torch.empty(x.numel()), torch.empty(x.numel())]
    reference.hadamard(x, block_size, outs[0])
    cpu.KERNELS["hadamard"](x, block_size, outs[1])
    assert_same_bits(*outs)
    in_place = x.clone()
    cpu.KERNELS["hadamard"](in_place, block_size, in_place)
    assert_same_bits(outs[0], in_place)


def test_every_op_has_a_native_kernel_or_a_reason() -> None:
    products = {"orthonormal", "statistics", "thin_product", "transposed_product"}  # torch's own
    assert set(ops.names()) - set(cpu.KERNELS) == {"sparse_topk_encode", *products}
