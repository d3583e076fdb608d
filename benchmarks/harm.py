"""How many more steps does training take to a loss at each level of bits?

    python benchmarks/harm.py [--tasks digits,text] [--seeds 3] [--steps 90] [--only ...]

Ranks live in one process and take turns, so no clock is involved. Each way gives
every matrix, or only the largest or all but the largest, a level with feedback;
what is not named travels in 4 bits. Printed are the steps to the loss that float32
has after two thirds of its steps, over those of float32, beside what
`gradwire.planner.harm` says of the deferrals that were measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click
import torch
from torch import Tensor, nn

from gradwire.bench import models
from gradwire.codecs.base import Segments, build
from gradwire.control.levels import SPARSE_DENSITY, codec
from gradwire.demo.tasks import ByteModel, Task, Text, evaluate, loss_of
from gradwire.key import Key
from gradwire.planner.harm import harm
from gradwire.spec import CodecSpec, Quantize, Sparse

LEAST_NUMEL = 1024
_EVERY = 3
_BASE = 4


class SmallText(Text):
    """The demo's text, by a GPT small enough to be trained many times."""

    def model(self, seed: int) -> nn.Module:
        """See `Task.model`."""
        torch.manual_seed(seed)
        return ByteModel(width=128, num_layers=2, num_heads=4, context=self.context)


def task_of(name: str) -> Task:
    """Build a task; `text` with a small model."""
    return SmallText(4) if name == "text" else models.build(name, 0)


class Training:
    """One training in which each matrix has a codec, and each rank a residual.

    Args:
        task: What is learned.
        seed: Of model and batches.
        ranks: How many.
    """

    def __init__(self, task: Task, seed: int, ranks: int) -> None:
        self.model = task.model(seed)
        self.sent_bytes = 0
        self.squares: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self._task, self._seed, self._ranks = task, seed, ranks
        self._optimizer = task.optimiser(self.model)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.numels = {
            n: p.numel()
            for n, p in self.parameters.items()
            if p.dim() > 1 and p.numel() >= LEAST_NUMEL
        }
        self._owed = [{n: torch.zeros(k) for n, k in self.numels.items()} for _ in range(ranks)]

    @property
    def error(self) -> float:
        """Norm of what the last step did not send, over that of what was owed."""
        owed = sum(self.squares.values())
        return (sum(self.kept.values()) / owed) ** 0.5 if owed else 0.0

    def step(self, number: int, codecs: Mapping[str, CodecSpec], *, feedback: bool = True) -> None:
        """Make a step; matrices that are not named travel in float32."""
        means = {n: torch.zeros(p.numel()) for n, p in self.parameters.items()}
        self.squares, self.kept = dict.fromkeys(codecs, 0.0), dict.fromkeys(codecs, 0.0)
        for rank in range(self._ranks):
            self._optimizer.zero_grad()
            loss_of(self.model, *self._task.batch(rank, self._ranks, self._seed, number)).backward()
            for n, p in self.parameters.items():
                assert p.grad is not None, "all are used"
                x = p.grad.flatten()
                if n not in codecs:
                    self.sent_bytes += 4 * x.numel() if rank == 0 else 0
                    means[n] += x / self._ranks
                    continue
                residual = self._owed[rank][n] if feedback else None
                sent = self._rounded(x, residual, codecs[n], Key(self._seed, number, rank))
                whole = x if residual is None else sent + residual
                self.squares[n] += float(whole.square().sum())
                self.kept[n] += float((whole - sent).square().sum())
                means[n] += sent / self._ranks
        for n, p in self.parameters.items():
            p.grad = means[n].view_as(p)
        self._optimizer.step()

    def _rounded(self, x: Tensor, residual: Tensor | None, spec: CodecSpec, key: Key) -> Tensor:
        encoder, whole = build(spec), Segments.whole(x.numel())
        payload = encoder.encode(x.clone(), whole, key, residual)
        self.sent_bytes += payload.numel() if key.rank == 0 else 0
        out = torch.empty_like(x)
        encoder.decode(payload[None], whole, out)
        return out

    def loss(self) -> float:
        """Return the loss on held-out data."""
        score = evaluate(self._task, self.model, 0, 1)
        return score.loss_sum / score.num_targets


