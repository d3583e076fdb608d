"""Triton kernels against the reference, on any device: in the interpreter, or on a card.

Kernels are called directly; on the CPU `interpreter.install` must have run.
"""

from __future__ import annotations

import torch

from gradwire.kernels import checks, cuda, forms, reference
from gradwire.kernels.select import REFERENCE
from gradwire.kernels.triton import hadamard, low_rank, statistics
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse
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
    decoding = (
        details[1:-1]
        if op in ("quantize", "rotated")
        else details[1:]
        if op == "planes"
        else details
    )
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


def selection(device, form):
    """Few slots and many, for values of which some are not finite."""
    with forms.using("prefix_sum", form):
        _selects(device)


def _selects(device):
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


def rotation(device, block_size, form="plain"):
    """As products on matrix units, a few values fall to the neighbouring level."""
    x = values(3 * block_size + 77)
    x[-40:] *= 1e-30
    x[block_size + 5] = torch.nan
    segments = torch.tensor([[0, 0, x.numel(), 2 * block_size, 9]])
    spec = Quantize(4, block_size, rotation="hadamard")
    details = (7, 4, block_size, False)
    if form == "plain":
        _agrees("rotated", segments, spec, details, x, device, ("owed", "gain"))
        return
    with forms.using("hadamard", "matrix"):
        payload = torch.empty(spec.num_bytes([x.numel()]), dtype=torch.uint8, device=device)
        residual = torch.zeros_like(x, device=device)
        encode, decode = (cuda.kernels()[f"rotated_{name}"] for name in ("encode", "decode"))
        encode(x.to(device), segments, *details, residual, 0.0, payload)
        out = torch.empty_like(residual)
        decode(payload[None], segments, *details[1:3], 1.0, False, out)
    finite = out.isfinite().cpu()
    assert finite.sum() == x.numel() - block_size
    lost = (x - out.cpu() - residual.cpu())[finite]
    assert lost.norm() < 1e-6 * x[finite].norm()
    assert 0.02 < residual.cpu()[finite].norm() / x[finite].norm() < 0.5


def norms(device, block_size):
    segments, x = _odd_bucket() if block_size == 256 else _bucket(block_size)
    spec = Quantize(4, block_size, scale="l2")
    size = spec.num_bytes(segments[:, 2].tolist())
    kernels = {"quantize_encode": REFERENCE["quantize_encode"]}
    results = []
    for kernel, where in ((kernels["quantize_encode"], "cpu"), (_l2_kernel(), device)):
        payload = torch.zeros(size, dtype=torch.uint8, device=where)
        residual = residual_of(x.numel()).to(where)
        details = (7, 4, block_size, False, residual, 0.0, payload, True)
        kernel(x.to(where), segments, *details)
        results.append((payload.cpu(), residual.cpu()))
    assert torch.equal(results[0][0], results[1][0])
    assert_same_bits(results[0][1], results[1][1])


def _l2_kernel():
    return cuda.kernels()["quantize_encode"]


def bit_planes(device, bits, planes, block_size=256):
    segments, x = _bucket(block_size)
    spec = BitPlanes(bits, planes, block_size)
    details = (7, bits, planes, block_size)
    modes = ("owed", "gain") if bits == 8 else ("none", "owed")
    _agrees("planes", segments, spec, details, x, device, modes)
    segments, x = _odd_bucket()
    spec = BitPlanes(bits, planes)
    _agrees("planes", segments, spec, (7, bits, planes, 256), x, device, ("owed",))


def mixtures(device, formats, block_sizes):
    """Payloads of several codecs, of stretches that begin anywhere."""
    longest = max(block_sizes)
    for segments, x in (_bucket(longest), _odd_bucket()):
        if segments[0, 3] % longest:
            continue
        payloads = [
            _mixed_payload(form, size, segments, x)
            for form, size in zip(formats, block_sizes, strict=True)
        ]
        for divisor, accumulate in ((3.0, False), (1.0, True)):
            results = []
            for kernel, where in (
                (REFERENCE["mixed_decode"], "cpu"),
                (cuda.kernels()["mixed_decode"], device),
            ):
                out = values(length(segments), 5).to(where)
                moved = [payload.to(where) for payload in payloads]
                kernel(moved, segments, formats, block_sizes, divisor, accumulate, out)
                results.append(out.cpu())
            assert_same_bits(*results)


def _mixed_payload(form, block_size, segments, x):
    spec = checks.mixed_spec(form, block_size)
    payload = torch.zeros(spec.num_bytes(segments[:, 2].tolist()), dtype=torch.uint8)
    details = {
        Float: lambda: (spec.format, block_size),
        Sign: lambda: (block_size,),
        Quantize: lambda: (7, spec.bits, block_size, False),
    }[type(spec)]()
    REFERENCE[f"{spec.id}_encode"](x, segments, *details, None, 0.0, payload)
    return payload


def butterflies(device, block_size):
    x = values(8192)
    expected, out = torch.empty_like(x), torch.empty_like(x, device=device)
    reference.hadamard(x, block_size, expected)
    hadamard.hadamard(x.to(device), block_size, out)
    assert_same_bits(expected, out.cpu())
    with forms.using("hadamard", "matrix"):
        hadamard.hadamard(x.to(device), block_size, out)
    assert (out.cpu() - expected).norm() < 1e-6 * expected.norm()


def measures(device, form):
    for numel in (20_001, 1):
        x, cuts = values(numel), [0.1, 0.5, 1.0, 4.0]
        with forms.using("statistics", form):
            found = statistics.statistics(x.to(device), cuts).cpu()
        expected = REFERENCE["statistics"](x, cuts)
        assert (found[:3] - expected[:3]).abs().max() < 1e-5 * expected[2]
        assert torch.equal(found[3:], expected[3:])


def thin_products(device, form):
    m, q = values(150 * 70).view(150, 70), values(70 * 5, 1).view(70, 5)
    with forms.using("low_rank", form):
        product = low_rank.thin_product(m.to(device), q.to(device))
        p = low_rank.orthonormal(product)
        turned = low_rank.transposed_product(m.to(device), p).cpu()
    p = p.cpu().double()
    exact = m.double() @ q.double()
    assert (product.cpu() - exact).norm() < 1e-5 * exact.norm()
    assert (p.T @ p - torch.eye(5)).abs().max() < 1e-5
    basis = torch.linalg.qr(exact).Q
    assert (p @ p.T - basis @ basis.T).norm() < 1e-4
    expected = m.double().T @ p
    assert (turned - expected).norm() < 1e-5 * expected.norm()
