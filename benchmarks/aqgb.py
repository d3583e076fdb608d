"""AQGB against plain training, 16-bit hooks, PowerSGD and fixed 4-bit QSGD.

    python benchmarks/aqgb.py [--models accel,mlp] [--ranks 2,4] [--rates 100Mbit/s] [--seeds 2]

Needs root and iproute2 (ranks live in network namespaces); `--shaped` imitates the
links instead. The file is written after each cell, and goes on where it was
interrupted. `gradwire report FILE` shows it as a page, with timelines.

For each mode: a step, and its parts computed, hidden and waited; ROW; what was sent;
bits; the loss on held-out data; and the time to the loss that plain training reached
in three quarters of its steps (the others are left some room), which is the number of
steps to that loss times the median step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
from rich.console import Console

from gradwire.bench.matrix import run_matrix
from gradwire.bench.modes import parse_modes
from gradwire.bench.settings import CellJob, Matrix
from gradwire.errors import GradwireError
from gradwire.report.results import BenchResult, Cell, ModeResult
from gradwire.timeline import ratio
from gradwire.units import format_rate, parse_rate, parse_seconds

PLAIN, QSGD, AQGB = ("none", "none@5"), "overlap:qsgd4", "overlap:aqgb"
MODES = (
    "nosync,none@5,fp16@5,powersgd1@1000,overlap:none,overlap:bf16,"
    "overlap:qsgd4,overlap:int4@broadcast,overlap:aqgb"
)
RIVALS = (
    "plain",
    "overlap:none",
    "fp16@5",
    "overlap:bf16",
    "powersgd1@1000",
    QSGD,
    "overlap:int4@broadcast",
)


def _reached(mode: ModeResult, goal: float) -> float | None:
    """Return the time to a loss: steps, between two validations in a straight line."""
    before: tuple[float, float] | None = None
    for point in mode.validations:
        if point.loss <= goal:
            steps = float(point.step)
            if before is not None and before[1] > point.loss:
                share = (before[1] - goal) / (before[1] - point.loss)
                steps = before[0] + share * (point.step - before[0])
            return steps * mode.step_s
        before = (point.step, point.loss)
    return None


def _plain(cell: Cell) -> ModeResult | None:
    ran = [m for name in PLAIN if (m := cell.mode(name)) is not None and m.has_run]
    return min(ran, key=lambda m: m.step_s, default=None)


def goal_of(cell: Cell) -> float | None:
    """Return the loss that plain training had after three quarters of its steps."""
    plain = _plain(cell)
    points = plain.validations if plain is not None else ()
    return points[(3 * len(points) - 1) // 4].loss if points else None


def times_of(cell: Cell) -> dict[str, float | None]:
    """Return each mode's time to that loss; its step where nothing is learned."""
    goal = goal_of(cell)
    ran = [m for m in cell.modes if m.has_run and m.mode != "nosync"]
    return {m.mode: m.step_s if goal is None else _reached(m, goal) for m in ran}


def _line(mode: ModeResult, reached_s: float | None) -> str:
    def part(name: str) -> float:
        return 1e3 * median(getattr(s, name) or 0.0 for s in mode.steps)

    exposed, hidden = part("exposed_s"), part("overlap_s")
    row = ratio(hidden, exposed) if any(s.overlap_s is not None for s in mode.steps) else None
    bits = f"{min(mode.bits.values()):.1f}-{max(mode.bits.values()):.1f}" if mode.bits else ""
    loss = f"{mode.validations[-1].loss:.3f}" if mode.validations else ""
    end = f"{reached_s:.1f}" if reached_s is not None and mode.validations else ""
    return (
        f"  {mode.mode:22} {1e3 * mode.step_s:7.0f} ±{1e3 * mode.spread_s:4.0f}"
        f" {part('forward_s') + part('backward_s') + part('optimiser_s'):7.0f} {hidden:6.0f}"
        f" {exposed:6.0f} {'' if row is None else format(row, '.1f'):>6}"
        f" {median(r.sent_bytes for r in mode.rounds) / 1e6:7.2f} {bits:>9} {loss:>7} {end:>7}"
    )


def _show(cell: Cell) -> None:
    rate = "unlimited" if cell.rate_bytes_per_s is None else format_rate(cell.rate_bytes_per_s)
    seed = cell.settings.get("seed", 0)
    print(f"{cell.model}, {cell.ranks} ranks, {rate}, seed {seed}, {cell.network}")
    print(
        f"  {'mode':22} {'step ms':>13} {'compute':>7} {'hidden':>6} {'waited':>6} {'ROW':>6}"
        f" {'MB':>7} {'bits':>9} {'loss':>7} {'to goal':>7}"
    )
    times = times_of(cell)
    for mode in cell.modes:
        print(
            _line(mode, times.get(mode.mode)) if mode.has_run else f"  {mode.mode}: {mode.reason}"
        )


