"""Predicts the steps of a measured cell by simulation. No torch here."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from gradwire.bench.calibrate import calibrated, lateness_s
from gradwire.bench.modes import parse_mode
from gradwire.demo.settings import Method
from gradwire.errors import SpecError
from gradwire.hardware import Hardware
from gradwire.plan import Plan, load_plan
from gradwire.report.results import Cell, ModeResult, StepTimes
from gradwire.sim.base import Cluster, Collective, Engine, Simulation
from gradwire.sim.run import simulate
from gradwire.workload import BUCKET_BYTES, Layer, Workload

_MIB = 1 << 20
_LEAST_BUSY = 0.3
"""Share of the time of steps without exchange for which computation needs a core."""
_BY_HOOK = {
    None: "none",
    "fp16": "bf16",
    "bf16": "bf16",
    "powersgd1": "low_rank:1",
    "powersgd2": "low_rank:2",
}
"""Plans that send what PyTorch's hooks send; how fast those compute is measured."""


def plan_of(mode: Method) -> Plan | None:
    """Return the plan that sends what a mode sends; None where none does.

    Example:
        >>> plan_of(Method("fp16", "", "hook", hook="fp16")) == Plan.of("bf16")
        True
    """
    if mode.plan is not None:
        return load_plan(mode.plan)
    return Plan.of(_BY_HOOK[mode.hook]) if mode.hook in _BY_HOOK else None


def predict(cell: Cell, modes: tuple[Method, ...], workload: Workload, hardware: Hardware) -> Cell:
    """Fill in the predicted step times of a cell.

    Computation is that of the measured mode `nosync`, where there is one; how
    it divides into layers comes from the workload. What the exchange costs
    beside the network comes from steps whose exchange took no time, and the
    network from its collectives by themselves; that ranks come to it at
    different times is added once. The mode `nosync` itself gets no prediction.

    Args:
        cell: What was measured.
        modes: Its modes, as they were asked for.
        workload: The model's layers.
        hardware: Speeds of codecs and links, where the cell was measured.
    """
    asked = {mode.name: mode for mode in modes}
    return replace(
        cell,
        modes=tuple(
            replace(m, predicted_s=_predicted_s(asked[m.mode], m, cell, (workload, hardware)))
            if m.has_run and m.predicted_s is None
            else m
            for m in cell.modes
        ),
        inputs={"workload": workload.to_json(), "hardware": hardware.to_json()},
    )


def repeated(cell: Cell) -> Cell:
    """Predict a stored cell once more, from the inputs that it holds.

    Raises:
        SpecError: It holds none.
    """
    if not cell.inputs:
        raise SpecError("cell", cell.name, "one that holds what predictions are made from")
    workload = Workload.from_json(cell.inputs["workload"])
    hardware = Hardware.from_json(cell.inputs["hardware"])
    fresh = replace(cell, modes=tuple(replace(m, predicted_s=None) for m in cell.modes))
    return predict(fresh, tuple(parse_mode(m.mode) for m in cell.modes), workload, hardware)


def _predicted_s(
    mode: Method, measured: ModeResult, cell: Cell, inputs: tuple[Workload, Hardware]
) -> float | None:
    plan = plan_of(mode)
    if plan is None:
        return None
    workload, hardware = inputs
    compute = next((m for m in cell.modes if m.family == "compute" and m.has_run), None)
    cores = hardware.device.cores if _has_shared_cores(cell, compute, hardware) else 0
    if compute is not None:
        share = _work_s(compute.steps, cell.ranks, cores) / _total_s(compute.steps)
        workload = as_measured(workload, compute, share if cores else 1.0)

    def run(speeds: Hardware, cores: int) -> Simulation:
        return _run(mode, plan, workload, speeds, Cluster(cell.ranks, shared_cores=cores))

    if cores and measured.alone:
        used_s = _work_s(measured.alone, cell.ranks, cores)
        hardware = calibrated(hardware, lambda speeds: run(speeds, 0).work_s, used_s)
    elif measured.alone:
        alone_s = _total_s(measured.alone)
        hardware = calibrated(hardware, lambda speeds: run(speeds, 0).step_s, alone_s)
    return run(hardware, cores).step_s + lateness_s(hardware.between)


def _has_shared_cores(cell: Cell, compute: ModeResult | None, hardware: Hardware) -> bool:
    """Return whether ranks share cores that computation needs: no model that sleeps does."""
    if cell.network != "lab" or compute is None or not hardware.between.processor:
        return False
    used_s = _work_s(compute.steps, cell.ranks, hardware.device.cores)
    return used_s > _LEAST_BUSY * _total_s(compute.steps)


def _work_s(steps: tuple[StepTimes, ...], ranks: int, cores: int) -> float:
    """Return a step's processor time; where it is not known, a rank's share of the cores."""
    share = min(1.0, cores / ranks)
    return median(s.total_s * share if s.processor_s is None else s.processor_s for s in steps)


def _total_s(steps: tuple[StepTimes, ...]) -> float:
    return median(s.total_s for s in steps)


def as_measured(workload: Workload, alone: ModeResult, share: float = 1.0) -> Workload:
    """Scale a workload's times to the medians of steps without exchange.

    Args:
        workload: Layers, and how a step divides into them.
        alone: Steps without exchange.
        share: Of their time, what counts: that of the processor.
    """
    forward_s, backward_s, optimiser_s = (
        share * median(getattr(s, name) for s in alone.steps)
        for name in ("forward_s", "backward_s", "optimiser_s")
    )
    forward = forward_s / workload.forward_s if workload.forward_s else 1.0
    backward = backward_s / workload.backward_s if workload.backward_s else 1.0
    layers = tuple(
        Layer(x.name, x.parameters, x.forward_s * forward, x.backward_s * backward)
        for x in workload.layers
    )
    return replace(workload, layers=layers, optimiser_s=optimiser_s)


def _run(
    mode: Method, plan: Plan, workload: Workload, hardware: Hardware, cluster: Cluster
) -> Simulation:
    engine: Engine = "overlap" if mode.hook == "overlap" else "ddp"
    # PyTorch's hooks reduce by the back end, gradwire exchanges directly.
    collective: Collective = "direct" if mode.family == "gradwire" else "ring"
    cap_mb = mode.bucket_cap_mb
    bucket_bytes = BUCKET_BYTES if cap_mb is None else round(cap_mb * _MIB)
    return simulate(
        plan,
        workload,
        hardware,
        cluster,
        engine=engine,
        bucket_bytes=bucket_bytes,
        collective=collective,
    )
