"""How far is the simulator from what the lab has measured?

    python benchmarks/predictions.py docs/assets/results/bench.json [--write]

Each cell is predicted once more from the inputs stored with it; `--write` puts
these predictions into the file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import click

from gradwire.bench.predict import repeated
from gradwire.report.results import BenchResult


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--write", is_flag=True, help="Store the predictions of this version.")
def main(path: Path, *, write: bool) -> None:
    """Print measured and predicted milliseconds a step, and how far they are apart."""
    result = BenchResult.from_json(path.read_text(encoding="utf-8"))
    cells = tuple(map(repeated, result.cells))
    deviations = []
    print(f"{'cell':<32} {'mode':<16} {'measured':>14} {'predicted':>9} {'off':>7}")
    for cell in cells:
        for m in cell.modes:
            if m.predicted_s is None:
                continue
            off = m.predicted_s / m.step_s - 1
            deviations.append(abs(off))
            measured = f"{m.step_s * 1e3:.0f} ± {m.spread_s * 1e3:.0f} ms"
            print(
                f"{cell.name:<32} {m.mode:<16} {measured:>14}"
                f" {m.predicted_s * 1e3:>6.0f} ms {off:>+7.1%}"
            )
    within = sum(d < 0.1 for d in deviations)  # noqa: PLR2004 - the goal
    print(
        f"median {median(deviations):.1%}, largest {max(deviations):.1%},"
        f" {within} of {len(deviations)} within 10 %"
    )
    if write:
        path.write_text(replace(result, cells=cells).to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
