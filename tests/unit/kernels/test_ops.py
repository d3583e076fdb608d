"""Schemas, checks and edge semantics of the ops, whatever back end serves them."""

import pytest
import torch
from torch import Tensor

from gradwire.errors import BackendError, GradwireError, PayloadError, SpecError
from gradwire.kernels import cpu, ops, select
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse

NUMEL = 700
SEGMENTS = torch.tensor([[5, 2, NUMEL, 0, 9]])


def bucket(seed: int = 0) -> Tensor:
    return torch.randn(NUMEL + 20, generator=torch.Generator().manual_seed(seed))


def quantized(x: Tensor, residual: Tensor | None = None, bits: int = 4, stream: int = 1) -> Tensor:
    payload = torch.empty(Quantize(bits).num_bytes([NUMEL]), dtype=torch.uint8)
    ops.quantize_encode(x, SEGMENTS, stream, bits, 256, False, residual, 0.0, payload)
    return payload


def decoded(payload: Tensor, bits: int = 4) -> Tensor:
    out = torch.full((NUMEL + 20,), torch.nan)
    ops.quantize_decode(payload[None], SEGMENTS, bits, 256, 1.0, False, out)
    return out[5 : 5 + NUMEL]


def arguments() -> dict[str, tuple]:
    capacities = torch.tensor([Sparse(0.05, "threshold").capacity(NUMEL)])
    sizes = {
        "quantize": Quantize(4).num_bytes([NUMEL]),
        "planes": BitPlanes(8, 4).num_bytes([NUMEL]),
        "sign": Sign(256).num_bytes([NUMEL]),
        "float": Float("float16").num_bytes([NUMEL]),
        "sparse": Sparse(0.05, "threshold").num_bytes([NUMEL]),
    }
    blank = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
    blank["planes"][0] = 3  # announced
    x, e, out = bucket(), bucket(1), bucket(2)
    tail = (1.0, False, out)
    peaks, levels = torch.ones(3, dtype=torch.int32), torch.zeros(NUMEL, dtype=torch.int8)
    sums = torch.zeros(NUMEL, dtype=torch.int16)
    return {
        "quantize_encode": (x, SEGMENTS, 1, 4, 256, False, e, 0.0, blank["quantize"]),
        "quantize_decode": (blank["quantize"][None], SEGMENTS, 4, 256, *tail),
        "planes_encode": (x, SEGMENTS, 1, 8, 4, 256, e, 0.0, blank["planes"]),
        "planes_decode": (blank["planes"][None], SEGMENTS, 8, 4, 256, *tail),
        "mixed_decode": (
            *([blank["quantize"], blank["sign"]], SEGMENTS, ["quantize4", "sign"], [256, 256]),
            *tail,
        ),
        "sign_encode": (x, SEGMENTS, 256, e, 0.0, blank["sign"]),
        "sign_decode": (blank["sign"][None], SEGMENTS, 256, *tail),
        "float_encode": (x, SEGMENTS, "float16", 256, e, 0.0, blank["float"]),
        "float_decode": (blank["float"][None], SEGMENTS, "float16", 256, *tail),
        "sparse_threshold": (x, SEGMENTS, e, 0.05),
        "sparse_encode": (
            *(x, SEGMENTS, torch.ones(1), capacities, e, 0.0),
            blank["sparse"],
        ),
        "sparse_topk_encode": (x, SEGMENTS, capacities, e, 0.0, blank["sparse"]),
        "sparse_decode": (blank["sparse"][None], SEGMENTS, capacities, *tail),
        "shared_peaks": (x, SEGMENTS, e, 256, peaks),
        "shared_encode": (x, SEGMENTS, peaks, 1, 4, 256, e, levels),
        "shared_sum": (levels[None], True, sums),
        "shared_decode": (sums, SEGMENTS, peaks, 4, 256, 2.0, out),
        "hadamard": (x[:512], 256, out[:512]),
        "rotated_encode": (x, SEGMENTS, 1, 4, 256, False, e, 0.0, blank["quantize"]),
        "rotated_decode": (blank["quantize"][None], SEGMENTS, 4, 256, *tail),
        "statistics": (x, [0.5, 1.0]),
        "thin_product": (x.view(24, 30), e[:60].view(30, 2)),
        "transposed_product": (x.view(24, 30), e[:48].view(24, 2)),
        "orthonormal": (x[:48].view(24, 2),),
    }


@pytest.mark.parametrize("name", ops.names())
def test_op_passes_opcheck(name: str) -> None:
    torch.library.opcheck(
        getattr(torch.ops.gradwire, name).default,
        arguments()[name],
    )


def test_wrong_dtype_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(SpecError, match=r"x='torch\.float64"):
        quantized(bucket().double())


def test_wrong_size_is_refused_with_both_sizes() -> None:
    payload = torch.empty(17, dtype=torch.uint8)
    with pytest.raises(PayloadError, match="17 bytes where"):
        ops.quantize_encode(bucket(), SEGMENTS, 1, 4, 256, False, None, 0.0, payload)


def test_stretch_beyond_the_bucket_is_refused() -> None:
    with pytest.raises(SpecError, match="inside a bucket of 100 values"):
        quantized(bucket()[:100])


