"""Step statistics into any logger: one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradwire.engine.stats import StepStats


def log_to(writer: Any) -> Callable[[StepStats], None]:  # noqa: ANN401 - one of several kinds of objects
    """Return an `on_step` callback that writes each step's numbers.

    Args:
        writer: An object with `add_scalar(name, value, step)` (TensorBoard) or
            `log(values, step=step)` (Weights & Biases, trackio, Accelerate), or
            a `CollectorRegistry` of Prometheus, which gets a gauge for each
            number, such as `gradwire_sent_bytes`.

    Raises:
        TypeError: It is none of these.

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

    elif hasattr(writer, "register") and hasattr(writer, "collect"):
        return _gauges(writer)

    else:
        name = type(writer).__name__
        raise TypeError(f"{name} has neither add_scalar nor log, and is no registry of Prometheus")
    return write


def _gauges(registry: Any) -> Callable[[StepStats], None]:  # noqa: ANN401 - Prometheus may be missing
    from prometheus_client import Gauge  # noqa: PLC0415 - who has a registry has the package

    gauges: dict[str, Any] = {}

    def write(stats: StepStats) -> None:
        for name, value in {**stats.scalars(), "gradwire/step": stats.step}.items():
            if name not in gauges:
                words = name.partition("/")[2].replace("_", " ") + " of a step"
                gauges[name] = Gauge(name.replace("/", "_"), words, registry=registry)
            gauges[name].set(value)

    return write
