"""State in checkpoints of trainers: a file a rank, or one dictionary of all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import StateError

_NAME = "gradwire_rank{}.pt"


def save_rank(sync: Synchronizer, folder: str | Path) -> Path:
    """Write this rank's state into a folder, on every rank; whole or not at all.

    Returns:
        The file, `gradwire_rank<r>.pt`.

    Example:
        >>> from gradwire.integrations.checkpoint import save_rank  # doctest: +SKIP
        >>> save_rank(sync, "checkpoint-100")  # doctest: +SKIP
    """
    path = Path(folder) / _NAME.format(sync.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(sync.state_dict(), partial)
    partial.replace(path)
    return path


def load_rank(sync: Synchronizer, folder: str | Path) -> None:
    """Read what `save_rank` wrote; call it on every rank.

    A rank that has no file of its own, as the world has grown, takes the step
    count from another's.

    Raises:
        StateError: No such file in the folder, or a broken one.
    """
    own = Path(folder) / _NAME.format(sync.rank)
    found = sorted(Path(folder).glob(_NAME.format("*")))
    if not found:
        raise StateError(f"no {_NAME.format('<r>')} in {folder}", missing=[own.name])
    sync.load_state_dict(torch.load(own if own in found else found[0], weights_only=True))


def gather_state(sync: Synchronizer) -> dict[str, Any]:
    """Return every rank's state, for a rank 0 that saves for all; a collective."""
    states = [s for s in sync.gather_objects(sync.state_dict()) if isinstance(s, Mapping)]
    return {key: state for states_of_rank in states for key, state in states_of_rank.items()}


class EveryRank:
    """All ranks' state as one object, for trainers that save a `state_dict`.

    Such as Lightning Fabric: `fabric.save(path, {"model": model, "gradwire":
    EveryRank(sync)})`, on every rank, and `fabric.load` with the same.

    Args:
        sync: The handle.
    """

    def __init__(self, sync: Synchronizer) -> None:
        self._sync = sync

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's state; a collective."""
        return gather_state(self._sync)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with this rank's part of it."""
        self._sync.load_state_dict(state_dict)
