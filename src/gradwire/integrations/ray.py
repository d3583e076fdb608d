"""Ray Train: `prepare_model` with gradwire attached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.train.torch import prepare_model as ray_prepare_model
from torch import nn

from gradwire.engine.synchronizer import Synchronizer
from gradwire.integrations.attach import attach
from gradwire.plan import Plan
from gradwire.spec import ReducerSpec


def prepare_model(
    model: nn.Module,
    plan: Plan | ReducerSpec | str | Path | None = None,
    *,
    attach_options: dict[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - those of Ray's function
) -> tuple[nn.Module, Synchronizer]:
    """Prepare a model as `ray.train.torch.prepare_model` does, and attach to it.

    Call it in the training function, on every worker.

    Args:
        model: The model.
        plan: See `gradwire.attach`.
        attach_options: Further options of `gradwire.attach`.
        options: Those of `ray.train.torch.prepare_model`.

    Returns:
        The wrapped model, and the handle.
    """
    wrapped: nn.Module = ray_prepare_model(model, **options)
    return wrapped, attach(wrapped, plan, **(attach_options or {}))