def test_malformed_sparse_payload_is_refused() -> None:
    payload, segments, capacities, *tail = arguments()["sparse_decode"]
    payload[0, :4] = torch.tensor([2], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(GradwireError, match="not ascending"):
        ops.sparse_decode(payload, segments, capacities, *tail)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [1.0, 3e-38, 1e38, 0.0])
def test_error_stays_below_one_step_at_any_size(bits: int, size: float) -> None:
    x = bucket().clamp(-1, 1) * size
    error = (decoded(quantized(x, bits=bits), bits) - x[5 : 5 + NUMEL]).abs().max()
    step = 1.0 if bits == 1 else 1 / (2 ** (bits - 1) - 1)
    assert error <= 1.001 * size * max(step, 2.0 if bits == 1 else 0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_largest_values_survive_wherever_their_scale_fits(bits: int) -> None:
    x = bucket().clamp(-1, 1) * 3e38
    result = decoded(quantized(x, bits=bits), bits)
    assert bool(result.isfinite().all()) is (bits > 1)  # the scale of 1 bit is twice the peak


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_block_that_is_not_finite_stays_so_and_keeps_its_residual(value: float) -> None:
    x, residual = bucket(), bucket(1)
    before = residual.clone()
    x[5 + 300] = value
    out = decoded(quantized(x, residual))
    assert not out[256:512].isfinite().any()
    assert out[:256].isfinite().all()
    assert torch.equal(residual[2 + 256 : 2 + 512], before[2 + 256 : 2 + 512])


def test_residual_is_what_was_lost() -> None:
    x, residual = bucket(), bucket(1)
    owed = x[5 : 5 + NUMEL] + residual[2 : 2 + NUMEL]
    out = decoded(quantized(x, residual))
    assert torch.equal(residual[2 : 2 + NUMEL], owed - out)


@pytest.mark.parametrize("bits", range(1, 9))
def test_random_rounding_is_unbiased(bits: int) -> None:
    x = bucket()
    mean = torch.stack([decoded(quantized(x, bits=bits, stream=s), bits) for s in range(200)])
    error = (mean.mean(0) - x[5 : 5 + NUMEL]).mean()
    deviation = mean.std(0).mean() / (200 * NUMEL) ** 0.5
    assert error.abs() < 5 * deviation


@pytest.mark.parametrize(
    "draw",
    [torch.randn, torch.rand, lambda n: torch.randn(n) ** 3, lambda n: torch.randn(n).exp()],
    ids=["normal", "uniform", "heavy", "lognormal"],
)
def test_threshold_keeps_about_the_wanted_count(draw) -> None:
    torch.manual_seed(0)
    x = draw(1 << 18)
    whole = torch.tensor([[0, 0, x.numel(), 0, 0]])
    cut = ops.sparse_threshold(x, whole, None, 0.01)
    assert abs(int((x.abs() > cut).sum()) - 0.01 * x.numel()) < 0.05 * 0.01 * x.numel()


def test_choice_of_a_missing_back_end_is_an_error_only_by_name() -> None:
    assert {c.backend for c in select.choose("auto", "no compiler")} == {"reference"}
    with pytest.raises(BackendError, match="no compiler"):
        select.choose("native", "no compiler")
    with pytest.raises(SpecError, match="GRADWIRE_BACKEND"):
        select.choose("gpu", None)


def test_report_names_every_op() -> None:
    report = select.report()
    assert [choice.op for choice in report.choices] == list(ops.names())
    native = any(choice.backend == "native" for choice in report.choices)
    assert report.isa == (cpu.ISA_LEVELS[cpu.isa()] if native else None)


@pytest.mark.parametrize("name", ["shared_peaks", "shared_encode", "shared_decode"])
@pytest.mark.parametrize("table", ["native", "reference"])
def test_peaks_that_do_not_fit_the_blocks_are_refused(name: str, table: str) -> None:
    if table == "native" and cpu.missing():
        pytest.skip(f"native: {cpu.missing()}")
    kernel = (cpu.KERNELS if table == "native" else select.REFERENCE)[name]
    given = list(arguments()[name])
    given[4 if name == "shared_peaks" else 2] = torch.ones(4, dtype=torch.int32)
    with pytest.raises(SpecError, match=r"peaks=\[4\] is not \[3\], one for each block"):
        kernel(*given)


@pytest.mark.parametrize("table", ["native", "reference"])
def test_levels_that_do_not_fit_the_values_are_refused(table: str) -> None:
    if table == "native" and cpu.missing():
        pytest.skip(f"native: {cpu.missing()}")
    kernel = (cpu.KERNELS if table == "native" else select.REFERENCE)["shared_encode"]
    with pytest.raises(SpecError, match=r"levels=\[3\] is not \[700\]"):
        kernel(*arguments()["shared_encode"][:-1], torch.zeros(3, dtype=torch.int8))


def test_sums_of_another_dtype_or_length_are_refused() -> None:
    levels = torch.zeros(2, 5, dtype=torch.int8)
    with pytest.raises(SpecError, match="dtype of total"):
        ops.shared_sum(levels, False, torch.zeros(5))
    with pytest.raises(SpecError, match=r"levels=\[2, 5\] is not rows of 4"):
        ops.shared_sum(levels, False, torch.zeros(4, dtype=torch.int16))
