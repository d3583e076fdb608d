"""What goes on the wire, as data: codec and reducer specs. No torch here.

A codec spec says how values become bytes and how many bytes that makes. A
reducer spec says how ranks combine those bytes and what each rank sends and
receives. The engine, the planner, the simulator and the report all ask the
same spec, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from gradwire.errors import SpecError, UnknownIdError
from gradwire.layout import ALIGNMENT, GROUP, Stretch, align, num_blocks, packed_bytes, shard
from gradwire.registry import Registry

MAX_STRETCH = 1 << 30
"""Longest stretch with indices of its own; keeps 32-bit indices non-negative."""

_STABLE_BITS = 3
"""From here on the relative variance of stochastic levels is well below 1."""

MAX_BITS = 8
"""Most bits a packed code can have."""


class Entry(NamedTuple):
    """One parameter as the wire sees it.

    Attributes:
        stream: Hash of the parameter's name.
        shape: Sizes in storage order (outermost stride first).
    """

    stream: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class Transfer(NamedTuple):
    """One exchange with the other ranks, as one rank sees it."""

    sent_bytes: int
    received_bytes: int


@runtime_checkable
class CodecSpec(Protocol):
    """Parameters of a codec; a frozen dataclass."""

    id: ClassVar[str]

    @property
    def block_size(self) -> int:
        """Values that share a scale; shards begin at its multiples."""

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload of stretches with these many values each."""


@runtime_checkable
class ReducerSpec(Protocol):
    """Parameters of a reducer; a frozen dataclass."""

    id: ClassVar[str]

    @property
    def feedback(self) -> bool:
        """Whether what was not sent in one step is owed in the next."""

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return every exchange of one reduction, in order."""


CODEC_SPECS: Registry[type[CodecSpec]] = Registry("codec_specs")
REDUCER_SPECS: Registry[type[ReducerSpec]] = Registry("reducer_specs")

FloatFormat = Literal["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"]
FLOAT_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
_SCALED = {"float16", "float8_e4m3", "float8_e5m2"}


def check_whole(field: str, value: int, least: int, most: int | None = None) -> None:
    """Make sure that a number is whole and within its limits.

    Raises:
        SpecError: It is not.

    Example:
        >>> check_whole("Plan.seed", 1.5, 0)
        Traceback (most recent call last):
        ...
        gradwire.errors.SpecError: Plan.seed=1.5 is not a whole number of at least 0
    """
    limits = f"of at least {least}" if most is None else f"between {least} and {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value or (most is not None and value > most):
        raise SpecError(field, value, f"a whole number {limits}")


def check_number(field: str, value: float, allowed: str) -> None:
    """Make sure that a value is a number at all.

    Raises:
        SpecError: It is not.

    Example:
        >>> check_number("Link.latency_s", "1ms", "a finite number of at least 0")
        Traceback (most recent call last):
        ...
        gradwire.errors.SpecError: Link.latency_s='1ms' is not a finite number of at least 0
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise SpecError(field, value, allowed)


def _check_switch(field: str, value: object) -> None:
    # A plan file's "false" would count as true.
    if not isinstance(value, bool):
        raise SpecError(field, value, "True or False")


def _check_codec(field: str, codec: object) -> None:
    if not isinstance(codec, CodecSpec) or isinstance(codec, type):
        known = ", ".join(CODEC_SPECS[i].__name__ for i in CODEC_SPECS)
        raise SpecError(field, codec, f"a codec spec, such as one of: {known}")


def _check_block_size(owner: str, block_size: int) -> None:
    check_whole(f"{owner}.block_size", block_size, 0)
    if block_size < GROUP or block_size % GROUP or block_size > 1 << 16:
        raise SpecError(f"{owner}.block_size", block_size, f"a multiple of {GROUP} up to {1 << 16}")


def _scale_bytes(numels: Sequence[int], block_size: int) -> int:
    return align(4 * sum(num_blocks(n, block_size) for n in numels))


