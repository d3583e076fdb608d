"""Checkpoints: what an engine saves of its state, and what it can use of one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradwire.engine.feedback import StateWarning
from gradwire.errors import SpecError, StateError
from gradwire.plan import Plan
from gradwire.spec import check_whole

_FORMAT = 1
"""Layout of `state_dict`; a change to it is a new number."""

_FIELDS = ("rank", "world_size", "steps_done", "residual", "factors")


def pack(
    rank: int,
    world_size: int,
    steps_done: int,
    plan: Plan,
    tensors: Mapping[str, Mapping[str, Tensor]],
    label: str = "",
    next_plan: Plan | None = None,
) -> dict[str, Any]:
    """Return this rank's state: tensors, numbers and strings only.

    The key carries the rank, because `torch.distributed.checkpoint` keeps one
    copy of equal keys. It begins with `label`, where ranks of several groups
    save to one place. `next_plan` has been agreed on for the next step.
    """
    mine: dict[str, Any] = {
        "format": _FORMAT,
        "rank": rank,
        "world_size": world_size,
        "steps_done": steps_done,
        "plan": plan.to_json(),
        **tensors,
    }
    if next_plan is not None:
        mine["next_plan"] = next_plan.to_json()
    return {f"{label}rank{rank}": mine}


def unpack(state: Mapping[str, Any], rank: int, label: str = "") -> Mapping[str, Any]:
    """Return this rank's part of a state, or else that of another.

    Raises:
        StateError: Not such a state, or of another format.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"{type(state).__name__} is no state; pass what state_dict returned")
    ranks = sorted(k for k in state if isinstance(k, str) and k.startswith(f"{label}rank"))
    key = f"{label}rank{rank}"
    if not ranks:
        raise StateError(
            f"no state of gradwire among the keys {sorted(map(str, state))[:5]}", missing=[key]
        )
    saved: Mapping[str, Any] = state[key if key in state else ranks[0]]
    found = saved.get("format") if isinstance(saved, Mapping) else None
    if found != _FORMAT:
        raise StateError(f"state of format {found!r}, this version reads {_FORMAT}")
    if missing := [k for k in _FIELDS if k not in saved]:
        raise StateError(f"state without {', '.join(missing)}", missing=missing)
    for key, least in (("rank", 0), ("world_size", 1), ("steps_done", 0)):
        try:
            check_whole(key, saved[key], least)
        except SpecError as error:
            raise StateError(f"broken state: {error}") from None
    return saved


def residual_scale(saved: Mapping[str, Any], rank: int, world_size: int) -> float | None:
    """Return the factor of saved residuals, or None to drop them, with a warning."""
    scale: float | None = world_size / int(saved["world_size"])
    reason = ""
    if int(saved["rank"]) != rank:
        scale = None
        reason = f"it holds rank {saved['rank']} of {saved['world_size']}, this is rank {rank}"
    elif int(saved["world_size"]) > world_size:
        scale = None
        reason = f"the world has shrunk from {saved['world_size']} to {world_size} ranks"
    if scale is None:
        warnings.warn(
            f"the residual in the checkpoint is dropped: {reason}", StateWarning, stacklevel=3
        )
    return scale
