"""Hugging Face Transformers: a callback for its Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradwire.engine.synchronizer import Synchronizer
from gradwire.integrations.attach import attach
from gradwire.integrations.checkpoint import load_rank, save_rank
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec


class GradwireCallback(TrainerCallback):
    """Attaches when training begins; saves and loads what is owed.

    Args:
        trainer: The trainer it is added to: Transformers tells callbacks the
            unwrapped model only.
        plan: See `gradwire.attach`.
        options: Further options of `gradwire.attach`.

    Example:
        >>> trainer.add_callback(GradwireCallback(trainer, "int6"))  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
    """

    def __init__(
        self,
        trainer: Trainer,
        plan: Plan | ReducerSpec | str | Path | None = None,
        **options: Any,  # noqa: ANN401 - those of `gradwire.attach`
    ) -> None:
        self.sync: Synchronizer | None = None
        self._trainer = trainer
        self._plan = plan
        self._options = options

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        """Attach, and continue what a checkpoint holds."""
        self.sync = attach(self._trainer.model_wrapped, self._plan, **self._options)
        if state.global_step > 0:
            load_rank(self.sync, _folder(args, state))

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        """Save this rank's state beside the Trainer's."""
        if self.sync is not None:
            save_rank(self.sync, _folder(args, state))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        """Disconnect."""
        if self.sync is not None:
            self.sync.close()


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