@CODEC_SPECS.register("float")
@dataclass(frozen=True, slots=True)
class Float:
    """Values as shorter floats; float16 and float8 with a scale for each block.

    float32 and bfloat16 have range enough and carry no scales.

    Example:
        >>> Float("bfloat16").num_bytes([1000])
        2000
        >>> Float("float8_e4m3").num_bytes([256])
        272
    """

    id: ClassVar[str] = "float"
    format: FloatFormat
    block_size: int = 256

    def __post_init__(self) -> None:
        if self.format not in FLOAT_BYTES:
            raise SpecError("Float.format", self.format, "one of: " + ", ".join(FLOAT_BYTES))
        _check_block_size("Float", self.block_size)

    @property
    def is_scaled(self) -> bool:
        """Whether each block carries a float32 scale."""
        return self.format in _SCALED

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: scales (if any), then values in order."""
        scales = _scale_bytes(numels, self.block_size) if self.is_scaled else 0
        return scales + align(FLOAT_BYTES[self.format] * sum(numels))


@CODEC_SPECS.register("quantize")
@dataclass(frozen=True, slots=True)
class Quantize:
    """Whole-number levels of 1 to 8 bits, scaled by each block's largest magnitude.

    Example:
        >>> Quantize(bits=4).num_bytes([1024])
        528
    """

    id: ClassVar[str] = "quantize"
    bits: int
    block_size: int = 256
    rounding: Literal["stochastic", "nearest"] = "stochastic"

    def __post_init__(self) -> None:
        check_whole("Quantize.bits", self.bits, 1, MAX_BITS)
        if self.rounding not in ("stochastic", "nearest"):
            raise SpecError("Quantize.rounding", self.rounding, "one of: stochastic, nearest")
        _check_block_size("Quantize", self.block_size)

    @property
    def is_contraction(self) -> bool:
        """Whether less is lost than was there, as feedback needs.

        Stochastic levels -1, 0, 1 lose 1.4 times the square of normally
        distributed values (blocks of 256), the two levels of 1 bit still more.
        """
        return self.bits > 2 or (self.bits, self.rounding) == (2, "nearest")  # noqa: PLR2004 - above

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: one float32 scale a block, then packed codes."""
        codes = sum(packed_bytes(n, self.bits) for n in numels)
        return _scale_bytes(numels, self.block_size) + align(codes)


