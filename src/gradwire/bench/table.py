"""Tables of what the bench can compare."""

from __future__ import annotations

from rich.table import Table

from gradwire.bench.modes import MODES, PLANNED
from gradwire.bench.settings import ACCELERATOR, MODELS


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
    for name, known in PLANNED.items():
        grid.add_row(f"{name}:PLAN", known.note)
    return grid
