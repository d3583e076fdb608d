"""Short names of reducers, read and written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from gradwire.errors import SpecError, UnknownIdError
from gradwire.spec.base import CodecSpec, ReducerSpec
from gradwire.spec.codecs import MAX_BITS, BitPlanes, Float, FloatFormat, Quantize, Sign, Sparse
from gradwire.spec.hierarchical import Hierarchical
from gradwire.spec.reducers import AllReduce, Broadcast, LowRank, TwoPhase
from gradwire.spec.shared_scale import SharedScale

_DENSE = ("float32", "bfloat16")
_FLOATS: dict[str, FloatFormat] = {
    "none": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
}
_SELECTIONS: dict[str, Literal["threshold", "exact", "random"]] = {
    "topk": "exact",
    "threshold": "threshold",
    "random_k": "random",
}
_QSGD = {f"qsgd{bits}" for bits in range(2, MAX_BITS + 1)}
_PLANES = {f"planes{bits}" for bits in range(2, MAX_BITS + 1)}
_NEAREST = {f"nearest{bits}" for bits in range(3, MAX_BITS + 1)}
_ROTATED = {f"hadamard{bits}" for bits in range(1, MAX_BITS + 1)}
_TERNARY = 2
"""Bits of levels -1, 0 and 1, which are rounded to nearest: see `Quantize.is_contraction`."""

_SHORT_FORMS = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2"),
    *(f"int{bits}" for bits in range(MAX_BITS, 0, -1)),
    *(f"nearest{bits}" for bits in range(MAX_BITS, 2, -1)),
    *("qsgd4[:block_size]", "planes8[:planes]", "hadamard4[:block_size]"),
    *("sign", "topk[:density]", "threshold[:density]", "random_k[:density]", "low_rank[:rank]"),
)

_REDUCERS = ("broadcast", "two_phase", "shared_scale", "hierarchical[:ranks]")


def parse_reducer(text: str) -> ReducerSpec:
    """Build a reducer spec from its short name.

    Args:
        text: `none`, `bf16`, `fp16`, `fp8`, `int8` ... `int1`, `sign`, `topk`,
            `threshold`, `random_k`, `low_rank`; the last four take a number
            after a colon (`topk:0.001`, `low_rank:4`). `@broadcast`,
            `@two_phase` or `@shared_scale` (`int8` ... `int3`, `fp8`) at the end
            chooses the reducer: `int4@broadcast`. `@hierarchical` after that
            keeps it to the links between nodes, `@hierarchical:8` of 8 ranks.
            `qsgd2` ... `qsgd8` are QSGD as published: L2 norms of blocks of
            512 (or the number after a colon), by broadcast and without
            feedback. `hadamard1` ... `hadamard8` rotate blocks of 256 (or the
            number after a colon) first. `nearest3` ... `nearest8` are levels rounded
            to nearest: half of `int3`'s squared error, which feedback makes up for
            though it is biased. `planes8:4` sends the first 4 bit planes of 8.
            `int2` rounds to nearest and `int1` has no feedback, for with
            stochastic rounding their residuals would grow without end.

    Raises:
        UnknownIdError: No such short name.
        SpecError: The number is no number, or out of range.

    Example:
        >>> parse_reducer("int4")  # doctest: +ELLIPSIS
        TwoPhase(codec=Quantize(bits=4, ...), feedback=True, second=None)
        >>> parse_reducer("none@hierarchical:8").ranks_per_node
        8
    """
    if not isinstance(text, str):
        raise SpecError("spec", text, "a short name, such as int4")
    inner, _, level = text.rpartition("@")
    if level.partition(":")[0] == "hierarchical":
        number = level.partition(":")[2]
        ranks = _whole("Hierarchical.ranks_per_node", text, number, 1) if number else None
        return Hierarchical(parse_reducer(inner), ranks)
    form, _, how = text.partition("@")
    name, _, number = form.partition(":")
    if name == "low_rank" and not how:
        return LowRank(_whole("LowRank.matrix_rank", text, number, 1))
    if form in ("none", "bf16") and not how:
        return AllReduce("float32" if name == "none" else "bfloat16")
    codec = _parse_codec(text, name, number)
    if how == "shared_scale":
        return _shared_scale(codec)
    is_qsgd = isinstance(codec, Quantize) and codec.scale == "l2"
    usual = "broadcast" if is_qsgd or isinstance(codec, (Sparse, BitPlanes)) else "two_phase"
    reducer = how or usual
    if reducer not in ("broadcast", "two_phase"):
        raise UnknownIdError("reducer", reducer, _REDUCERS)
    feedback = _wants_feedback(codec)
    return Broadcast(codec, feedback) if reducer == "broadcast" else TwoPhase(codec, feedback)


def _shared_scale(codec: CodecSpec) -> SharedScale:
    if codec == Float("float8_e4m3"):
        return SharedScale(accumulator="float8_e4m3", feedback=False)
    if not isinstance(codec, Quantize):
        raise SpecError("codec of shared_scale", codec, "int8 ... int3 or fp8, which can be summed")
    return SharedScale(codec.bits)


def _wants_feedback(codec: CodecSpec) -> bool:
    match codec:
        case Float():
            return codec.format not in _DENSE
        case Quantize():
            return codec.is_contraction and codec.scale == "max"
        case _:
            return True


def _parse_codec(text: str, name: str, number: str) -> CodecSpec:
    if name in _FLOATS and not number:
        return Float(_FLOATS[name])
    if name == "sign" and not number:
        return Sign()
    kind, bits = name.rstrip("0123456789"), name.lstrip("abcdefghijklmnopqrstuvwxyz")
    if (kind == "int" or name in _NEAREST) and bits and not number:
        is_nearest = kind == "nearest" or name == "int2"
        return Quantize(int(bits), rounding="nearest" if is_nearest else "stochastic")
    if name in _QSGD or name in _ROTATED:
        return _parse_levels(text, name, number)
    if name in _PLANES:
        return BitPlanes(int(name[6:]), _whole("spec", text, number, int(name[6:])))
    if name in _SELECTIONS:
        return Sparse(_parameter(text, number, 0.01), _SELECTIONS[name])
    raise UnknownIdError("spec", text, _SHORT_FORMS)


def _parse_levels(text: str, name: str, number: str) -> Quantize:
    if name in _QSGD:
        return Quantize(int(name[4:]), _whole("spec", text, number, 512), scale="l2")
    bits, block_size = int(name[8:]), _whole("spec", text, number, 256)
    return Quantize(
        bits, block_size, "nearest" if bits == _TERNARY else "stochastic", "max", "hadamard"
    )


def _whole(field: str, text: str, number: str, default: int) -> int:
    value = _parameter(text, number, float(default))
    if not value.is_integer():
        raise SpecError(field, value, "a whole number of at least 1")
    return int(value)


def _parameter(text: str, number: str, default: float) -> float:
    if not number:
        return default
    try:
        return float(number)
    except ValueError:
        raise SpecError("spec", text, "a name and a number, such as topk:0.01") from None


def codec_name(codec: CodecSpec) -> str:
    """Return the short name under which a codec's speed and error are known.

    Block size is left out: it hardly matters for either.

    Example:
        >>> codec_name(Quantize(4)), codec_name(Quantize(4, rounding="nearest"))
        ('int4', 'nearest4')
        >>> codec_name(Float("bfloat16")), codec_name(Sparse(0.01))
        ('bf16', 'topk:0.01')
    """
    match codec:
        case Float():
            return next(name for name, form in _FLOATS.items() if form == codec.format)
        case Quantize():
            return f"{_kind(codec)}{codec.bits}"
        case BitPlanes():
            return f"planes{codec.bits}:{codec.planes}"
        case Sparse():
            selection = {"exact": "topk", "threshold": "threshold", "random": "random_k"}
            return f"{selection[codec.selection]}:{codec.density:g}"
        case _:
            return codec.id


def _kind(codec: Quantize) -> str:
    if codec.rotation == "hadamard":
        return "hadamard"
    if codec.scale == "l2":
        return "qsgd"
    return "nearest" if codec.rounding == "nearest" and codec.bits > _TERNARY else "int"


def spec_name(spec: ReducerSpec) -> str:
    """Return the short name under which a reducer's speed and error are known.

    That of its codec; low rank goes by its own.

    Example:
        >>> spec_name(parse_reducer("int4@broadcast")), spec_name(LowRank(2))
        ('int4', 'low_rank:2')
        >>> spec_name(AllReduce("bfloat16"))
        'bf16'
    """
    codec = getattr(spec, "codec", None)
    match spec:
        case AllReduce():
            return codec_name(Float(spec.format))
        case LowRank():
            return f"low_rank:{spec.matrix_rank}"
        case SharedScale():
            return codec_name(Float("float8_e4m3") if spec.is_float else Quantize(spec.bits))
        case Hierarchical():
            return spec_name(spec.inner)
        case _:
            return spec.id if codec is None else codec_name(codec)


def spec_key(spec: ReducerSpec) -> str:
    """Return a short readable name of a spec, for reports.

    Example:
        >>> spec_key(TwoPhase(Quantize(4)))
        'two_phase(quantize bits=4)'
    """
    if isinstance(spec, Hierarchical):
        details = "" if spec.format == "float32" else f" {spec.format}"
        return f"hierarchical:{spec.ranks_per_node}{details}({spec_key(spec.inner)})"
    codec = getattr(spec, "codec", None)
    inner: Any = codec if codec is not None else spec
    changed = {
        f.name: getattr(inner, f.name)
        for f in fields(inner)
        if f.name not in ("block_size", "feedback", "warm_start", "second")
        and getattr(inner, f.name) != f.default
    }
    details = " ".join(f"{k}={v}" for k, v in changed.items())
    name = inner.id + (f" {details}" if details else "")
    return f"{spec.id}({name})" if codec is not None else name