@CODEC_SPECS.register("sign")
@dataclass(frozen=True, slots=True)
class Sign:
    """One bit a value: its sign, times the mean magnitude of its block.

    Example:
        >>> Sign(block_size=1024).num_bytes([1024])
        144
    """

    id: ClassVar[str] = "sign"
    block_size: int = 1024

    def __post_init__(self) -> None:
        _check_block_size("Sign", self.block_size)

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: one float32 scale a block, then sign bits."""
        return _scale_bytes(numels, self.block_size) + align(
            sum(packed_bytes(n, 1) for n in numels)
        )


@CODEC_SPECS.register("sparse")
@dataclass(frozen=True, slots=True)
class Sparse:
    """The largest values with their places; the others wait in the residual.

    `exact` sends precisely the `density * numel` largest of each parameter;
    `threshold` estimates the cut from two passes and sends what exceeds it,
    up to a fixed capacity; `random` sends evenly spaced values from a start
    that all ranks draw alike, and needs no places.

    Example:
        >>> Sparse(density=0.01).num_bytes([100_000])
        8016
    """

    id: ClassVar[str] = "sparse"
    density: float = 0.01
    selection: Literal["threshold", "exact", "random"] = "exact"

    def __post_init__(self) -> None:
        check_number("Sparse.density", self.density, "a number above 0 and at most 1")
        if not 0 < self.density <= 1:
            raise SpecError("Sparse.density", self.density, "above 0 and at most 1")
        if self.selection not in ("threshold", "exact", "random"):
            raise SpecError("Sparse.selection", self.selection, "one of: threshold, exact, random")

    @property
    def block_size(self) -> int:
        """Stretches begin at multiples of the packing group."""
        return GROUP

    def kept(self, numel: int) -> int:
        """How many of `numel` values one step aims to send."""
        return min(numel, max(1, math.ceil(self.density * numel))) if numel else 0

    def capacity(self, numel: int) -> int:
        """Most values of a stretch that fit into its payload."""
        kept = self.kept(numel)
        return min(numel, kept + kept // 4 + 8) if self.selection == "threshold" else kept

    def num_bytes(self, numels: Sequence[int]) -> int:
        """Size of the payload: counts, places and float32 values.

        `random` sends the number of its stream in place of counts and places.
        """
        slots = sum(self.capacity(n) for n in numels)
        if self.selection == "random":
            return ALIGNMENT + align(4 * slots) if slots else 0
        return align(4 * len(numels)) + 2 * align(4 * slots)


def _check_feedback(owner: str, codec: CodecSpec, *, feedback: bool) -> None:
    """Refuse feedback where the residual would grow without end."""
    _check_switch(f"{owner}.feedback", feedback)
    if feedback and isinstance(codec, Quantize) and not codec.is_contraction:
        remedy = "use more bits, Sign, feedback=False, or rounding='nearest' with 2 bits"
        raise SpecError(
            f"{owner}.feedback", feedback, f"possible with {codec}, which loses too much: {remedy}"
        )


def _even_transfers(numel: int, itemsize: int, world_size: int, rank: int) -> tuple[Transfer, ...]:
    """Exchanges of a direct all-reduce: shards to their owners, then back."""
    if world_size == 1 or numel == 0:
        return ()
    own = shard(numel, 1, rank, world_size).numel
    others = numel - own
    spread, collect = others * itemsize, own * (world_size - 1) * itemsize
    return Transfer(spread, collect), Transfer(collect, spread)


@REDUCER_SPECS.register("all_reduce")
@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum plain floats on the wire; float32 is exact averaging.

    Example:
        >>> AllReduce("float32").transfers([Entry(0, (100,))], world_size=2, rank=0)
        (Transfer(sent_bytes=200, received_bytes=200), Transfer(sent_bytes=200, received_bytes=200))
    """

    id: ClassVar[str] = "all_reduce"
    format: Literal["float32", "bfloat16"] = "float32"
    feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.format not in ("float32", "bfloat16"):
            raise SpecError("AllReduce.format", self.format, "one of: float32, bfloat16")

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the two exchanges of a direct all-reduce."""
        numel = sum(e.numel for e in entries)
        return _even_transfers(numel, FLOAT_BYTES[self.format], world_size, rank)


@REDUCER_SPECS.register("two_phase")
@dataclass(frozen=True, slots=True)
class TwoPhase:
    """Encoded shards to their owners, who average, encode again and send to all.

    Each rank moves `2 (N - 1) / N` payloads, whatever the number of ranks.

    The owner answers for the second rounding with `N` times its error, so
    feedback is stable only while the relative variance of the second codec is
    below a half: the mean travels in 4 bits where the codec has fewer than 3.

    Attributes:
        codec: How gradients travel to the owner of their shard.
        feedback: Whether what was lost is owed in the next step.
        second: How means travel back; None chooses the codec itself, or 4
            bits where that is too coarse.

    Example:
        >>> spec = TwoPhase(Quantize(4))
        >>> spec.transfers([Entry(0, (512,))], world_size=2, rank=0)
        (Transfer(sent_bytes=144, received_bytes=144), Transfer(sent_bytes=144, received_bytes=144))
    """

    id: ClassVar[str] = "two_phase"
    codec: CodecSpec
    feedback: bool = True
    second: CodecSpec | None = None

    def __post_init__(self) -> None:
        _check_codec("TwoPhase.codec", self.codec)
        for codec in (self.codec, self.mean_codec):
            _check_codec("TwoPhase.second", codec)
            if isinstance(codec, Sparse):
                raise SpecError(
                    "TwoPhase.codec", codec, "a codec whose sums stay as dense as its input"
                )
        if self.codec.block_size % self.mean_codec.block_size:
            raise SpecError(
                "TwoPhase.second", self.second, "of a block size that divides the codec's"
            )
        _check_feedback("TwoPhase", self.codec, feedback=self.feedback)

    @property
    def mean_codec(self) -> CodecSpec:
        """How means travel back to all ranks."""
        if self.second is not None:
            return self.second
        is_coarse = isinstance(self.codec, Sign) or (
            isinstance(self.codec, Quantize) and self.codec.bits < _STABLE_BITS
        )
        return Quantize(_STABLE_BITS + 1, block_size=GROUP) if is_coarse else self.codec

    def shards(self, entries: Sequence[Entry], owner: int, world_size: int) -> list[Stretch]:
        """Return the stretch of each entry that rank `owner` averages."""
        size = self.codec.block_size
        return [shard(e.numel, size, owner, world_size, e.stream) for e in entries]

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the exchange of shards and the exchange of their means."""
        if world_size == 1:
            return ()
        numels = [
            [s.numel for s in self.shards(entries, owner, world_size) if s.numel]
            for owner in range(world_size)
        ]
        return tuple(
            Transfer(*(sizes if is_first else reversed(sizes)))
            for is_first, codec in ((True, self.codec), (False, self.mean_codec))
            for sizes in [_spread_and_collect([codec.num_bytes(n) for n in numels], rank)]
        )


def _spread_and_collect(sizes: Sequence[int], rank: int) -> tuple[int, int]:
    """Bytes of the others' shards, and of the own shard once for each other rank."""
    return sum(sizes) - sizes[rank], sizes[rank] * (len(sizes) - 1)


