"""What goes on the wire, as data: codec and reducer specs. No torch here.

A codec spec says how values become bytes and how many bytes that makes. A
reducer spec says how ranks combine those bytes and what each rank sends and
receives. The engine, the planner, the simulator and the report all ask the
same spec, so they cannot disagree.
"""

from __future__ import annotations

from gradwire.spec.adaptive import LEVELS, Adaptive
from gradwire.spec.auto import Auto
from gradwire.spec.base import (
    CODEC_SPECS,
    REDUCER_SPECS,
    CodecSpec,
    Entry,
    ReducerSpec,
    Transfer,
)
from gradwire.spec.codecs import (
    FLOAT_BYTES,
    MAX_BITS,
    MAX_HADAMARD,
    BitPlanes,
    Float,
    FloatFormat,
    Quantize,
    Sign,
    Sparse,
)
from gradwire.spec.data import reducer_from_dict, to_dict
from gradwire.spec.fields import check_number, check_whole
from gradwire.spec.hierarchical import Hierarchical
from gradwire.spec.names import codec_name, parse_reducer, spec_key, spec_name
from gradwire.spec.reducers import (
    MAX_STRETCH,
    AllReduce,
    Broadcast,
    LowRank,
    TwoPhase,
    even_transfers,
    sent_bytes,
    stretches,
)
from gradwire.spec.shared_scale import SharedScale

__all__ = [
    "CODEC_SPECS",
    "FLOAT_BYTES",
    "LEVELS",
    "MAX_BITS",
    "MAX_HADAMARD",
    "MAX_STRETCH",
    "REDUCER_SPECS",
    "Adaptive",
    "AllReduce",
    "Auto",
    "BitPlanes",
    "Broadcast",
    "CodecSpec",
    "Entry",
    "Float",
    "FloatFormat",
    "Hierarchical",
    "LowRank",
    "Quantize",
    "ReducerSpec",
    "SharedScale",
    "Sign",
    "Sparse",
    "Transfer",
    "TwoPhase",
    "check_number",
    "check_whole",
    "codec_name",
    "even_transfers",
    "parse_reducer",
    "reducer_from_dict",
    "sent_bytes",
    "spec_key",
    "spec_name",
    "stretches",
    "to_dict",
]
