"""Hugging Face Accelerate: one line after `prepare`, or a handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from gradwire.engine.synchronizer import Synchronizer
from gradwire.integrations.attach import attach as attach_model
from gradwire.integrations.checkpoint import load_rank, save_rank
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec


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
        from now on, a file for each rank.
    """
    sync = attach_model(model, plan, **options)
    accelerator.register_save_state_pre_hook(lambda _models, _weights, to: _save(sync, to))
    accelerator.register_load_state_pre_hook(lambda _models, source: load_rank(sync, source))
    return sync


def _save(sync: Synchronizer, folder: str) -> None:
    save_rank(sync, folder)


@dataclass
class GradwireHandler(DistributedDataParallelKwargs):
    """DDP's options, and gradwire attached as soon as the model is prepared.

    Accelerate looks handlers up by their exact class, so this one is set, not
    passed: `accelerator.ddp_handler = GradwireHandler(plan="int6")` before
    `prepare`. It takes all options of `DistributedDataParallelKwargs`.

    Attributes:
        plan: See `gradwire.attach`.
        options: Further options of `gradwire.attach`.
        sync: The handle, once the model is prepared.
    """

    plan: Plan | ReducerSpec | str | Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    sync: Synchronizer | None = field(default=None, init=False)

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
        """Attach; Accelerate calls it with the wrapped model."""
        self.sync = attach_model(model, self.plan, **self.options)