def stretches(numel: int) -> list[Stretch]:
    """Cut a parameter into stretches short enough for 32-bit places.

    Example:
        >>> [s.numel for s in stretches(3_000_000_000)]
        [1073741824, 1073741824, 852516352]
    """
    return [
        Stretch(start, min(MAX_STRETCH, numel - start)) for start in range(0, numel, MAX_STRETCH)
    ]


@REDUCER_SPECS.register("broadcast")
@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every rank sends its payload to all others; each averages what it received.

    One exchange instead of two, but `N - 1` payloads a rank: for few ranks, or
    for payloads that stay small however many ranks there are.

    Example:
        >>> spec = Broadcast(Sparse(density=0.01))
        >>> spec.transfers([Entry(0, (100_000,))], world_size=2, rank=0)
        (Transfer(sent_bytes=8016, received_bytes=8016),)
    """

    id: ClassVar[str] = "broadcast"
    codec: CodecSpec
    feedback: bool = True

    def __post_init__(self) -> None:
        _check_codec("Broadcast.codec", self.codec)
        _check_feedback("Broadcast", self.codec, feedback=self.feedback)

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the one exchange of whole payloads."""
        if world_size == 1:
            return ()
        size = self.codec.num_bytes([s.numel for e in entries for s in stretches(e.numel)])
        return (Transfer(size * (world_size - 1), size * (world_size - 1)),)


@REDUCER_SPECS.register("low_rank")
@dataclass(frozen=True, slots=True)
class LowRank:
    """Two thin factors for each matrix (PowerSGD), warm-started from step to step.

    Example:
        >>> LowRank(1).transfers([Entry(0, (64, 32))], world_size=2, rank=0)[0]
        Transfer(sent_bytes=128, received_bytes=128)
    """

    id: ClassVar[str] = "low_rank"
    matrix_rank: int = 1
    warm_start: bool = True
    feedback: bool = True

    def __post_init__(self) -> None:
        check_whole("LowRank.matrix_rank", self.matrix_rank, 1)
        _check_switch("LowRank.warm_start", self.warm_start)
        _check_switch("LowRank.feedback", self.feedback)

    @staticmethod
    def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
        """Fold a tensor's shape into rows (the first dimension) and columns."""
        return math.prod(shape[:1]), math.prod(shape[1:])

    def transfers(
        self, entries: Sequence[Entry], world_size: int, rank: int
    ) -> tuple[Transfer, ...]:
        """Return the exchanges of the all-reduce of P and that of Q."""
        shapes = [self.matrix_shape(e.shape) for e in entries]
        rows = sum(min(self.matrix_rank, *s) * s[0] for s in shapes)
        columns = sum(min(self.matrix_rank, *s) * s[1] for s in shapes)
        return _even_transfers(rows, 4, world_size, rank) + _even_transfers(
            columns, 4, world_size, rank
        )


def sent_bytes(spec: ReducerSpec, entries: Sequence[Entry], world_size: int) -> int:
    """Return the bytes that the busiest rank sends in one reduction.

    Example:
        >>> sent_bytes(AllReduce("float32"), [Entry(0, (100,))], 2)
        400
    """
    return max(
        sum(t.sent_bytes for t in spec.transfers(entries, world_size, rank))
        for rank in range(world_size)
    )


_DENSE = ("float32", "bfloat16")
_SHORT_FORMS = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2"),
    *(f"int{bits}" for bits in range(MAX_BITS, 0, -1)),
    *("sign", "topk[:density]", "threshold[:density]", "random_k[:density]", "low_rank[:rank]"),
)


def parse_reducer(text: str) -> ReducerSpec:
    """Build a reducer spec from its short name.

    Args:
        text: `none`, `bf16`, `fp16`, `fp8`, `int8` ... `int1`, `sign`, `topk`,
            `threshold`, `random_k`, `low_rank`; the last four take a number
            after a colon (`topk:0.001`, `low_rank:4`). `@broadcast` or
            `@two_phase` at the end chooses the reducer: `int4@broadcast`.
            `int2` rounds to nearest and `int1` has no feedback, for with
            stochastic rounding their residuals would grow without end.

    Raises:
        UnknownIdError: No such short name.
        SpecError: The number is no number, or out of range.

    Example:
        >>> parse_reducer("int4")  # doctest: +ELLIPSIS
        TwoPhase(codec=Quantize(bits=4, ...), feedback=True, second=None)
    """
    if not isinstance(text, str):
        raise SpecError("spec", text, "a short name, such as int4")
    form, _, how = text.partition("@")
    name, _, number = form.partition(":")
    if name == "low_rank" and not how:
        rank = _parameter(text, number, 1.0)
        if not rank.is_integer():
            raise SpecError("LowRank.matrix_rank", rank, "a whole number of at least 1")
        return LowRank(int(rank))
    if form in ("none", "bf16") and not how:
        return AllReduce("float32" if name == "none" else "bfloat16")
    codec = _parse_codec(text, name, number)
    reducer = how or ("broadcast" if isinstance(codec, Sparse) else "two_phase")
    if reducer not in ("broadcast", "two_phase"):
        raise UnknownIdError("reducer", reducer, ["broadcast", "two_phase"])
    feedback = _wants_feedback(codec)
    return Broadcast(codec, feedback) if reducer == "broadcast" else TwoPhase(codec, feedback)


