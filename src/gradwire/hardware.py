"""Hardware: speeds of a device and its links, measured or written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from gradwire.errors import SpecError

_FORMAT = 1


class Line(NamedTuple):
    """A cost that grows with size: `fixed_s + num_bytes * s_per_byte`.

    Attributes:
        spread: Median relative distance of the measurements from the line.

    Example:
        >>> Line(0.001, 1e-9).time_s(1_000_000)
        0.002
    """

    fixed_s: float
    s_per_byte: float
    spread: float = 0.0

    def time_s(self, num_bytes: float) -> float:
        """Return the predicted time."""
        return self.fixed_s + num_bytes * self.s_per_byte


@dataclass(frozen=True, slots=True)
class Device:
    """What computes and encodes.

    Attributes:
        kind: `"cpu"` or `"cuda"`.
        capabilities: Its instruction set or compute capability, and what its
            matrix units multiply: `"avx2"`, `"sm_90"`, `"bf16"`, `"int8"`, `"fp8"`.
        copy_bytes_per_s: Bytes read plus written per second by a plain copy.
        read_bytes_per_s: Bytes per second of a plain sum; 0 if unknown.
        launch_s: Fixed cost of starting one kernel.
        interference: Share of encoding and decoding time by which a backward
            pass that runs meanwhile becomes longer (chi), 0 to 1.
    """

    kind: str = "cpu"
    name: str = "unknown"
    cores: int = 1
    capabilities: tuple[str, ...] = ()
    copy_bytes_per_s: float = 1e10
    read_bytes_per_s: float = 0.0
    launch_s: float = 0.0
    interference: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.interference <= 1:
            raise SpecError("Device.interference", self.interference, "between 0 and 1")


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """One level of the network, as one rank sees it.

    Attributes:
        latency_s: From handing over a small message to its arrival.
        bandwidth_bytes_per_s: Payload rate, each way.
        spread: Median relative distance of the measurements from the fit.
        collectives: Fitted time of each collective at this world size, over the
            bytes of one rank's tensor: `"all_reduce"` (of the back end) and
            `"exchange"` (gradwire's own: everything that a rank sends at once).
        ranks: How many ranks took part in the measurement; 0 if none did.
        after: The same times of one collective right after computation, which
            leaves cold caches and ranks that are not in step.
        processor: Processor time that a collective takes of each rank, all its
            threads and what the kernel does in their name.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    spread: float = 0.0
    collectives: Mapping[str, Line] = field(default_factory=dict)
    ranks: int = 0
    after: Mapping[str, Line] = field(default_factory=dict)
    processor: Mapping[str, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.latency_s >= 0:
            raise SpecError("LinkSpeed.latency_s", self.latency_s, "at least 0")
        if not self.bandwidth_bytes_per_s > 0:
            raise SpecError(
                "LinkSpeed.bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, "above 0"
            )


@dataclass(frozen=True, slots=True)
class Hardware:
    """One machine and the network between machines of its kind.

    Attributes:
        kernels: Fitted time over bytes of float32 input, by step and short name
            of a codec: `"encode int4"`, `"decode int4"`; decode is that of one
            payload. Low rank has one line for all its products, `"encode low_rank:1"`.
        within: The link between ranks of one node.
        between: The link between nodes.
        fingerprint: Names the machine and topology that were measured.

    Example:
        >>> hardware = Hardware(Device(), {}, LinkSpeed(1e-5, 1e10), LinkSpeed(5e-4, 1.25e7))
        >>> Hardware.from_json(hardware.to_json()) == hardware
        True
    """

    device: Device
    kernels: Mapping[str, Line]
    within: LinkSpeed
    between: LinkSpeed
    fingerprint: str = ""

    def to_json(self) -> str:
        """Write everything as JSON with sorted keys."""
        data: dict[str, Any] = {"format": _FORMAT, **asdict(self)}
        return json.dumps(data, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Hardware:
        """Read hardware from `to_json`'s text.

        Raises:
            SpecError: Not JSON, another format number, or a field is missing,
                unknown or out of range.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError("hardware", text[:40], f"JSON: {error}") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            found = data.get("format") if isinstance(data, dict) else data
            raise SpecError("hardware format", found, f"{_FORMAT}, the one this version reads")
        try:
            device = data["device"]
            return cls(
                Device(**{**device, "capabilities": tuple(device["capabilities"])}),
                _lines(data["kernels"]),
                _link(data["within"]),
                _link(data["between"]),
                data["fingerprint"],
            )
        except (KeyError, TypeError) as error:
            raise SpecError("hardware", text[:40], f"complete: {error}") from None


def _lines(data: Mapping[str, Any]) -> dict[str, Line]:
    return {name: Line(*values) for name, values in data.items()}


def _link(data: Mapping[str, Any]) -> LinkSpeed:
    names = ("collectives", "after", "processor")
    lines = {name: _lines(data.get(name, {})) for name in names}
    return LinkSpeed(**{**data, **lines})
