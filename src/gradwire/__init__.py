"""PyTorch data-parallel training made fast on slow networks.

Names that need torch are loaded when they are first used, so that plans can be
made and read where torch is not wanted.

Example:
    >>> import gradwire
    >>> gradwire.Plan.of("int8").rules[0].reducer.codec.bits
    8
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

from gradwire.errors import (
    BackendError,
    CollectiveError,
    CommandError,
    GradwireError,
    PayloadError,
    RankMismatchError,
    SpecError,
    StateError,
    UnknownIdError,
)
from gradwire.plan import Plan, Rule, load_plan
from gradwire.spec import (
    Adaptive,
    AllReduce,
    Auto,
    BitPlanes,
    Broadcast,
    Float,
    Hierarchical,
    LowRank,
    Quantize,
    SharedScale,
    Sign,
    Sparse,
    TwoPhase,
    parse_reducer,
)

if TYPE_CHECKING:
    from gradwire.integrations.attach import attach
    from gradwire.integrations.ddp import find_ddp
    from gradwire.integrations.overlap import overlap
    from gradwire.integrations.wrap import wrap

    __version__: str

_LOADED_ON_USE = {
    "attach": "gradwire.integrations.attach",
    "find_ddp": "gradwire.integrations.ddp",
    "overlap": "gradwire.integrations.overlap",
    "wrap": "gradwire.integrations.wrap",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("gradwire")
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    value = getattr(import_module(_LOADED_ON_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Adaptive",
    "AllReduce",
    "Auto",
    "BackendError",
    "BitPlanes",
    "Broadcast",
    "CollectiveError",
    "CommandError",
    "Float",
    "GradwireError",
    "Hierarchical",
    "LowRank",
    "PayloadError",
    "Plan",
    "Quantize",
    "RankMismatchError",
    "Rule",
    "SharedScale",
    "Sign",
    "Sparse",
    "SpecError",
    "StateError",
    "TwoPhase",
    "UnknownIdError",
    "__version__",
    "attach",
    "find_ddp",
    "load_plan",
    "overlap",
    "parse_reducer",
    "wrap",
]
