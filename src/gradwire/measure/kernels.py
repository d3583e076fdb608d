"""Speed of every codec on this device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import gradwire.codecs
from gradwire.codecs.base import Segments, new_payload
from gradwire.comm.base import Steps, complete
from gradwire.hardware import Line
from gradwire.kernels import forms, ops
from gradwire.key import Key
from gradwire.layout import GROUP
from gradwire.measure.fit import fit_line
from gradwire.measure.timing import median_s
from gradwire.reduce.base import Slot, State
from gradwire.reduce.low_rank import LowRankReducer
from gradwire.spec import (
    CodecSpec,
    Entry,
    Float,
    LowRank,
    ReducerSpec,
    Sparse,
    spec_name,
)

SPECS = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2"),
    *(f"int{bits}" for bits in range(8, 0, -1)),
    *(f"nearest{bits}" for bits in range(5, 2, -1)),
    *("sign", "topk", "threshold", "random_k", "low_rank:1", "low_rank:2"),
)
"""Short names of what is measured unless told otherwise."""

SIZES_BYTES = tuple(1 << power for power in (16, 18, 20, 22, 24, 25))
"""Sizes of float32 input: from within the cache to well beyond it."""

_SLOW_S = 0.05
"""From here on a codec is slow enough to be known without larger sizes."""

_COLUMNS = 1024
_THRESHOLDS = (0.5, 1.0, 2.0, 3.0)


def measure_kernels(
    specs: Sequence[ReducerSpec],
    device: torch.device,
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    budget_s: float = 0.02,
) -> dict[str, Line]:
    """Measure encoding (with feedback) and decoding over sizes, and fit lines.

    Args:
        specs: Reducers whose codecs to measure; equal codecs are measured once.
        device: Where.
        sizes_bytes: Of the float32 input.
        budget_s: Time for each step and size; three repetitions at least.

    Returns:
        By step and short name: `"encode int4"`, `"decode int4"`. All products
        of low rank are one line, `"encode low_rank:1"`.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> lines = measure_kernels([parse_reducer("int4")], torch.device("cpu"),
        ...     sizes_bytes=[4096, 65536], budget_s=0.001)
        >>> sorted(lines)
        ['decode int4', 'encode int4']
    """
    lines: dict[str, Line] = {}
    values = _values(max(sizes_bytes) // 4, device)
    for spec in specs:
        name = spec_name(spec)
        if f"encode {name}" in lines:
            continue
        points: dict[str, list[tuple[float, float]]] = {}
        for num_bytes in sizes_bytes:
            calls = _calls(spec, values[: num_bytes // 4])
            times = {step: median_s(call, device, budget_s) for step, call in calls.items()}
            for step, time_s in times.items():
                points.setdefault(step, []).append((num_bytes, time_s))
            if max(times.values()) > _SLOW_S:
                break
        lines.update({f"{step} {name}": fit_line(found) for step, found in points.items()})
    return lines


def measure_forms(
    device: torch.device,
    *,
    sizes_bytes: Sequence[int] = (1 << 18, 1 << 22),
    budget_s: float = 0.01,
) -> dict[str, Line]:
    """Measure steps that exist both as plain code and as products, in both forms.

    On a CPU these are the transforms alone: as SIMD butterflies, and as products
    in the matrix library.

    Args:
        device: Where.
        sizes_bytes: Of the float32 input.
        budget_s: Time for each form and size; three repetitions at least.

    Returns:
        By name, `"hadamard, matrix"`; `gradwire.kernels.forms.faster` reads it.

    Example:
        >>> lines = measure_forms(torch.device("cpu"), sizes_bytes=[4096], budget_s=0.001)
        >>> sorted(lines)
        ['hadamard, matrix', 'hadamard, plain']
    """
    points: dict[str, list[tuple[float, float]]] = {}
    for num_bytes in sizes_bytes:
        for step, call in _form_calls(_values(num_bytes // 4, device)).items():
            for form in forms.FORMS:
                with forms.using(step, form):
                    time_s = median_s(call, device, budget_s)
                name = forms.line_name(step, form)
                points.setdefault(name, []).append((num_bytes, time_s))
    return {name: fit_line(found) for name, found in points.items()}


def codec_of(spec: ReducerSpec) -> CodecSpec:
    """Return how a reducer's values become bytes.

    Example:
        >>> from gradwire.spec import parse_reducer
        >>> codec_of(parse_reducer("bf16")).format
        'bfloat16'
    """
    codec: CodecSpec | None = getattr(spec, "codec", None)
    return codec if codec is not None else Float(getattr(spec, "format", "float32"))


Calls = dict[str, Callable[[], object]]


def _calls(spec: ReducerSpec, x: Tensor) -> Calls:
    """Return what is to be timed: encoding with feedback, decoding one payload."""
    if isinstance(spec, LowRank):
        return _low_rank_calls(spec, x)
    codec = gradwire.codecs.build(codec_of(spec))
    residual = torch.zeros_like(x) if spec.feedback else None
    whole, key = Segments.whole(x.numel()), Key(0, 0, 0)
    payload = codec.encode(x, whole, key, residual)[None]
    out = torch.zeros_like(x)
    return {
        "encode": lambda: codec.encode(x, whole, key, residual),
        "decode": lambda: codec.decode(payload, whole, out, 2.0),
    }


def _form_calls(x: Tensor) -> Calls:
    x = x[: x.numel() // _COLUMNS * _COLUMNS]
    out, matrix = torch.empty_like(x), x.view(-1, _COLUMNS)
    calls: Calls = {"hadamard": lambda: ops.hadamard(x, GROUP, out)}
    if x.device.type == "cpu":
        return calls
    whole, spec = Segments.whole(x.numel()), Sparse(0.01, "threshold")
    capacities = torch.tensor([spec.capacity(x.numel())])
    cuts, payload = x.new_full((1,), 2.6), new_payload(spec, whole, x)
    selection = (x, whole.table, cuts, capacities, None, 0.0, payload)
    thin = matrix[:4].T.contiguous()
    return calls | {
        "prefix_sum": lambda: ops.sparse_encode(*selection),
        "statistics": lambda: ops.statistics(x, _THRESHOLDS),
        "low_rank": lambda: ops.thin_product(matrix, thin),
    }


def _low_rank_calls(spec: LowRank, x: Tensor) -> Calls:
    """Return all products of one matrix, without the exchange between them."""
    entry = Entry(0, (x.numel() // _COLUMNS, _COLUMNS))
    reducer = LowRankReducer(spec)
    part = reducer.part((Slot("w", entry, 0, 0),), _Alone.world_size)
    state, out, group = State(torch.zeros_like(x), {}), torch.empty_like(x), _Alone()
    key = Key(0, 0, 0)
    return {"encode": lambda: complete(reducer.reduce(x, part, state, key, group, out))}


def _values(numel: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(numel, generator=generator).to(device)


class _Alone:
    """Two ranks of which one does not exist: computes as with it, sends nothing."""

    rank, world_size = 0, 2

    def all_reduce(self, data: Tensor, divisor: float = 1.0) -> Steps[None]:
        """Return at once."""
        yield from ()

    def all_gather(self, out: Tensor, data: Tensor) -> Steps[None]:
        """Return at once."""
        yield from ()

    def all_to_all(self, out: Sequence[Tensor], data: Sequence[Tensor]) -> Steps[None]:
        """Return at once."""
        yield from ()
