"""Compares every kernel that runs here with the reference, bit by bit.

Kernels that exist in two forms are compared in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.codecs.base import Segments, build
from gradwire.codecs.mixed import decode_mean
from gradwire.kernels import forms, ops
from gradwire.kernels.select import REFERENCE
from gradwire.key import Key
from gradwire.layout import GROUP, num_blocks
from gradwire.measure.kernels import SPECS, codec_of
from gradwire.spec import CodecSpec, Float, LowRank, Quantize, Sign, Sparse, parse_reducer

_NUMELS = (1, 255, 256, 1000, 65_537)
_MODES = ((False, 0.0), (True, 0.0), (True, 0.75))
_HADAMARD_BLOCKS = (1, 16, 256, 1024, 4096)
_PREFIX = "gradwire::"
_BESIDES = ("qsgd4", "planes8:4", "hadamard4")
"""Codecs whose speed nobody asks for, but whose kernels run."""

_APPROXIMATE = ("statistics", "thin_product", "transposed_product", "orthonormal")
"""Ops whose sums have an order of their own: float32 accuracy is asked of them, not equal
bits. Bases are compared by magnitude, for columns may point either way."""

_TOLERANCE = 1e-4
_LEVEL_TOLERANCE = 0.05
"""Of levels after a rotation by products: a few values fall to the neighbouring one."""

_RANKS = (1, 4, 16)


@dataclass(slots=True)
class Parity:
    """How one kernel compared.

    Attributes:
        op: Its name, with the form where it is not the usual one.
        comparisons: How many calls were compared.
        mismatch: What differed first, or None.
    """

    op: str
    comparisons: int = 0
    mismatch: str | None = None


def check_kernels(device: torch.device, names: Sequence[str] = (*SPECS, *_BESIDES)) -> list[Parity]:
    """Run every codec over sizes and values, and compare each kernel it calls.

    The reference gets copies of a call's arguments, on the CPU; what both wrote
    must agree in every bit. Compilers are known to miscompile, so this is
    worth a minute on a new machine.

    Args:
        device: Whose kernels to check.
        names: Short names of what to run.

    Returns:
        One entry an op, also for those that no codec called; then the ops that
        have another form on this device, in that.

    Example:
        >>> found = check_kernels(torch.device("cpu"), ["sign"])
        >>> [(p.op, p.mismatch) for p in found if p.op.startswith("sign") and p.comparisons]
        [('sign_encode', None), ('sign_decode', None)]
    """
    with ExitStack() as stack, _Comparing() as comparing:
        for step, form in forms.USUAL.items():
            stack.enter_context(forms.using(step, form))
        for x in _inputs(device):
            for spec in _codecs(names):
                _exercise(spec, x)
            _exercise_mixed(x)
            _exercise_shared(x)
        _exercise_transforms(device)
        _exercise_products(device)
    usual = [comparing.found[name] for name in ops.names()]
    return [*usual, *_other_forms(device)]


def _other_forms(device: torch.device) -> Iterator[Parity]:
    """Compare what exists twice in the form that is not the usual one."""
    x = _normal(_NUMELS[-1]).to(device)
    for step in forms.USUAL if device.type != "cpu" else ("hadamard",):
        (form,) = set(forms.FORMS) - {forms.USUAL[step]}
        with forms.using(step, form), _Comparing() as comparing:
            if step == "hadamard":
                comparing.approximate |= set(forms.OPS[step])
                _exercise_transforms(device)
                _exercise(Quantize(4, rotation="hadamard"), x)
            elif step == "prefix_sum":
                _exercise(Sparse(0.01, "threshold"), x)
            else:
                _exercise_products(device)
        for op in forms.OPS[step]:
            found = comparing.found[op]
            yield Parity(forms.line_name(op, form), found.comparisons, found.mismatch)


def _codecs(names: Sequence[str]) -> list[CodecSpec]:
    specs = [parse_reducer(name) for name in names]
    return list(dict.fromkeys(codec_of(s) for s in specs if not isinstance(s, LowRank)))


@dataclass
class _Comparing(TorchDispatchMode):
    """Runs the reference beside each of gradwire's ops, and compares what they wrote."""

    found: dict[str, Parity] = field(
        default_factory=lambda: {name: Parity(name) for name in ops.names()}
    )

    approximate: set[str] = field(default_factory=lambda: set(_APPROXIMATE))

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an op, as torch hands it over
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - the op's result
        name = str(func._schema.name)  # noqa: SLF001 - has no public name
        if not name.startswith(_PREFIX):
            return func(*args, **(kwargs or {}))
        parity = self.found[name.removeprefix(_PREFIX)]
        copies = [_copy(a) for a in args]
        expected = [REFERENCE[parity.op](*copies), *copies]
        actual = [func(*args), *args]
        parity.comparisons += 1
        if parity.mismatch is None:
            compare = _distance if parity.op in self.approximate else _difference
            parity.mismatch = compare(parity.op, expected, actual)
        return actual[0]


