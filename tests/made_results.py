"""Made-up results of demo, bench and sweep: numbers chosen so that every wording appears."""

from __future__ import annotations

from dataclasses import replace

from gradwire.plan import Plan
from gradwire.report.model import (
    DemoResult,
    Environment,
    Family,
    MethodResult,
    Settings,
    Step,
    Validation,
)
from gradwire.report.results import BenchResult, Cell, ModeResult, Round, StepTimes
from gradwire.sim.sweep import Grid, Point, SweepResult, SweptWorkload
from gradwire.timeline import Span, Timeline

PLAN = Plan.of("int4").to_json()


def steps(exposed_s: float, *, count: int = 5, wobble: float = 0.02) -> tuple[StepTimes, ...]:
    return tuple(
        StepTimes(0.010, 0.020, exposed_s * (1 + wobble * (i % 3 - 1)), 0.002, 0.015)
        for i in range(count)
    )


def mode(
    name: str,
    label: str,
    family: Family,
    exposed_s: float,
    *,
    worse: float = 0.0,
    rounds: int = 3,
    **fields: object,
) -> ModeResult:
    made = tuple(
        Round(steps(exposed_s * (1 + 0.01 * i)), round(exposed_s * 12.5e6), 0.1)
        for i in range(rounds)
    )
    validations = tuple(
        Validation(10 * i, 2.3 - 0.2 * i + worse * i / 5, 0.1 * i) for i in range(6)
    )
    elapsed_s = tuple(10 * i * (0.032 + exposed_s) for i in range(6))
    given = {
        "rounds": made,
        "validations": validations,
        "elapsed_s": elapsed_s,
        "digests": ("a1", "a1"),
        "predicted_s": 0.032 + exposed_s * 1.05,
    }
    return ModeResult(name, label, family, **{**given, **fields})


def timeline() -> Timeline:
    layers, spans, now = ("conv1", "conv2", "fc"), [], 0.0
    for rank in range(2):
        now = 0.0
        for layer in layers:
            spans.append(Span(rank, "forward", layer, now, now + 0.003))
            now += 0.003
        for i, layer in enumerate(reversed(layers)):
            spans.append(Span(rank, "backward", layer, now, now + 0.006))
            now += 0.006
            spans.append(Span(rank, "encode", layer, now, now + 0.001))
            spans.append(
                Span(rank, "transfer", layer, now + 0.001, now + 0.012, 40_000, 2.0 + 2 * i)
            )
            spans.append(Span(rank, "decode", layer, now + 0.012, now + 0.013))
        spans.append(Span(rank, "wait", "conv1", now, now + 0.013))
        spans.append(Span(rank, "optimiser", "all", now + 0.013, now + 0.015))
    return Timeline(tuple(spans), now + 0.015)


def cell(model: str, ranks: int, rate: float | None, scale: float) -> Cell:
    modes = (
        mode("none@25", "plain DDP", "ddp", 1.0 * scale),
        mode("fp16@25", "fp16 hook", "hook", 0.5 * scale, rounds=2),
        mode("powersgd1@1000", "PowerSGD hook", "hook", 0.1 * scale + 0.01, worse=0.2),
        mode("int2", "gradwire int2", "gradwire", 0.08 * scale + 0.02, worse=0.1),
        mode(
            "int4",
            "gradwire int4",
            "gradwire",
            0.13 * scale,
            plan=PLAN,
            why=("The link takes longer than encoding.",),
            bits={"conv1": 2.0, "conv2": 4.0, "fc": 8.0},
            timeline=timeline(),
        ),
        ModeResult("fp8", "gradwire fp8", "gradwire", reason="no kernel for <fp8> on this CPU"),
    )
    return Cell(model, ranks, rate, 0.001, "lab", modes, 3_100_000)


def bench_result() -> BenchResult:
    torn = mode("int4", "gradwire int4", "gradwire", 0.2, digests=("a1", "b2"))
    shaky = mode("none@25", "plain DDP", "ddp", 0.3)
    wild = tuple(
        Round(steps(0.3, wobble=0.5), 12_500_000, foreign_cores=0.2 + 0.3 * i) for i in range(3)
    )
    bad = Cell(
        "digits",
        2,
        None,
        0.0,
        "none",
        (replace(shaky, rounds=wild), torn),
        300_000,
    )
    return BenchResult(
        Environment("0.1.0", "2.13.0", "3.13.0", "Linux", "Some <CPU>", 2),
        (cell("vgg", 4, 12.5e6, 1.0), cell("text", 2, 1.25e9, 0.02), bad),
        "2026-01-02T03:04:05+00:00",
        61.0,
        {"seed": 0, "steps_per_round": 5},
    )


def demo_method(
    name: str, label: str, family: Family, *, exposed_s: float, worse: float
) -> MethodResult:
    steps = tuple(
        Step(
            step=i,
            loss=3.0 - 0.1 * i + worse + 0.01 * (i % 2),
            forward_s=0.1,
            backward_s=0.2,
            exposed_s=exposed_s + 0.002 * (i % 3),
            optimiser_s=0.01,
            sent_bytes=round(exposed_s * 25e6),
        )
        for i in range(12)
    )
    validation = Validation(12, 2.0 + worse, 0.4)
    return MethodResult(name, label, family, steps, (validation,), ("a1", "a1"))


def demo_result() -> DemoResult:
    return DemoResult(
        settings=Settings(
            task="text",
            num_parameters=10_900_000,
            ranks=2,
            steps=12,
            batch_size=8,
            seed=0,
            link_bytes_per_s=25e6,
            latency_s=0.001,
            untimed_steps=2,
        ),
        environment=Environment("0.1.0", "2.13.0", "3.13.0", "Linux", "Some <CPU>", 2),
        methods=(
            demo_method("ddp", "plain DDP", "ddp", exposed_s=1.7, worse=0.0),
            demo_method("fp16", "fp16 hook", "hook", exposed_s=0.8, worse=0.0),
            demo_method("powersgd", "PowerSGD hook", "hook", exposed_s=0.1, worse=0.3),
            demo_method(
                "gradwire:int4", "gradwire int4", "gradwire", exposed_s=0.1001, worse=0.002
            ),
        ),
        started="2026-01-02T03:04:05+00:00",
        wall_s=61.0,
    )


SWEEP_RATES = (1e8, 1e9, 1e10)
_PLANS = {"none": (0.0, 1e8), "int4": (0.02, 1.25e7), "int2": (0.0201, 1.25e7)}


def sweep_result(**changes: float) -> SweepResult:
    """Make a sweep: int4 sends an eighth of none's 100 MB, and encodes for 20 ms."""
    grid = Grid((2, 1024), SWEEP_RATES, tuple(_PLANS))
    points = tuple(
        Point("tiny", "ddp", ranks, rate, plan, 0.1 + encode + size / rate, 0.0, int(size), None)
        for ranks in grid.ranks
        for rate in SWEEP_RATES
        for plan, (encode, size) in _PLANS.items()
    )
    work = SweptWorkload("tiny", "", 8, 1000, 0.1)
    return SweepResult(grid, (work,), "Some <CPU>, modelled", "", points, **changes)
