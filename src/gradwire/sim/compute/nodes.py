"""Machines by name, with speeds from data sheets: modelled, not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from gradwire.errors import UnknownIdError
from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.sim.compute.roofline import Roofline, find_device
from gradwire.spec import Broadcast, CodecSpec, LowRank, Sparse, TwoPhase, parse_reducer

_VALUE_BYTES = 4
_SAMPLE = 1 << 20
_FEEDBACK_BYTES = 3 * _VALUE_BYTES
"""An encoding pass with feedback reads gradient and residual and writes the residual."""
_DECODE_BYTES = 2 * _VALUE_BYTES
"""Adding a decoded payload reads and writes the sum."""
_SELECT_BYTES = {"exact": 16.0, "threshold": 9.4, "random": 0.0}
"""Bytes a value that finding the largest ones reads: four passes, or passes over ever fewer."""

MODELLED_SPECS = (
    *("none", "bf16", "fp16", "fp8", "fp8_e5m2"),
    *(f"int{bits}" for bits in range(8, 0, -1)),
    *("sign", "topk:0.01", "threshold:0.01", "random_k:0.01"),
    *("low_rank:1", "low_rank:2", "low_rank:4", "low_rank:8"),
)
"""Short names whose kernels have a modelled speed."""


class _Node(NamedTuple):
    kind: str
    cores: int
    capabilities: tuple[str, ...]
    within: LinkSpeed
    between: LinkSpeed


_NODES: Mapping[str, _Node] = MappingProxyType(
    {
        # NVLink of each GPU, one way: 150, 300 and 450 GB/s; an interface is one
        # InfiniBand port of DGX-1, DGX A100, DGX H100 and DGX H200.
        "v100": _Node("cuda", 1, ("sm_70",), LinkSpeed(5e-6, 1.5e11), LinkSpeed(1e-5, 1.25e10)),
        "a100": _Node("cuda", 1, ("sm_80", "bf16"), LinkSpeed(5e-6, 3e11), LinkSpeed(1e-5, 2.5e10)),
        "h100": _Node(
            "cuda", 1, ("sm_90", "bf16", "fp8"), LinkSpeed(5e-6, 4.5e11), LinkSpeed(1e-5, 5e10)
        ),
        "h200": _Node(
            "cuda", 1, ("sm_90", "bf16", "fp8"), LinkSpeed(5e-6, 4.5e11), LinkSpeed(1e-5, 5e10)
        ),
        # Shared memory within, 10 Gbit/s Ethernet between.
        "cpu": _Node("cpu", 32, ("avx2", "avx512"), LinkSpeed(2e-5, 1e10), LinkSpeed(5e-5, 1.25e9)),
    }
)


def find_hardware(name: str) -> Hardware:
    """Return the modelled machine around a device.

    Kernels run at the speed of a plain copy over the bytes that they have to
    read and write; links have the rates of data sheets. Nothing was measured.

    Raises:
        UnknownIdError: No such device.

    Example:
        >>> hardware = find_hardware("a100")
        >>> hardware.fingerprint
        'modelled a100'
        >>> f"{hardware.kernels['encode int4'].time_s(4e9):.4f}"
        '0.0077'
    """
    if name not in _NODES:
        raise UnknownIdError("hardware", name, sorted(_NODES))
    node, device = _NODES[name], find_device(name)
    described = Device(
        node.kind,
        f"{name}, modelled",
        node.cores,
        node.capabilities,
        device.copy_bytes_per_s,
        device.launch_s,
    )
    kernels = dict(line for spec in MODELLED_SPECS for line in _lines(spec, device))
    return Hardware(described, kernels, node.within, node.between, f"modelled {name}")


def _lines(spec: str, device: Roofline) -> Iterator[tuple[str, Line]]:
    encode, decode = _traffic(spec)
    for step, value_bytes in (("encode", encode), ("decode", decode)):
        s_per_byte = value_bytes / _VALUE_BYTES / device.copy_bytes_per_s
        yield f"{step} {spec}", Line(device.launch_s, s_per_byte)


def _traffic(spec: str) -> tuple[float, float]:
    """Return the bytes that encoding and decoding move for each value."""
    match parse_reducer(spec):
        case LowRank():
            # Two products read the matrix, a third reads and writes it to decode.
            return 2.0 * _VALUE_BYTES + _FEEDBACK_BYTES, float(_VALUE_BYTES)
        case TwoPhase(codec) | Broadcast(codec):
            payload = _payload_bytes(codec)
            extra = _SELECT_BYTES[codec.selection] if isinstance(codec, Sparse) else 0.0
            touched = codec.density if isinstance(codec, Sparse) else 1.0
            return _FEEDBACK_BYTES + extra + payload, touched * _DECODE_BYTES + payload
        case _:
            # Decoding adds what was received; encoding copies or casts.
            payload = 2.0 if spec == "bf16" else 4.0
            return _VALUE_BYTES + payload, _DECODE_BYTES + payload


def _payload_bytes(codec: CodecSpec) -> float:
    return codec.num_bytes([_SAMPLE]) / _SAMPLE