def _level(name: str) -> CodecSpec:
    return Sparse(SPARSE_DENSITY) if name == "sparse" else codec(int(name), feedback=True)


def _codecs(way: str, numels: Mapping[str, int]) -> dict[str, CodecSpec]:
    """Read a way: `float32`, `qsgd4`, or a level, as in `1`, `largest:1` or `rest:sparse`."""
    if way == "float32":
        return {}
    if way == "qsgd4":
        return dict.fromkeys(numels, Quantize(_BASE, block_size=512, scale="l2"))
    where, _, level = way.rpartition(":")
    largest = max(numels, key=lambda n: numels[n])
    chosen = {
        "": lambda _: True,
        "largest": lambda n: n == largest,
        "rest": lambda n: n != largest,
        "first": lambda n: n == next(iter(numels)),
    }[where]
    return {n: _level(level if chosen(n) else str(_BASE)) for n in numels}


def _train(task: Task, seed: int, ranks: int, steps: int, way: str) -> dict[str, Any]:
    """Return the curve of the loss, and each layer's deferral and share of the square."""
    run = Training(task, seed, ranks)
    codecs = _codecs(way, run.numels)
    curve, squares, kept = [], dict.fromkeys(codecs, 0.0), dict.fromkeys(codecs, 0.0)
    predicted = []
    for step in range(steps):
        run.step(step, codecs, feedback=way != "qsgd4")
        total = sum(run.squares.values())
        if codecs:
            predicted.append(
                sum(
                    harm(run.kept[n] / s, feedback=way != "qsgd4") * s / total
                    for n, s in run.squares.items()
                    if s
                )
            )
        for n in codecs:
            squares[n] += run.squares[n] / total / steps
            kept[n] += run.kept[n] / max(run.squares[n], 1e-30) / steps
        if step % _EVERY == _EVERY - 1:
            curve.append((step + 1, run.loss()))
    return {
        "curve": curve,
        "share": squares,
        "deferred": kept,
        "harm": fmean(predicted) if predicted else 0.0,
        "bytes": run.sent_bytes / steps,
    }


def steps_to(curve: list[tuple[int, float]], goal: float) -> float:
    """Return the steps to a loss, in a straight line between two points."""
    before = None
    for step, loss in curve:
        if loss <= goal:
            if before is None or before[1] <= loss:
                return float(step)
            return before[0] + (before[1] - goal) / (before[1] - loss) * (step - before[0])
        before = (step, loss)
    return float("inf")


_WAYS = "float32,qsgd4,4,3,2,1,sparse,largest:2,largest:1,largest:sparse,rest:1"


@click.command()
@click.option("--tasks", default="digits,text", show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--steps", default=90, show_default=True)
@click.option("--ways", default=_WAYS, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file with all curves.")
def main(*, tasks: str, seeds: int, ranks: int, steps: int, ways: str, out: Path | None) -> None:
    """Train with each way and compare steps."""
    torch.set_num_threads(1)
    kept: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in tasks.split(","):
        task, found = task_of(name), kept.setdefault(name, {})
        print(f"{name}, {ranks} ranks: steps to float32's loss, over those of float32", flush=True)
        for way in ways.split(","):
            found[way] = [_train(task, seed, ranks, steps, way) for seed in range(seeds)]
            _show(way, found)
            if out is not None:
                out.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def _show(way: str, found: Mapping[str, list[dict[str, Any]]]) -> None:
    goals = [c["curve"][len(c["curve"]) * 2 // 3][1] for c in found["float32"]]
    pairs = list(zip(found[way], found["float32"], goals, strict=True))
    ratios = [steps_to(r["curve"], g) / steps_to(f["curve"], g) for r, f, g in pairs]
    harms = [r["harm"] for r in found[way]]
    layers = " ".join(
        f"{n.removesuffix('.weight')} {fmean(r['deferred'][n] for r in found[way]):.2f}"
        f"*{fmean(r['share'][n] for r in found[way]):.2f}"
        for n in list(found[way][0]["deferred"])[:6]
    )
    print(
        f"  {way:15} {median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        f"  1 + harm {1 + median(harms):.2f}"
        f"  loss {median(r['curve'][-1][1] for r in found[way]):.3f}  {layers}",
        flush=True,
    )


if __name__ == "__main__":
    main()