def _wants_feedback(codec: CodecSpec) -> bool:
    match codec:
        case Float():
            return codec.format not in _DENSE
        case Quantize():
            return codec.is_contraction
        case _:
            return True


def _parse_codec(text: str, name: str, number: str) -> CodecSpec:
    floats: dict[str, FloatFormat] = {
        "none": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp8": "float8_e4m3",
        "fp8_e5m2": "float8_e5m2",
    }
    if name in floats and not number:
        return Float(floats[name])
    if name == "sign" and not number:
        return Sign()
    if name.startswith("int") and name[3:].isdecimal() and not number:
        return Quantize(int(name[3:]), rounding="nearest" if name == "int2" else "stochastic")
    if name == "topk":
        return Sparse(_parameter(text, number, 0.01), "exact")
    if name == "threshold":
        return Sparse(_parameter(text, number, 0.01), "threshold")
    if name == "random_k":
        return Sparse(_parameter(text, number, 0.01), "random")
    raise UnknownIdError("spec", text, _SHORT_FORMS)


def _parameter(text: str, number: str, default: float) -> float:
    if not number:
        return default
    try:
        return float(number)
    except ValueError:
        raise SpecError("spec", text, "a name and a number, such as topk:0.01") from None


Spec = TypeVar("Spec", CodecSpec, ReducerSpec)


def to_dict(spec: CodecSpec | ReducerSpec) -> dict[str, Any]:
    """Turn a spec into JSON-ready data.

    Example:
        >>> to_dict(AllReduce("bfloat16"))
        {'id': 'all_reduce', 'format': 'bfloat16'}
    """
    out: dict[str, Any] = {"id": spec.id}
    for field in fields(spec):  # type: ignore[arg-type]
        value = getattr(spec, field.name)
        out[field.name] = to_dict(value) if isinstance(value, CodecSpec) else value
    return out


def reducer_from_dict(data: dict[str, Any]) -> ReducerSpec:
    """Build a reducer spec from `to_dict`'s data.

    Raises:
        SpecError: A field is missing, unknown or out of range.
        UnknownIdError: No such codec or reducer.

    Example:
        >>> reducer_from_dict({"id": "low_rank", "matrix_rank": 2})
        LowRank(matrix_rank=2, warm_start=True, feedback=True)
    """
    spec: ReducerSpec = _from_dict(REDUCER_SPECS, data)
    return spec


def _from_dict(registry: Registry[type[Any]], data: dict[str, Any]) -> Any:  # noqa: ANN401 - the registry's type
    if not isinstance(data, dict) or "id" not in data:
        raise SpecError("spec", data, 'an object with an "id"')
    cls = registry[str(data["id"])]
    names = {field.name for field in fields(cls)}
    values = {k: v for k, v in data.items() if k != "id"}
    unknown = sorted(set(values) - names)
    if unknown:
        raise SpecError(f"{cls.__name__} field", unknown[0], "one of: " + ", ".join(sorted(names)))
    for name in ("codec", "second"):
        if values.get(name) is not None:
            values[name] = _from_dict(CODEC_SPECS, values[name])
    try:
        return cls(**values)
    except TypeError as error:
        raise SpecError(cls.__name__, values, f"complete: {error}") from None


def spec_key(spec: ReducerSpec) -> str:
    """Return a short readable name of a spec, for reports.

    Example:
        >>> spec_key(TwoPhase(Quantize(4)))
        'two_phase(quantize bits=4)'
    """
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


__all__ = [
    "CODEC_SPECS",
    "REDUCER_SPECS",
    "AllReduce",
    "Broadcast",
    "CodecSpec",
    "Entry",
    "Float",
    "FloatFormat",
    "LowRank",
    "Quantize",
    "ReducerSpec",
    "Sign",
    "Sparse",
    "Transfer",
    "TwoPhase",
    "parse_reducer",
    "reducer_from_dict",
    "sent_bytes",
    "spec_key",
    "stretches",
    "to_dict",
]
