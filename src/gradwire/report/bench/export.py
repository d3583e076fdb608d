"""The summary of a bench for machines: JSON, and CSV with a row a cell and mode."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from gradwire.report.bench.changes import Change, compare_results
from gradwire.report.bench.summary import CellSummary, ModeSummary, Numbers, summarise_bench
from gradwire.report.bench.verdicts import verdict
from gradwire.report.results import BenchResult

_FORMAT = 1
_CELL_FIELDS = ("model", "num_parameters", "ranks", "rate_bytes_per_s", "latency_s", "network")


def bench_json(
    result: BenchResult,
    other: BenchResult | None = None,
    *,
    euro_per_rank_hour: float | None = None,
) -> str:
    """Return the summary as one JSON object; what was not measured is null.

    So are numbers that JSON cannot write: a loss that diverged, and ROW where
    nothing was exposed (`exposed_s` is 0 there).

    Args:
        result: What the bench measured.
        other: A later result; then the summary is of that one, and `changes`
            lists each mode's way from the first to the second.
        euro_per_rank_hour: Price of one rank, for the cost of a training.
    """
    shown = result if other is None else other
    summaries = summarise_bench(shown, euro_per_rank_hour=euro_per_rank_hour)
    data: dict[str, Any] = {
        "format": _FORMAT,
        "started": shown.started,
        "environment": asdict(shown.environment),
        "settings": dict(shown.settings),
        "cells": [_finite(_cell(summary)) for summary in summaries],
    }
    if other is not None:
        found = compare_results(result, other)
        data["changes"] = {
            name: [_finite(_change(c)) for c in rows] for name, rows in found.cells.items()
        }
        data["remarks"] = list(found.remarks)
    return json.dumps(data, indent=1, allow_nan=False)


def bench_csv(result: BenchResult, *, euro_per_rank_hour: float | None = None) -> str:
    """Return one row a cell and mode; what was not measured is empty.

    Args:
        result: What the bench measured.
        euro_per_rank_hour: Price of one rank, for the cost of a training.
    """
    rows = [
        {**_cell_fields(summary), **_flat(_mode(mode))}
        for summary in summarise_bench(result, euro_per_rank_hour=euro_per_rank_hour)
        for mode in summary.modes
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, _columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _change(change: Change) -> dict[str, Any]:
    spreads = {"before_s": asdict(change.before_s), "after_s": asdict(change.after_s)}
    return {**change._asdict(), **spreads, "verdict": change.verdict}


def _cell_fields(summary: CellSummary) -> dict[str, Any]:
    return {name: getattr(summary.cell, name) for name in _CELL_FIELDS}


def _cell(summary: CellSummary) -> dict[str, Any]:
    return {
        **_cell_fields(summary),
        "plain_ddp": summary.ddp and summary.ddp.mode,
        "best_hook": summary.hook and summary.hook.mode,
        "verdict": verdict(summary),
        "modes": [_mode(mode) for mode in summary.modes],
    }


def _mode(summary: ModeSummary) -> dict[str, Any]:
    mode = summary.mode
    about = {"mode": mode.mode, "label": mode.label, "family": mode.family, "reason": mode.reason}
    numbers = {} if summary.numbers is None else _numbers(summary.numbers)
    rounds = {"rounds": len(mode.rounds), "steps": len(mode.steps)}
    doubts = [{"kind": doubt.kind, "reason": doubt.reason} for doubt in summary.doubts]
    return {**about, **rounds, **numbers, "doubts": doubts}


def _numbers(numbers: Numbers) -> dict[str, Any]:
    return {**asdict(numbers), "times_smaller": numbers.times_smaller}


def _finite(value: Any) -> Any:  # noqa: ANN401 - whatever JSON knows
    """Put None, which JSON has, in place of infinity and NaN, which it has not."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _columns() -> tuple[str, ...]:
    """Return the same columns for every result, measured or not."""
    names = [*_CELL_FIELDS, "mode", "label", "family", "reason", "rounds", "steps"]
    for name, hint in get_type_hints(Numbers).items():
        parts = next((fields(t) for t in (hint, *get_args(hint)) if is_dataclass(t)), ())
        names += [f"{name}_{part.name}" for part in parts] or [name]
    return (*names, "times_smaller", "doubts")


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """Name nested numbers by both names: `step_s` becomes `step_s_median`, `step_s_half_iqr`."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{part}": number for part, number in value.items()}
        elif isinstance(value, list):
            flat[name] = "; ".join(doubt["reason"] for doubt in value)
        elif value is not None:
            flat[name] = value
    return flat