def _ratio(cell: Cell, other: str | None) -> float | None:
    times = times_of(cell)
    mine, theirs = times.get(AQGB), times.get(other or "")
    return theirs / mine if mine and theirs else None


def _summary(cells: Sequence[Cell]) -> None:
    """Print how many times faster AQGB was, over seeds."""
    print(
        "AQGB, times faster to the loss of plain training (a step, where nothing is learned);"
        " median over seeds, and range"
    )
    for setting in dict.fromkeys((c.model, c.ranks, c.rate_bytes_per_s) for c in cells):
        same = [c for c in cells if (c.model, c.ranks, c.rate_bytes_per_s) == setting]
        texts = []
        for label in (*RIVALS, "best hook", "nosync"):
            found = [x for c in same if (x := against(c, label)) is not None]
            if found:
                texts.append(f"{label} {median(found):.2f} ({min(found):.2f}-{max(found):.2f})")
        model, ranks, rate = setting
        link = "unlimited" if rate is None else format_rate(rate)
        print(f"  {model:7} {ranks} ranks {link:>10}: {', '.join(texts)}")


def against(cell: Cell, label: str) -> float | None:
    """Return how many times faster AQGB is than a mode, to the goal or in a step."""
    plain, mine = _plain(cell), cell.mode(AQGB)
    if label == "plain":
        return _ratio(cell, plain.mode if plain else None)
    if label == "nosync":  # nothing learns in common there: steps alone
        alone = cell.mode(label)
        both = alone is not None and alone.has_run and mine is not None and mine.has_run
        return alone.step_s / mine.step_s if both else None
    if label == "best hook":  # by step, as a launch of its own would choose
        ran = [m for m in cell.modes if m.family in ("hook", "ddp") and m.has_run]
        best = min(ran, key=lambda m: m.step_s, default=None)
        return best.step_s / mine.step_s if best and mine is not None and mine.has_run else None
    return _ratio(cell, label)


@click.command()
@click.option("--models", default="accel,mlp,digits,text,embed,vgg", show_default=True)
@click.option("--ranks", default="2,4", show_default=True)
@click.option("--rates", default="100Mbit/s,300Mbit/s,1Gbit/s", show_default=True)
@click.option("--modes", default=MODES, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--rounds", default=12, show_default=True)
@click.option("--steps", default=8, show_default=True, help="Of a mode in a round, at most.")
@click.option("--round-time", default="1s", show_default=True)
@click.option("--shaped", is_flag=True, help="Imitated links, which need no rights.")
@click.option("--show", is_flag=True, help="Print what the file holds, and measure nothing.")
@click.option("--out", default="reports/aqgb.json", type=click.Path(path_type=Path))
def main(  # noqa: PLR0913 - one argument an option
    *,
    models: str,
    ranks: str,
    rates: str,
    modes: str,
    seeds: int,
    rounds: int,
    steps: int,
    round_time: str,
    shaped: bool,
    show: bool,
    out: Path,
) -> None:
    """Measure, then print everything."""
    matrix = Matrix(
        tuple(models.split(",")),
        tuple(int(n) for n in ranks.split(",")),
        tuple(parse_rate(rate) for rate in rates.split(",")),
    )
    jobs: list[CellJob] = []
    for seed in range(seeds):
        settings = {"seed": seed, "rounds": rounds, "steps": steps}
        found = matrix.jobs(
            "shaped" if shaped else "lab",
            parse_modes(modes),
            round_s=parse_seconds(round_time),
            **settings,
        )
        # A simulated accelerator learns nothing: one seed says it all.
        jobs += [job for job in found if seed == 0 or not job.model.startswith(("accel", "sleep"))]
    previous = BenchResult.from_json(out.read_text(encoding="utf-8")) if out.exists() else None
    try:
        if not show:
            out.parent.mkdir(parents=True, exist_ok=True)
            previous = run_matrix(jobs, out, previous, Console())
    except GradwireError as error:
        raise click.ClickException(str(error)) from error
    if previous is None:
        raise click.ClickException(f"{out} is not there yet")
    for cell in previous.cells:
        _show(cell)
    _summary(previous.cells)


if __name__ == "__main__":
    main()
