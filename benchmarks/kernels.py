"""Times the CPU kernels against copy, axpy and eager PyTorch, and judges the goals.

Usage: python benchmarks/kernels.py [--log2-numel 24] [--rounds 9] [--lock FILE]

One thread. All implementations of a row, copy and axpy take turns within each
round, so that ratios hold on a busy machine; read ratios, not absolute times.
Nothing is printed unless the native kernels agree with the reference.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gradwire.kernels import cpu, ops
from gradwire.kernels.select import REFERENCE
from gradwire.spec import Float, Quantize, Sign, Sparse

Call = Callable[[], object]
DENSITY = 0.01


@dataclass(frozen=True)
class Row:
    """One kernel: what it moves, what it is compared with, what it should reach.

    Attributes:
        name: As in the table of goals.
        num_bytes: Bytes a value that must move.
        run: The kernel.
        eager: The same work in eager PyTorch.
        copy_percent: Least percentage of a copy's rate, or None.
        eager_ratio: Least ratio to eager, or None.
        axpy_ratio: Largest multiple of axpy's time, or None.
        before: Untimed work before each call.
    """

    name: str
    num_bytes: float
    run: Call
    eager: Call | None
    copy_percent: float | None = None
    eager_ratio: float | None = None
    axpy_ratio: float | None = None
    before: Call = field(default=lambda: None)


class Bench:
    """Tensors of one size, and the rows that use them."""

    def __init__(self, numel: int) -> None:
        """Fill a bucket and a residual with normal values."""
        generator = torch.Generator().manual_seed(0)
        self.numel = numel
        self.x = torch.randn(numel, generator=generator) * 1e-3
        self.e = torch.randn(numel, generator=generator) * 1e-4
        self.out = torch.zeros(numel)
        self.segments = torch.tensor([[0, 0, numel, 0, 1]])

    def quantize(self, bits: int) -> list[Row]:
        """Return rows of encoding and decoding."""
        payload = torch.zeros(Quantize(bits).num_bytes([self.numel]), dtype=torch.uint8)
        levels = float(2 ** (bits - 1) - 1) if bits > 1 else 0.5

        def encode(residual: Tensor | None) -> Call:
            args = (self.x, self.segments, 7, bits, 256, False, residual, 0.0, payload)
            return lambda: ops.quantize_encode(*args)

        def eager(residual: Tensor | None) -> Call:
            def run() -> Tensor:
                v = (self.x if residual is None else self.x + residual).view(-1, 256)
                scale = v.abs().amax(1, keepdim=True) / levels
                q = torch.floor(v / scale + torch.rand_like(v)).clamp_(-levels, levels)
                if residual is not None:
                    residual.copy_((v - q * scale).view(-1))
                return _pack((q + levels).to(torch.uint8), bits)

            return run

        def eager_decode() -> Tensor:
            codes = _unpack(payload[-self.numel * bits // 8 :], bits)
            scale = payload[: self.numel // 64].view(torch.float32)
            value = (codes.view(-1, 256).float() - levels) * scale[:, None]
            return self.out.add_(value.view(-1))

        args = (payload[None], self.segments, bits, 256, 1.0, True, self.out)
        code = bits / 8 + 4 / 256
        k1 = bits == 4  # noqa: PLR2004 - the default codec has goals of its own
        rows = [
            Row(
                f"q{bits} + residual",
                12 + code,
                encode(self.e),
                eager(self.e),
                125 if k1 else 100,
                20,
                1.5 if k1 else None,
            ),
            Row(
                f"decode q{bits}, add",
                8 + code,
                lambda: ops.quantize_decode(*args),
                eager_decode,
                130 if k1 else 125,
                8,
            ),
        ]
        if k1:
            rows.insert(1, Row("q4", 4 + code, encode(None), eager(None), 75, 25))
        return rows

    def sign(self) -> list[Row]:
        """Return rows of the sign codec."""
        payload = torch.zeros(Sign(1024).num_bytes([self.numel]), dtype=torch.uint8)

        def eager() -> Tensor:
            v = (self.x + self.e).view(-1, 1024)
            scale = v.abs().mean(1, keepdim=True)
            negative = v.signbit()
            self.e.copy_((v - torch.where(negative, -scale, scale)).view(-1))
            return _pack(negative.to(torch.uint8), 1)

        def eager_decode() -> Tensor:
            negative = _unpack(payload[-self.numel // 8 :], 1).view(-1, 1024)
            scale = payload[: self.numel // 256].view(torch.float32)[:, None]
            return self.out.add_(torch.where(negative > 0, -scale, scale).view(-1))

        encode = (self.x, self.segments, 1024, self.e, 0.0, payload)
        decode = (payload[None], self.segments, 1024, 1.0, True, self.out)
        return [
            Row("sign + residual", 12.13, lambda: ops.sign_encode(*encode), eager, 125, 15),
            Row("decode sign, add", 8.13, lambda: ops.sign_decode(*decode), eager_decode, 150, 15),
        ]

    def sparse(self) -> list[Row]:
        """Return the row of threshold and encoding."""
        spec = Sparse(DENSITY, "threshold")
        capacities = torch.tensor([spec.capacity(self.numel)])
        payload = torch.zeros(spec.num_bytes([self.numel]), dtype=torch.uint8)
        kept = spec.kept(self.numel)
        e = torch.zeros(self.numel)

        def run() -> None:
            thresholds = ops.sparse_threshold(self.x, self.segments, e, DENSITY)
            ops.sparse_encode(self.x, self.segments, thresholds, capacities, e, 0.0, payload)

        def eager() -> Tensor:
            e.add_(self.x)
            places = torch.topk(e.abs(), kept, sorted=False).indices
            values = e[places]
            e[places] = 0
            return values

        run()
        found = int(payload[:4].view(torch.int32))
        name = f"sparse 1 %, hits {100 * found / kept:.1f} % of k"
        return [Row(name, 12.1, run, eager, None, 15, before=e.zero_)]

    def floats(self) -> list[Row]:
        """Return rows of float8 and bfloat16."""
        short = torch.zeros(Float("float8_e4m3").num_bytes([self.numel]), dtype=torch.uint8)
        half = torch.zeros(2 * self.numel, dtype=torch.uint8)

        def eager() -> Tensor:
            v = self.x.view(-1, 256)
            scale = v.abs().amax(1, keepdim=True) / 448
            return (v / scale).to(torch.float8_e4m3fn)

        def eager_decode() -> Tensor:
            scale = short[: self.numel // 64].view(torch.float32)[:, None]
            codes = short[-self.numel :].view(torch.float8_e4m3fn).view(-1, 256)
            return self.out.add_((codes.float() * scale).view(-1))

        ops.float_encode(self.x, self.segments, "bfloat16", 256, None, 0.0, half)
        encode = (self.x, self.segments, "float8_e4m3", 256, None, 0.0, short)
        decode = (short[None], self.segments, "float8_e4m3", 256, 1.0, True, self.out)
        add = (half[None], self.segments, "bfloat16", 256, 1.0, True, self.out)
        bfloat16 = half.view(torch.bfloat16)
        return [
            Row("e4m3", 5.02, lambda: ops.float_encode(*encode), eager, 65, 9),
            Row("decode e4m3, add", 9.02, lambda: ops.float_decode(*decode), eager_decode, 125, 9),
            Row(
                "decode bfloat16, add",
                10,
                lambda: ops.float_decode(*add),
                lambda: self.out.add_(bfloat16),
                None,
                5,
            ),
        ]

    def hadamard(self) -> list[Row]:
        """Return the row of the transform; eager takes minutes and is left out."""
        run = (self.x, 1024, self.out)
        return [Row("hadamard 1024", 8, lambda: ops.hadamard(*run), None, 75)]

    def shared(self) -> list[Row]:
        """Return the row of sums of levels."""
        levels = torch.randint(-7, 8, (self.numel,), dtype=torch.int8)
        total = torch.zeros(self.numel, dtype=torch.int16)
        run = (levels[None], True, total)
        return [
            Row(
                "int16 += int8",
                5,
                lambda: ops.shared_sum(*run),
                lambda: total.add_(levels),
                None,
                4,
            )
        ]

    def rows(self) -> list[Row]:
        """Return all rows, in the order of the goals."""
        quantize = [row for bits in (4, 8, 6, 3, 2) for row in self.quantize(bits)]
        dense = [*self.floats(), *self.hadamard(), *self.shared()]
        return [*quantize, *self.sign(), *self.sparse(), *dense]


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Pack plain rows of codes with shifts, as eager code would."""
    per_byte = 8 // bits if 8 % bits == 0 else 1
    parts = codes.view(per_byte, -1)
    packed = parts[0].clone()
    for index in range(1, per_byte):
        packed |= parts[index] << (bits * index)
    return packed


