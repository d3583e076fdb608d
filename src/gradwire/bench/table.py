"""Tables of the bench: what there is to compare, and what was measured."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire.bench.modes import MODES
from gradwire.bench.settings import ACCELERATOR, MODELS
from gradwire.report.results import BenchResult, Cell, ModeResult
from gradwire.units import format_bytes, format_rate, format_seconds

_BASELINE = "none"


def render_models() -> Table:
    """Return the table of models."""
    grid = Table("model", "", "parameters", title="Models", title_justify="left")
    for name, model in MODELS.items():
        grid.add_row(name, model.description, f"{model.num_parameters / 1e6:.1f} M")
    grid.add_row("accel", f"simulated accelerator: {ACCELERATOR}", "10.9 M")
    sleep = "sleep:MPARAM:FWD_MS:BWD_MS:LAYERS"
    grid.add_row(sleep, "one of your size and speed; computation needs no core", "MPARAM M")
    return grid


def render_modes() -> Table:
    """Return the table of modes."""
    grid = Table("mode", "", title="Modes; with @MB, DDP's buckets are of MB MiB")
    grid.title_justify = "left"
    for name, known in MODES.items():
        grid.add_row(name, known.note)
    grid.add_row("gradwire:PLAN", "gradwire.attach with a plan file or short name, as int4")
    return grid


def render_result(result: BenchResult) -> Group:
    """Return a table for each cell."""
    return Group(*(_cell(cell) for cell in result.cells))


def _cell(cell: Cell) -> Group:
    rate = format_rate(cell.rate_bytes_per_s) if cell.rate_bytes_per_s else "unlimited"
    title = f"{cell.model}, {cell.ranks} ranks, {rate}, {cell.network}"
    if cell.latency_s:
        title += f", latency {format_seconds(cell.latency_s)}"
    headings = ("mode", "step", "spread", "predicted", "exposed", "sent", "times faster")
    grid = Table(*headings, title=title, title_justify="left", title_style="bold")
    for column in grid.columns:
        column.no_wrap = True
        column.justify = "right" if column.header != "mode" else "left"
    baseline = next((m for m in cell.modes if m.mode.startswith(_BASELINE) and m.rounds), None)
    for mode in cell.modes:
        if mode.rounds:
            grid.add_row(mode.mode, *_values(mode, baseline))
    reasons = [f"- {m.mode} did not run: {m.reason}" for m in cell.modes if m.reason is not None]
    return Group(grid, Text("\n".join(reasons), "dim"))


def _values(mode: ModeResult, baseline: ModeResult | None) -> tuple[str, ...]:
    steps = [s for r in mode.rounds for s in r.steps]
    exposed_s = sorted(s.exposed_s for s in steps)[len(steps) // 2]
    predicted = "" if mode.predicted_s is None else format_seconds(mode.predicted_s)
    return (
        format_seconds(mode.step_s),
        f"± {format_seconds(mode.spread_s)}",
        predicted,
        format_seconds(exposed_s),
        format_bytes(mode.rounds[-1].sent_bytes),
        "" if baseline is None else f"{baseline.step_s / mode.step_s:.2f}x",
    )
