"""Which schedule of bits learns most from the same bytes?

    python benchmarks/schedules.py [--tasks digits,text] [--seeds 3] [--steps 120]

Where communication binds, a step takes as long as its bytes, and the floor of bits
decides. Ranks live in one process and take turns, so no clock is involved: every
layer travels in the floor's bits, with feedback. Printed are the bytes each rank
sent until the loss that float32 has after two thirds of its steps, against those of
4 bits throughout: the median over seeds, and the range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import click
import torch
from harm import Training, task_of

from gradwire.control.levels import codec
from gradwire.control.progress import Schedule, schedule_of
from gradwire.demo.tasks import Task
from gradwire.spec import Adaptive

_EVERY = 4


def _schedules(steps: int) -> dict[str, Schedule | None]:
    def of(name: str, floor: int, peak: int, bound: float = 0.8) -> Schedule:
        kind = {"schedule": name, "floor": floor, "peak_floor": peak, "error_bound": bound}
        return schedule_of(Adaptive.from_dict({**kind, "steps": steps}))

    return {
        "float32": None,
        "constant 4": of("constant", 4, 4),
        "constant 3": of("constant", 3, 3),
        "constant 2": of("constant", 2, 2),
        "constant 1": of("constant", 1, 1),
        "rising 2 to 4": of("rising", 2, 4),
        "falling 4 to 2": of("falling", 2, 4),
        "error below 0.8": of("error_bounded", 1, 4),
        "error below 0.4": of("error_bounded", 1, 4, 0.4),
    }


def _chosen(steps: int, only: str | None) -> dict[str, Schedule | None]:
    known = _schedules(steps)
    names = list(known) if only is None else ["float32", "constant 4", *only.split(",")]
    return {name: known[name] for name in dict.fromkeys(names)}


def _curve(
    task: Task, seed: int, ranks: int, steps: int, schedule: Schedule | None
) -> Iterator[tuple[int, float]]:
    """Yield bytes and validation loss, every few steps."""
    run = Training(task, seed, ranks)
    for step in range(steps):
        bits = None if schedule is None else schedule.floor(step, run.error)
        names = () if bits is None else run.numels
        run.step(step, {n: codec(bits, feedback=True) for n in names if bits is not None})
        if step % _EVERY == _EVERY - 1:
            yield run.sent_bytes, run.loss()


def _reached(curve: list[tuple[int, float]], goal: float) -> float:
    return next((float(sent) for sent, loss in curve if loss <= goal), float("inf"))


@click.command()
@click.option("--tasks", default="digits,text", show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--steps", default=120, show_default=True)
@click.option("--only", help="Schedules, parted by commas. [default: all]")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file with all curves.")
def main(
    *, tasks: str, seeds: int, ranks: int, steps: int, only: str | None, out: Path | None
) -> None:
    """Train with each schedule and compare bytes."""
    torch.set_num_threads(1)
    kept: dict[str, dict[str, list[list[tuple[int, float]]]]] = {}
    for name in tasks.split(","):
        task, found = task_of(name), kept.setdefault(name, {})
        for seed in range(seeds):
            for label, schedule in _chosen(steps, only).items():
                found.setdefault(label, []).append(list(_curve(task, seed, ranks, steps, schedule)))
        _show(name, found)
        if out is not None:
            out.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def _show(name: str, found: dict[str, list[list[tuple[int, float]]]]) -> None:
    goals = [curve[len(curve) * 2 // 3][1] for curve in found["float32"]]
    print(f"{name}: bytes to float32's loss at two thirds of the steps, over those of 4 bits")
    for label, curves in found.items():
        pairs = zip(curves, found["constant 4"], goals, strict=True)
        ratios = [_reached(c, goal) / _reached(base, goal) for c, base, goal in pairs]
        last = median(curve[-1][1] for curve in curves)
        print(
            f"  {label:16} {median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
            f"   last loss {last:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