def _unpack(data: Tensor, bits: int) -> Tensor:
    if 8 % bits:
        return data.repeat(-(-8 // bits))[: data.numel() * 8 // bits]
    mask = (1 << bits) - 1
    return torch.cat([(data >> (bits * i)) & mask for i in range(8 // bits)])


def _time(call: Call) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure(row: Row, bench: Bench, rounds: int) -> str:
    """Time a row and its rivals in turns; return its line of the table."""
    source, target = torch.ones(bench.numel), torch.zeros(bench.numel)
    calls = {
        "run": row.run,
        "copy": lambda: target.copy_(source),
        "axpy": lambda: target.add_(source),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    eager: list[float] = []
    for index in range(rounds + 1):
        for name, call in calls.items():
            row.before()
            times[name].append(_time(call))
        if row.eager and index <= 3:  # noqa: PLR2004 - eager is slow and steady
            row.before()
            eager.append(_time(row.eager))
    run, copy, axpy = (values[1:] for values in times.values())
    percent = statistics.median(
        100 * (row.num_bytes / r) / (8 / c) for r, c in zip(run, copy, strict=True)
    )
    multiple = statistics.median(r / a for r, a in zip(run, axpy, strict=True))
    median = statistics.median(run)
    faster = statistics.median(eager[1:]) / median if row.eager else math.nan
    ns = median / bench.numel * 1e9
    low, high = (1e9 * t / bench.numel for t in (min(run), max(run)))
    missed = [
        text
        for text, bad in (
            (f"{row.copy_percent} % of copy", row.copy_percent and percent < row.copy_percent),
            (f"{row.eager_ratio}x eager", row.eager_ratio and faster < row.eager_ratio),
            (f"{row.axpy_ratio}x axpy", row.axpy_ratio and multiple > row.axpy_ratio),
        )
        if bad
    ]
    verdict = "missed: " + ", ".join(missed) if missed else "met"
    return (
        f"{row.name:34s} {ns:7.3f} {low:7.3f}-{high:<7.3f} {row.num_bytes / ns:6.1f} "
        f"{percent:6.0f} {multiple:6.2f} {faster:8.1f}  {verdict}"
    )


def check_parity() -> None:
    """Leave if the native kernels do not agree with the reference.

    Raises:
        SystemExit: There are none, or they differ.
    """
    if cpu.missing():
        sys.exit(f"no native kernels: {cpu.missing()}")
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[1, 0, 4990, 0, 3]])
    for bits in range(1, 9):
        results = []
        for kernel in (REFERENCE["quantize_encode"], cpu.KERNELS["quantize_encode"]):
            payload = torch.empty(Quantize(bits).num_bytes([4990]), dtype=torch.uint8)
            residual = x.flip(0).contiguous()
            kernel(x, segments, 7, bits, 256, False, residual, 0.0, payload)
            results.append((payload, residual))
        if not all(torch.equal(a, b) for a, b in zip(*results, strict=True)):
            sys.exit(f"native and reference differ at {bits} bits: no figures")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log2-numel", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lock", default=str(Path(tempfile.gettempdir()) / "gradwire-bench.lock"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    check_parity()
    numel = 1 << options.log2_numel
    bench = Bench(numel)
    print(
        f"{numel} values, 1 thread, {options.rounds} rounds, {cpu.ISA_LEVELS[cpu.isa()]}, CPU time"
    )
    print(f"{'kernel':34s}   ns/el     (spread)      GB/s  %copy  xaxpy   xeager  goal")
    for row in bench.rows():
        with Path(options.lock).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            print(measure(row, bench, options.rounds), flush=True)


if __name__ == "__main__":
    main()
