"""Workload: the layers of one training step, their sizes and compute times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.errors import SpecError
from gradwire.key import name_hash
from gradwire.plan import Parameter
from gradwire.spec import Entry, check_number

FIRST_BUCKET_BYTES = 1 << 20
"""Size at which DDP closes its first bucket. Source: torch.nn.parallel.distributed."""
BUCKET_BYTES = 25 << 20
"""Size at which it closes the others, by default (`bucket_cap_mb=25`)."""

_FORMAT = 1
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "complex64": 8}


def parameter(name: str, shape: Sequence[int], dtype: str = "float32") -> Parameter:
    """Describe a parameter by name and sizes, as a plan wants it.

    Example:
        >>> parameter("fc.weight", (10, 4)).entry.numel
        40
    """
    return Parameter(name, Entry(name_hash(name), tuple(shape)), dtype)


def gradient_bytes(parameters: Sequence[Parameter]) -> int:
    """Return the size of the gradients of parameters."""
    return sum(p.entry.numel * _ITEM_BYTES.get(p.dtype, 4) for p in parameters)


@dataclass(frozen=True, slots=True)
class Layer:
    """One module with parameters of its own (or none), in order of use.

    Attributes:
        name: Unique in the workload.
        parameters: Those that are due when this layer's forward begins.
        forward_s: Time of its forward pass.
        backward_s: From the moment the layer behind it has its gradients until
            this one has.
    """

    name: str
    parameters: tuple[Parameter, ...]
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        for field, value in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            check_number(f"Layer.{field}", value, "a finite number of at least 0")
            if not 0 <= value < float("inf"):
                raise SpecError(f"Layer.{field}", value, "a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients travel together.

    Attributes:
        index: Place in the order in which buckets become ready.
        layer: Index of its frontmost layer: the one that is ready last.
        ready_s: When its last gradient is there, from the start of backward.
    """

    index: int
    layer: int
    parameters: tuple[Parameter, ...]
    ready_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """One training step of one model on one rank.

    Attributes:
        layers: In order of use in forward.
        optimiser_s: Time of the optimiser for all parameters.
        batch_size: Samples per rank and step.

    Example:
        >>> fc = Layer("fc", (parameter("fc.weight", (10, 4)),), 0.001, 0.002)
        >>> work = Workload("tiny", (fc,), optimiser_s=0.0005, batch_size=8)
        >>> Workload.from_json(work.to_json()) == work
        True
        >>> work.buckets()[0].ready_s
        0.002
    """

    name: str
    layers: tuple[Layer, ...]
    optimiser_s: float = 0.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        if not self.layers:
            raise SpecError("Workload.layers", self.layers, "at least one layer")
        names = [layer.name for layer in self.layers]
        twice = (
            {name for name in names if names.count(name) > 1}
            if len(set(names)) < len(names)
            else set()
        )
        if twice:
            raise SpecError("Workload.layers", min(twice), "a name used once")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, in order of use."""
        return tuple(p for layer in self.layers for p in layer.parameters)

    @property
    def numel(self) -> int:
        """Number of parameter values."""
        return sum(p.entry.numel for p in self.parameters)

    @property
    def forward_s(self) -> float:
        """Time of the forward pass."""
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Time of the backward pass."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def compute_s(self) -> float:
        """Time of a step without communication."""
        return self.forward_s + self.backward_s + self.optimiser_s

    def ready_s(self) -> tuple[float, ...]:
        """Return when each layer's gradients are there, from the start of backward."""
        times, now_s = [0.0] * len(self.layers), 0.0
        for index in reversed(range(len(self.layers))):
            now_s += self.layers[index].backward_s
            times[index] = now_s
        return tuple(times)

    def due_s(self) -> tuple[float, ...]:
        """Return when each layer's forward begins, from the end of backward."""
        times, now_s = [], 0.0
        for layer in self.layers:
            times.append(now_s)
            now_s += layer.forward_s
        return tuple(times)

    def buckets(
        self, cap_bytes: int = BUCKET_BYTES, first_bytes: int | None = None
    ) -> tuple[Bucket, ...]:
        """Return DDP's buckets after its first step, in the order they become ready.

        A bucket closes once it has reached its limit. Buckets hold one dtype each.

        Args:
            cap_bytes: Limit of all buckets but the first.
            first_bytes: Limit of the first. None is DDP's choice: a smaller
                one, so that the exchange begins early, unless the user has
                set the limit (`bucket_cap_mb`).
        """
        if first_bytes is None:
            is_default = cap_bytes == BUCKET_BYTES
            first_bytes = FIRST_BUCKET_BYTES if is_default else cap_bytes
        return tuple(self._cut(cap_bytes, first_bytes))

    def _cut(self, cap_bytes: int, first_bytes: int) -> Iterator[Bucket]:
        ready, made = self.ready_s(), 0
        limits: dict[str, int] = {}
        held: dict[str, list[Parameter]] = {}
        front: dict[str, int] = {}
        for index in reversed(range(len(self.layers))):
            for p in reversed(self.layers[index].parameters):
                held.setdefault(p.dtype, []).append(p)
                front[p.dtype] = index
                if gradient_bytes(held[p.dtype]) >= limits.get(p.dtype, first_bytes):
                    limits[p.dtype] = cap_bytes
                    yield Bucket(made, index, tuple(held.pop(p.dtype)), ready[index])
                    made += 1
        for dtype, parameters in held.items():
            yield Bucket(made, front[dtype], tuple(parameters), ready[front[dtype]])
            made += 1

    def to_json(self) -> str:
        """Write the workload as JSON with sorted keys."""
        layers = [
            {
                "name": layer.name,
                "forward_s": layer.forward_s,
                "backward_s": layer.backward_s,
                "parameters": [
                    {"name": p.name, "shape": list(p.entry.shape), "dtype": p.dtype}
                    for p in layer.parameters
                ],
            }
            for layer in self.layers
        ]
        data = {
            "format": _FORMAT,
            "name": self.name,
            "layers": layers,
            "optimiser_s": self.optimiser_s,
            "batch_size": self.batch_size,
        }
        return json.dumps(data, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """Read a workload from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, or a field is missing or
                out of range.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("workload", text[:40], f"JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            found = data.get("format") if isinstance(data, dict) else data
            raise SpecError("workload format", found, f"{_FORMAT}, the one this version reads")
        try:
            layers = tuple(_layer(layer) for layer in data["layers"])
            return cls(str(data["name"]), layers, data["optimiser_s"], data["batch_size"])
        except (KeyError, TypeError) as error:
            raise SpecError("workload", text[:40], f"complete: {error}") from None


def _layer(data: Mapping[str, Any]) -> Layer:
    parameters = tuple(parameter(p["name"], p["shape"], p["dtype"]) for p in data["parameters"])
    return Layer(data["name"], parameters, data["forward_s"], data["backward_s"])
