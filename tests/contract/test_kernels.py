"""Native kernels give the same bytes and the same residual as the reference."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.kernels import cpu, ops, reference, reference_float, reference_sparse
from gradwire.kernels.select import REFERENCE
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse

SIZES = (1, 7, 8, 255, 256, 257, 1000, 1023, 1024, 1025)
LEVELS = range(0 if cpu.missing() else cpu.best_isa() + 1)
FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
FEEDBACK = {"none": (False, 0.0), "owed": (True, 0.0), "gain": (True, 0.75)}
UNWRITTEN = 0xA5

pytestmark = pytest.mark.skipif(cpu.missing() is not None, reason=f"native: {cpu.missing()}")


@pytest.fixture(params=LEVELS, ids=lambda level: cpu.ISA_LEVELS[level], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[int]:
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)


def stretches(numels: tuple[int, ...], block_size: int) -> Tensor:
    """Stretches with odd gaps, so that none of them is aligned."""
    rows, offset, residual_offset = [], 3, 1
    for index, numel in enumerate(numels):
        rows.append((offset, residual_offset, numel, index * block_size, 1234567891011 * index - 5))
        offset += numel + 5
        residual_offset += numel + 2
    return torch.tensor(rows, dtype=torch.int64).view(-1, 5)


def values(numel: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(2, numel, generator=generator)
    return normal[0] * torch.exp(normal[1])


def harsh_values(numel: int) -> Tensor:
    """Blocks of 256 with every kind of odd content."""
    x = values(numel, 3)
    kinds = (
        0.0,
        -0.0,
        1e-40,
        3e-38,
        1.2e-38,
        1e38,
        3e38,
        1e-25,
        1e25,
        "nan",
        "inf",
        "-inf",
        "huge",
    )
    for index, kind in enumerate(kinds):
        block = x[index * 256 : (index + 1) * 256]
        if isinstance(kind, float):
            block.copy_(block.clamp(-1, 1) * kind)
        else:
            block[min(77, block.numel() - 1) :][:1] = 3.4028e38 if kind == "huge" else float(kind)
    return x


def residual_of(numel: int) -> Tensor:
    return values(numel, 1) * 0.1


def length(segments: Tensor) -> int:
    return int(segments[:, :3].sum(1).max()) + 9 if len(segments) else 9


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    wrong = (a.view(torch.int32) != b.view(torch.int32)) & ~(a.isnan() & b.isnan())
    assert not wrong.any(), f"{int(wrong.sum())} values differ, first at {wrong.nonzero()[0]}"


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
                    for kernel in (reference.quantize_encode, cpu.quantize_encode):
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
        for block_sizes in ((256,) * len(ops.MIXED_FORMATS), (512, 256) * 7):
            segments = stretches(numels, 512)
            payloads = []
            for form, block_size in zip(ops.MIXED_FORMATS, block_sizes, strict=True):
                spec = ops.mixed_spec(form, block_size)
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
            check_decode("mixed_decode", segments, (ops.MIXED_FORMATS, block_sizes), payloads)
            check_decode(
                "mixed_decode",
                segments,
                (ops.MIXED_FORMATS[::-1], block_sizes[::-1]),
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
            for kernel in (reference_sparse.sparse_threshold, cpu.sparse_threshold)
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


@pytest.mark.parametrize("block_size", [2**k for k in range(13)])
def test_hadamard_matches_the_reference(block_size: int) -> None:
    x = values(4096 * 2 + 3)[3:]
    outs = [torch.empty(x.numel()), torch.empty(x.numel())]
    reference.hadamard(x, block_size, outs[0])
    cpu.hadamard(x, block_size, outs[1])
    assert_same_bits(*outs)
    in_place = x.clone()
    cpu.hadamard(in_place, block_size, in_place)
    assert_same_bits(outs[0], in_place)


def test_every_op_has_a_native_kernel_or_a_reason() -> None:
    assert set(ops.names()) - set(cpu.KERNELS) == {"sparse_topk_encode"}
