"""Checks the Triton kernels on a GPU, then times them against a copy on the same card.

Usage: python benchmarks/gpu.py [--log2-numel 26] [--rounds 20]

Takes a few minutes, most of them for compiling. Rates are bytes that must move
over the median time; read them as shares of the copy's. Nothing is timed
unless every kernel agrees with the reference. The last table adds encoding and
decoding to the forward and backward pass of a model.
"""

from __future__ import annotations

import argparse
import statistics as stats
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradwire.codecs.base import Segments, build
from gradwire.kernels import cuda, forms, ops
from gradwire.key import Key
from gradwire.measure.selftest import check_kernels
from gradwire.spec import BitPlanes, CodecSpec, Float, Quantize, Sign, Sparse

SPECS: dict[str, CodecSpec] = {
    "int8": Quantize(8),
    "int4": Quantize(4),
    "int3": Quantize(3),
    "sign": Sign(),
    "fp8": Float("float8_e4m3"),
    "bf16": Float("bfloat16"),
    "planes8:4": BitPlanes(8, 4),
    "hadamard4": Quantize(4, rotation="hadamard"),
    "threshold:0.01": Sparse(0.01, "threshold"),
}
SENDERS = 4
RANK = 8
THRESHOLDS = (0.5, 1.0, 2.0, 3.0)


class Row(NamedTuple):
    """One kernel: its name, the bytes that must move, the call."""

    name: str
    num_bytes: float
    call: Callable[[], Any]


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call in milliseconds, as the device saw it."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return stats.median(times)


def codec_rows(x: Tensor) -> Iterator[Row]:
    """Encode with feedback, and decode the payloads of several senders."""
    whole, residual, out = Segments.whole(x.numel()), x * 0.1, torch.empty_like(x)
    for name, spec in SPECS.items():
        codec, size = build(spec), spec.num_bytes([x.numel()])
        payloads = torch.stack([codec.encode(x, whole, Key(0, 0, r)) for r in range(SENDERS)])
        yield Row(
            f"encode {name}, feedback",
            12 * x.numel() + size,
            lambda c=codec: c.encode(x, whole, Key(0, 0, 0), residual),
        )
        yield Row(
            f"decode {SENDERS} x {name}",
            SENDERS * size + 4 * x.numel(),
            lambda c=codec, p=payloads: c.decode(p, whole, out, SENDERS),
        )


def form_rows(x: Tensor) -> Iterator[Row]:
    """Run what exists in two forms: as plain code, and as products on matrix units."""
    read, out = 4 * x.numel(), torch.empty_like(x)
    whole, spec = Segments.whole(x.numel()), Sparse(0.01, "threshold")
    capacities = torch.tensor([spec.capacity(x.numel())])
    cuts = torch.full((1,), 2.6, device=x.device)
    payload = torch.empty(spec.num_bytes([x.numel()]), dtype=torch.uint8, device=x.device)
    selection = (x, whole.table, cuts, capacities, None, 0.0, payload)
    matrix = x.view(-1, 4096)
    q = torch.randn(4096, RANK, device=x.device)
    p = ops.orthonormal(ops.thin_product(matrix, q))
    rotated = build(Quantize(4, rotation="hadamard"))
    calls: dict[str, tuple[str, float, Callable[[], Any]]] = {
        "select 1 %": ("prefix_sum", 2 * read, lambda: ops.sparse_encode(*selection)),
        "hadamard 256": ("hadamard", 2 * read, lambda: ops.hadamard(x, 256, out)),
        "encode hadamard4": ("hadamard", read, lambda: rotated.encode(x, whole, Key(0, 0, 0))),
        "statistics": ("statistics", read, lambda: ops.statistics(x, THRESHOLDS)),
        "M Q": ("low_rank", read, lambda: ops.thin_product(matrix, q)),
        "transposed M P": ("low_rank", read, lambda: ops.transposed_product(matrix, p)),
    }
    for name, (step, num_bytes, call) in calls.items():
        for form in forms.FORMS:
            with forms.using(step, form):
                yield Row(f"{name}, {form}", num_bytes, call)


def print_rates(numel: int, rounds: int) -> None:
    """Print each kernel's rate beside the copy's."""
    x = torch.randn(numel, device="cuda")
    target = torch.empty_like(x)
    copy = 8 * numel / median_ms(lambda: target.copy_(x), rounds) / 1e6
    print(f"\n{'kernel':<34}{'ms':>9}{'GB/s':>9}{'of copy':>9}")
    print(f"{'copy':<34}{8 * numel / copy / 1e6:>9.3f}{copy:>9.0f}{1:>9.0%}")
    for row in chain(codec_rows(x), form_rows(x)):
        ms = median_ms(row.call, rounds)
        rate = row.num_bytes / ms / 1e6
        print(f"{row.name:<34}{ms:>9.3f}{rate:>9.0f}{rate / copy:>9.0%}", flush=True)


def print_steps(rounds: int) -> None:
    """Print how much encoding and decoding add to a training step."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    data = torch.randn(512, 2048, device="cuda")
    parameters = list(model.parameters())

    def step() -> Tensor:
        gradients = torch.autograd.grad(model(data).square().mean(), parameters)
        return torch.cat([g.reshape(-1) for g in gradients])

    alone = median_ms(step, rounds)
    numel = sum(p.numel() for p in parameters)
    whole, residual = Segments.whole(numel), torch.zeros(numel, device="cuda")
    out = torch.empty(numel, device="cuda")
    print(f"\nstep of {numel / 1e6:.1f} M parameters: {alone:.3f} ms")
    for name, spec in SPECS.items():
        codec = build(spec)

        def exchanged(codec: Any = codec) -> None:  # noqa: ANN401 - of any kind
            payload = codec.encode(step(), whole, Key(0, 0, 0), residual)
            codec.decode(payload.expand(SENDERS, -1).contiguous(), whole, out, SENDERS)

        both = median_ms(exchanged, rounds)
        print(f"  with {name:<20}{both:>9.3f} ms{both / alone - 1:>+9.1%}", flush=True)


def main() -> None:
    """Check, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log2-numel", type=int, default=26)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    if reason := cuda.missing():
        sys.exit(f"The Triton kernels cannot be measured here: {reason}.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    found = check_kernels(torch.device("cuda"))
    wrong = [f"{p.op}: {p.mismatch}" for p in found if p.mismatch]
    if wrong:
        sys.exit("Kernels disagree with the reference:\n" + "\n".join(wrong))
    print(f"{len(ops.names())} ops agree with the reference, {len(cuda.OPS)} of them in Triton")
    print_rates(1 << arguments.log2_numel, arguments.rounds)
    print_steps(arguments.rounds)


if __name__ == "__main__":
    main()
