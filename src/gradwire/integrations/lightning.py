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

    def _register_ddp_hooks(self) -> None:
        self.sync = attach(self.model, self.plan, **self._attach_options)

    def teardown(self) -> None:
        """Disconnect, then take the model down."""
        if self.sync is not None:
            self.sync.close()
        super().teardown()


class GradwireCallback(Callback):
    """Attaches when training starts, and saves and loads what is owed.

    Needs the plain `ddp` strategy, or `GradwireStrategy`, whose handle it then
    uses: with that, it is there for the checkpoints only.

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
        self.sync = getattr(trainer.strategy, "sync", None)
        if self.sync is None:
            if not isinstance(trainer.strategy, DDPStrategy):
                name = type(trainer.strategy).__name__
                raise SpecError("strategy", name, '"ddp", or GradwireStrategy')
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
