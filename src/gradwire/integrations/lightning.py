"""Lightning: a strategy and a callback that register on the CPU too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from gradwire.engine.synchronizer import Synchronizer
from gradwire.errors import SpecError
from gradwire.integrations.attach import attach
from gradwire.integrations.checkpoint import gather_state
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec

_KEY = "gradwire"


class GradwireStrategy(DDPStrategy):
    """DDP with gradwire attached; what is owed is saved with every checkpoint.

    `DDPStrategy(ddp_comm_hook=...)` is silently ignored on a CPU; this is not.

    Args:
        plan: See `gradwire.attach`.
        attach_options: Further options of `gradwire.attach`.
        options: Those of `DDPStrategy`.
    """

    def __init__(
        self,
        plan: Plan | ReducerSpec | str | Path | None = None,
        attach_options: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - those of DDPStrategy
    ) -> None:
        super().__init__(**options)
        self.plan = plan
        self.sync: Synchronizer | None = None
        self._attach_options = attach_options or {}
        self._loaded: dict[str, Any] | None = None

    def _register_ddp_hooks(self) -> None:
        self.sync = attach(self.model, self.plan, **self._attach_options)
        if self._loaded is not None:
            self.sync.load_state_dict(self._loaded)
            self._loaded = None

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: str | Path,
        storage_options: Any = None,  # noqa: ANN401 - as Lightning has it
    ) -> None:
        """Save every rank's state with the trainer's, unless only weights are saved."""
        if self.sync is not None and "optimizer_states" in checkpoint:
            checkpoint[_KEY] = gather_state(self.sync)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self,
        checkpoint_path: str | Path,
        **options: Any,  # noqa: ANN401 - Lightning's own, which differ by version
    ) -> dict[str, Any]:
        """Keep a checkpoint's state until the model is wrapped; Lightning loads the rest."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, **options)
        self._loaded = checkpoint.get(_KEY)
        return checkpoint


class GradwireCallback(Callback):
    """Attaches when training starts, and saves and loads what is owed.

    Needs the plain `ddp` strategy; `GradwireStrategy` does without a callback.

    Args:
        plan: See `gradwire.attach`.
        options: Further options of `gradwire.attach`.
    """

    def __init__(
        self,
        plan: Plan | ReducerSpec | str | Path | None = None,
        **options: Any,  # noqa: ANN401 - those of `gradwire.attach`
    ) -> None:
        self.plan = plan
        self.sync: Synchronizer | None = None
        self._options = options
        self._loaded: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the strategy's DDP model."""
        name = type(trainer.strategy).__name__
        if isinstance(trainer.strategy, GradwireStrategy):
            raise SpecError("strategy", name, '"ddp", or without the callback: it needs none')
        if not isinstance(trainer.strategy, DDPStrategy):
            raise SpecError("strategy", name, '"ddp"')
        self.sync = attach(trainer.strategy.model, self.plan, **self._options)
        if self._loaded is not None:
            self.sync.load_state_dict(self._loaded)
            self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """Return every rank's state; Lightning calls it on all ranks and saves rank 0's."""
        return {} if self.sync is None else gather_state(self.sync)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until training starts."""
        self._loaded = state_dict or None