def _copy(argument: object) -> object:
    if isinstance(argument, list):
        return [_copy(item) for item in argument]
    return argument.cpu().clone() if isinstance(argument, Tensor) else argument


def _difference(_: str, expected: Sequence[Any], actual: Sequence[Any]) -> str | None:
    for one, other in zip(expected, actual, strict=True):
        if not isinstance(one, Tensor):
            continue
        a, b = (t.cpu().contiguous() for t in (one, other))
        wrong = a.view(torch.uint8) != b.view(torch.uint8)
        if a.is_floating_point():
            either = (a != b) & ~(a.isnan() & b.isnan())
            wrong = either | (torch.signbit(a) != torch.signbit(b)) & ~a.isnan()
        if wrong.any():
            plain = [a for a in actual if not isinstance(a, Tensor)]
            return f"{int(wrong.sum())} of {wrong.numel()} values differ, arguments {plain}"
    return None


def _distance(op: str, expected: Sequence[Any], actual: Sequence[Any]) -> str | None:
    limit = _TOLERANCE
    if op == "rotated_encode":
        limit = _LEVEL_TOLERANCE
        expected, actual = (_with_payload_decoded(call) for call in (expected, actual))
    for one, other in zip(expected, actual, strict=True):
        if isinstance(one, Tensor) and one.is_floating_point():
            a, b = (t.cpu().double().abs() for t in (one, other))
            error = float((a - b).norm() / a.norm().clamp(min=1e-30))
            if not error < limit:
                return f"the relative error is {error:.1e}"
    return None


def _with_payload_decoded(call: Sequence[Any]) -> Sequence[Any]:
    _, x, segments, _, bits, block_size, _, _, _, payload = call
    values = torch.zeros(x.numel())
    rows = payload.cpu()[None]
    REFERENCE["rotated_decode"](rows, segments, bits, block_size, 1.0, False, values)  # noqa: FBT003 - an op's argument
    return [*call[:-1], values]


def _inputs(device: torch.device) -> Iterator[Tensor]:
    for numel in _NUMELS:
        yield _normal(numel).to(device)
    harsh = _normal(_NUMELS[-1])
    for index, value in enumerate((0.0, 1e-40, 1e-25, 1e25, 3e38)):
        harsh[256 * index :][:256] = harsh[256 * index :][:256].clamp(-1, 1) * value
    for index, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        harsh[256 * index + 8192 + 77] = value
    yield harsh.to(device)


def _normal(numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(numel)
    return torch.randn(numel, generator=generator)


def _exercise(spec: CodecSpec, x: Tensor) -> None:
    codec, whole = build(spec), Segments.whole(x.numel(), stream=5)
    for has_residual, gain in _MODES:
        residual = x.roll(1).nan_to_num(0.0, 0.0, 0.0) * 0.1 if has_residual else None
        payload = codec.encode(x, whole, Key(1, 2, 3), residual, gain)
        rows = torch.stack([payload, payload])
        codec.decode(rows, whole, torch.ones_like(x), 2.0, accumulate=not has_residual)


def _exercise_mixed(x: Tensor) -> None:
    """Decode payloads of several codecs, as of senders with bits of their own."""
    codecs = [build(spec) for spec in (Quantize(4), Quantize(7), Sign(), Float("bfloat16"))]
    whole = Segments.whole(x.numel(), stream=5)
    payloads = [codec.encode(x, whole, Key(1, 2, 3)) for codec in codecs]
    decode_mean(codecs, payloads, whole, torch.empty_like(x))


def _exercise_transforms(device: torch.device) -> None:
    x = _normal(2 * max(_HADAMARD_BLOCKS)).to(device)
    for block_size in _HADAMARD_BLOCKS:
        ops.hadamard(x, block_size, torch.empty_like(x))


def _exercise_products(device: torch.device) -> None:
    """Sum a vector, and form the products of one step of low rank."""
    ops.statistics(_normal(_NUMELS[-1]).to(device), [0.5, 1.0, 2.0])
    matrix = _normal(300 * 200).view(300, 200).to(device)
    for rank in _RANKS:
        product = ops.thin_product(matrix, _normal(200 * rank).view(200, rank).to(device))
        ops.transposed_product(matrix, ops.orthonormal(product))


def _exercise_shared(x: Tensor) -> None:
    """Sum the levels of two senders under scales that they share."""
    table, bits, size = Segments.whole(x.numel(), stream=5).table, 6, GROUP
    residual = x.roll(1).nan_to_num(0.0, 0.0, 0.0) * 0.1
    peaks = x.new_empty(num_blocks(x.numel(), size), dtype=torch.int32)
    ops.shared_peaks(x, table, residual, size, peaks)
    levels = x.new_empty(x.numel(), dtype=torch.int8)
    ops.shared_encode(x, table, peaks, Key(1, 2, 3).stream(), bits, size, residual, levels)
    sums = x.new_empty(x.numel(), dtype=torch.int16)
    ops.shared_sum(torch.stack([levels, levels]), False, sums)  # noqa: FBT003 - an op's argument
    ops.shared_decode(sums, table, peaks, bits, size, 2, torch.empty_like(x))
