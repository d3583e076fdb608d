"""The words of a report: table rows and sentences that text and HTML share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gradwire.report.model import DemoResult
from gradwire.report.summary import Comparison, Spread, Summary, comparisons, summarise
from gradwire.units import format_rate, format_seconds


class Row(NamedTuple):
    """One line of the results: a quantity with its unit, a cell a method."""

    heading: str
    cells: tuple[str, ...]


def _milliseconds(spread: Spread) -> str:
    return f"{1e3 * spread.median:.0f} ± {1e3 * spread.half_iqr:.0f}"


def _target(summary: Summary) -> str:
    reached_s = summary.target.reached_s
    return "not reached" if reached_s is None else f"{reached_s:.1f}"


_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("Step, ms", lambda s: _milliseconds(s.step_s)),
    ("  forward, ms", lambda s: _milliseconds(s.forward_s)),
    ("  backward, ms", lambda s: _milliseconds(s.backward_s)),
    ("  exposed comm., ms", lambda s: _milliseconds(s.exposed_s)),
    ("  optimiser, ms", lambda s: _milliseconds(s.optimiser_s)),
    ("Sent per step, MB", lambda s: f"{s.sent_bytes.median / 1e6:.3g}"),
    ("Training time, s", lambda s: f"{s.training_s:.1f}"),
    ("Training loss at end", lambda s: f"{s.final_loss:.3f}"),
    ("Validation loss", lambda s: f"{s.validation.loss:.3f}"),
    ("Validation accuracy, %", lambda s: f"{100 * s.validation.accuracy:.1f}"),
    ("Time to DDP's loss, s", _target),
    ("Ranks bit-identical", lambda s: "yes" if s.method.is_replicated else "NO"),
)


def table(summaries: Sequence[Summary]) -> list[Row]:
    """Return the results table, one row a quantity, one cell a method."""
    return [Row(name, tuple(cell(s) for s in summaries)) for name, cell in _ROWS]


def setting_line(result: DemoResult) -> str:
    """Say in one line what was run and where."""
    s, where = result.settings, result.environment
    link = "no link limit"
    if s.link_bytes_per_s is not None:
        link = format_rate(s.link_bytes_per_s)
    return (
        f"Task {s.task} ({s.num_parameters / 1e6:.3g} M parameters), {s.ranks} ranks on "
        f"{where.cores} cores, {s.steps} steps of {s.ranks} x {s.batch_size}, link {link}, "
        f"latency {format_seconds(s.latency_s)}, seed {s.seed}."
    )


def notes(result: DemoResult) -> list[str]:
    """Return what a reader needs to judge the numbers."""
    s = result.settings
    chosen = [f"{m.label} chose {m.why}." for m in result.methods if m.why]
    return [
        *chosen,
        (
            "Times are rank 0's: median ± half the interquartile range of "
            f"{s.steps - s.untimed_steps} steps. Medians leave out the first {s.untimed_steps} "
            "(buckets are rebuilt, buffers made); training time does not."
        ),
        "PowerSGD's first two steps are dense, as its hook needs; the medians leave them out.",
        (
            "Exposed comm. (communication): from the last ready gradient to the end of backward(); "
            "under AQGB, what the next forward waits for. Its step's bytes are those before."
        ),
        (
            "Training loss at end: mean of the last 5 steps. Time to DDP's loss: training time "
            "until that mean was within 1 % of plain DDP's at its end. Validation is not timed."
        ),
        "One run on one machine: every rank shares its cores, and the link is emulated.",
    ]


def verdicts(result: DemoResult) -> list[str]:
    """Say what gradwire gained or lost, against plain DDP and PyTorch's fastest hook."""
    found = comparisons(summarise(result))
    if not found:
        return ["gradwire was not among the methods, so there is nothing to compare."]
    return [_sentence(c) for c in found]


def _sentence(comparison: Comparison) -> str:
    subject, other = comparison.subject, comparison.other
    against = other.method.label
    if other.method.family == "hook":
        against = f"PyTorch's fastest hook ({against})"
    mine, theirs = (1e3 * s.step_s.median for s in (subject, other))
    ratio = comparison.speedup
    verb = "WINS" if ratio > 1 else "LOSES"
    factor = f"{ratio:.2f} times faster" if ratio > 1 else f"{1 / ratio:.2f} times slower"
    time = f"{verb} time: a step is {factor} ({mine:.0f} ms, not {theirs:.0f} ms)"
    if not comparison.is_time_clear:
        time = f"is level in time: {mine:.0f} ms and {theirs:.0f} ms a step, within the spread"
    return f"{subject.method.label} against {against}: {time}; {_loss_words(comparison)}."


def _loss_words(comparison: Comparison) -> str:
    change = comparison.loss_change
    if round(change, 3) == 0:
        return "training loss is the same"
    if not comparison.is_loss_clear:
        return f"training loss differs by {change:+.3f}, within the spread"
    if change > 0:
        return f"LOSES in training loss, which ends {change:.3f} higher"
    return f"training loss ends {-change:.3f} lower"
