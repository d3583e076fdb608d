"""Triton kernels against the reference, on any device: in the interpreter, or on a card.

Kernels are called directly; on the CPU `interpreter.install` must have run.
"""

from __future__ import annotations

import torch

from gradwire.kernels import cuda, reference
from gradwire.kernels.select import REFERENCE
from gradwire.kernels.triton import hadamard, low_rank, sparse, statistics
from gradwire.spec import Float, Quantize, Sign, Sparse
from kernel_cases import (
    FEEDBACK,
    UNWRITTEN,
    assert_same_bits,
    harsh_values,
    length,
    residual_of,
    stretches,
    values,
)

NUMELS = (2100, 257, 7)
"""One whole tile and a ragged one, a ragged group, and a few values."""


def _encoded(op, segments, details, size, x, mode, device):
    """Encode with the kernel and with the reference; return the payload they agree on."""
    has_residual, gain = FEEDBACK[mode]
    results = []
    for kernel, where in ((REFERENCE[op], "cpu"), (cuda.kernels()[op], device)):
        payload = torch.full((size + 32,), UNWRITTEN, dtype=torch.uint8, device=where)
        residual = residual_of(x.numel()).to(where) if has_residual else None
        moved = [
            d.to(where) if isinstance(d, torch.Tensor) and d.is_floating_point() else d
            for d in details
        ]
        kernel(x.to(where), segments, *moved, residual, gain, payload[16 : 16 + size])
        results.append((payload.cpu(), residual))
    (expected, expected_residual), (actual, actual_residual) = results
    assert torch.equal(expected, actual)
    if has_residual:
        assert_same_bits(expected_residual, actual_residual.cpu())
    return actual[16 : 16 + size].clone()


def _decodes_alike(op, segments, details, payloads, device):
    for divisor, accumulate in ((3.0, False), (2.0, True)):
        results = []
        for kernel, where in ((REFERENCE[op], "cpu"), (cuda.kernels()[op], device)):
            out = values(length(segments), 5).to(where)
            kernel(payloads.to(where), segments, *details, divisor, accumulate, out)
            results.append(out.cpu())
        assert_same_bits(*results)


def _agrees(op, segments, spec, details, x, device, modes=tuple(FEEDBACK)):
    size = spec.num_bytes(segments[:, 2].tolist())
    payloads = [
        _encoded(f"{op}_encode", segments, details, size, x, mode, device) for mode in modes
    ]
    decoding = details[1:3] if op == "quantize" else details
    _decodes_alike(f"{op}_decode", segments, decoding, torch.stack(payloads), device)


def _bucket(block_size, numels=NUMELS):
    segments = stretches(numels, block_size)
    return segments, values(length(segments))


def _odd_bucket():
    """Stretches that begin at multiples of 16 bytes, of values that are zero, huge or none."""
    segments = torch.tensor([[4, 8, 13 * 256 + 9, 512, -5]])
    x = torch.zeros(length(segments))
    x[4:] = harsh_values(x.numel() - 4)
    return segments, x


def quantize(device, bits):
    segments, x = _bucket(256)
    _agrees("quantize", segments, Quantize(bits), (7, bits, 256, False), x, device)
    segments, x = _odd_bucket()
    nearest = bits % 2 == 0
    details = (2**63 - 1, bits, 256, nearest)
    _agrees("quantize", segments, Quantize(bits), details, x, device, ("owed",))


def long_blocks(device, block_size):
    segments, x = _bucket(block_size)
    details = (7, 3, block_size, False)
    _agrees("quantize", segments, Quantize(3, block_size), details, x, device, ("owed", "gain"))
    _agrees("sign", segments, Sign(block_size), (block_size,), x, device, ("owed",))
    spec = Float("float8_e4m3", block_size)
    _agrees("float", segments, spec, (spec.format, block_size), x, device, ("owed",))


def sign(device):
    segments, x = _bucket(256)
    _agrees("sign", segments, Sign(256), (256,), x, device)
    segments, x = _odd_bucket()
    _agrees("sign", segments, Sign(256), (256,), x, device, ("owed",))


def floats(device, format_name):
    segments, x = _bucket(256)
    _agrees("float", segments, Float(format_name), (format_name, 256), x, device)
    segments, x = _odd_bucket()
    _agrees("float", segments, Float(format_name), (format_name, 256), x, device, ("owed",))


def thresholds(device, density):
    segments, x = _bucket(256)
    x[::97] = torch.nan
    for residual in (None, residual_of(x.numel())):
        found = cuda.kernels()["sparse_threshold"](
            x.to(device), segments, None if residual is None else residual.to(device), density
        )
        expected = REFERENCE["sparse_threshold"](x, segments, residual, density)
        assert_same_bits(expected, found.cpu())


def selection(device, form, monkeypatch):
    """Few slots and many, for values of which some are not finite."""
    monkeypatch.setitem(
        cuda.kernels(), "sparse_encode", lambda *args: sparse.sparse_encode(*args, form=form)
    )
    segments, x = _bucket(256)
    x[5::131] = torch.inf
    spec = Sparse(0.05, "threshold")
    capacities = torch.tensor([spec.capacity(n) for n in NUMELS])
    size = spec.num_bytes(NUMELS)
    payloads = []
    for cut, mode in ((1.5, "none"), (0.01, "owed"), (1.5, "gain")):
        details = (torch.full((3,), cut), capacities)
        payloads.append(_encoded("sparse_encode", segments, details, size, x, mode, device))
    _decodes_alike("sparse_decode", segments, (capacities,), torch.stack(payloads), device)


def butterflies(device, block_size):
    x = values(8192)
    expected, out = torch.empty_like(x), torch.empty_like(x, device=device)
    reference.hadamard(x, block_size, expected)
    hadamard.hadamard(x.to(device), block_size, out)
    assert_same_bits(expected, out.cpu())
    hadamard.hadamard(x.to(device), block_size, out, form="matrix")
    assert (out.cpu() - expected).norm() < 1e-6 * expected.norm()


def measures(device, form):
    x = values(70_001)
    cuts = (0.1, 0.5, 1.0, 4.0)
    found = statistics.statistics(x.to(device), cuts, form)
    exact = x.double()
    for name, expected in (
        ("sum", exact.sum()),
        ("squares", exact.square().sum()),
        ("magnitudes", exact.abs().sum()),
    ):
        error = (getattr(found, name).cpu() - expected).abs()
        assert error < 1e-5 * exact.abs().sum(), name
    assert found.peak.cpu() == x.abs().max()
    assert found.counts.tolist() == [int((x.abs() > cut).sum()) for cut in cuts]


def thin_products(device, form):
    m, q = values(150 * 70).view(150, 70), values(70 * 5, 1).view(70, 5)
    p = low_rank.orthonormal_product(m.to(device), q.to(device), form).cpu().double()
    assert (p.T @ p - torch.eye(5)).abs().max() < 1e-5
    basis = torch.linalg.qr(m.double() @ q.double()).Q
    assert (p @ p.T - basis @ basis.T).norm() < 1e-4
    product = low_rank.transposed_product(m.to(device), p.float().to(device), form).cpu()
    expected = m.double().T @ p
    assert (product - expected).norm() < 1e-5 * expected.norm()
