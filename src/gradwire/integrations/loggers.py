"""Step statistics into any logger: one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradwire.engine.stats import StepStats


def log_to(writer: Any) -> Callable[[StepStats], None]:  # noqa: ANN401 - any object with one of two methods
    """Return an `on_step` callback that writes each step's numbers.

    Args:
        writer: An object with `add_scalar(name, value, step)` (TensorBoard) or
            `log(values, step=step)` (Weights & Biases, trackio, Accelerate).

    Raises:
        TypeError: It has neither.

    Example:
        >>> class Printer:
        ...     def log(self, values, step):
        ...         print(step, values["gradwire/sent_bytes"])
        >>> log_to(Printer())(StepStats(7, (), 0.0, 0.0, True))
        7 0.0
    """
    if hasattr(writer, "add_scalar"):

        def write(stats: StepStats) -> None:
            for name, value in stats.scalars().items():
                writer.add_scalar(name, value, stats.step)

    elif hasattr(writer, "log"):

        def write(stats: StepStats) -> None:
            writer.log(stats.scalars(), step=stats.step)

    else:
        raise TypeError(f"{type(writer).__name__} has neither add_scalar nor log")
    return write
