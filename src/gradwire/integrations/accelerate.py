"""Hugging Face Accelerate: one line after `prepare`, or a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError
from gradwire.integrations.attach import attach as attach_model
from gradwire.integrations.checkpoint import load_rank, save_rank
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec

_carried: WeakKeyDictionary[Accelerator, int] = WeakKeyDictionary()
"""How many models' states each accelerator's checkpoints carry."""


def attach(
    accelerator: Accelerator,
    model: object,
    plan: Plan | ReducerSpec | str | Path | None = None,
    **options: Any,  # noqa: ANN401 - those of `gradwire.attach`
) -> Synchronizer:
    """Compress the gradients of a prepared model, and save what is owed.

    Args:
        accelerator: The one that prepared the model.
        model: What `accelerator.prepare` returned.
        plan: See `gradwire.attach`.
        options: See `gradwire.attach`.

    Returns:
        The handle. `accelerator.save_state` and `load_state` carry its state
        from now on, a file for each rank; of a second model in a folder of its own,
        so attach models in the same order before a checkpoint is loaded.
    """
    sync = attach_model(model, plan, **options)
    _carry(accelerator, lambda: sync)
    return sync


def _carry(accelerator: Accelerator, handle: Callable[[], Synchronizer | None]) -> None:
    """Have `save_state` and `load_state` carry what the handle of then owes."""
    number = _carried.get(accelerator, 0)
    _carried[accelerator] = number + 1
    place = f"gradwire_model{number}" if number else ""  # as Accelerate numbers its files

    def save(_models: object, _weights: object, folder: str) -> None:
        if sync := handle():
            save_rank(sync, Path(folder) / place)

    def load(_models: object, folder: str) -> None:
        if sync := handle():
            load_rank(sync, Path(folder) / place)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


@dataclass
class GradwireHandler(DistributedDataParallelKwargs):
    """DDP's options, and gradwire attached as soon as the model is prepared.

    Accelerate looks handlers up by their exact class, so this one is not passed
    to it but added: `GradwireHandler(plan="int6", bucket_cap_mb=5).add_to(accelerator)`
    before `prepare`. It takes all options of `DistributedDataParallelKwargs`.

    Attributes:
        plan: See `gradwire.attach`.
        options: Further options of `gradwire.attach`.
        sync: The handle, once the model is prepared.
    """

    plan: Plan | ReducerSpec | str | Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sync: Synchronizer | None = field(default=None, init=False)

    def add_to(self, accelerator: Accelerator) -> None:
        """Attach to the model it prepares; its checkpoints carry what is owed."""
        accelerator.ddp_handler = self
        _carry(accelerator, lambda: self.sync)

    def to_dict(self, ignore_keys: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return what DDP itself takes."""
        ours = ("plan", "options", "sync")
        kept: dict[str, Any] = super().to_dict()
        return {k: v for k, v in kept.items() if k not in ours}

    def to_kwargs(self) -> dict[str, Any]:
        """Return the options of DDP that differ from its defaults."""
        default = DistributedDataParallelKwargs().to_dict()
        return {k: v for k, v in self.to_dict().items() if default[k] != v}

    def register_comm_hook(self, model: object) -> None:
        """Attach; Accelerate calls it with the wrapped model.

        Raises:
            SpecError: It is the second model.
        """
        if self.sync is not None:
            raise SpecError("models of a GradwireHandler", 2, "1: use attach for each")
        self.sync = attach_model(model, self.plan, **self.options)
