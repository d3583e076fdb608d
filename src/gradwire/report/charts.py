"""Charts as inline SVG that follow the page's colours, light and dark."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gradwire.report.bars import PARTS, HasParts, part_spreads
from gradwire.report.model import Family, MethodResult
from gradwire.report.summary import Summary, smoothed_losses, training_times

_INK = "#010203"
PAGE = "#010204"
"""Colour of the page itself, for text on coloured ground."""
SERIES = [f"#0a0b{i:02x}" for i in range(1, 11)]
"""Colours of lines; the page says what they look like on a light and on a dark ground."""
_BY_FAMILY: dict[Family, tuple[int, ...]] = {
    "ddp": (0,),
    "hook": (1, 2, 5, 7),
    "gradwire": (3, 4, 6, 8, 9),
    "compute": (0,),
}
_PARTS = ["#0c0d01", "#0c0d02", "#0c0d03", "#0c0d04"]
_VARIABLES = (
    {_INK: "currentColor", PAGE: "var(--page)"}
    | {colour: f"var(--series-{i})" for i, colour in enumerate(SERIES)}
    | {colour: f"var(--part-{i})" for i, colour in enumerate(_PARTS)}
)
_DASHES = [":", "--", "-.", "-", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1))]
_WIDE = 1e4
_LEGEND_HALF = 24
"""Letters of a label that fit into half the width."""

_TRAINING_LOSS = "Training loss, mean of 5 steps"
MEGABYTES = "Sent by one rank, MB (logarithmic)"
"""Label of an axis of bytes."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradwire",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
}
"""What every chart has in common; its ink becomes the page's."""


class Curve(NamedTuple):
    """One line of a chart: points, and whose they are."""

    label: str
    family: Family
    xs: Sequence[float]
    ys: Sequence[float]


def loss_against_time(summaries: Sequence[Summary]) -> str:
    """Draw the smoothed training loss over training time."""
    curves = [_training_curve(s.method, training_times(s.method.steps)) for s in summaries]
    return draw_curves(curves, "Training time, s", _TRAINING_LOSS)


def loss_against_bytes(summaries: Sequence[Summary]) -> str:
    """Draw the smoothed training loss over bytes sent."""
    curves = [
        _training_curve(s.method, [b / 1e6 for b in _sent_bytes(s.method)]) for s in summaries
    ]
    return draw_curves([above_zero(c) for c in curves], MEGABYTES, _TRAINING_LOSS, log=True)


def above_zero(curve: Curve) -> Curve:
    """Leave out points that have no place on a logarithmic axis.

    Example:
        >>> above_zero(Curve("int4", "gradwire", [0.0, 2.0], [3.0, 1.0])).ys
        [1.0]
    """
    kept = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if x > 0]
    return curve._replace(xs=[x for x, _ in kept], ys=[y for _, y in kept])


def _training_curve(method: MethodResult, xs: Sequence[float]) -> Curve:
    return Curve(method.label, method.family, xs, smoothed_losses(method.steps))


def _sent_bytes(method: MethodResult) -> list[int]:
    return list(accumulate(step.sent_bytes for step in method.steps))


def step_breakdown(methods: Sequence[tuple[str, HasParts]]) -> str:
    """Draw the parts of a median step as stacked bars.

    Args:
        methods: Label and numbers of each, from top to bottom.
    """
    with mpl.rc_context(STYLE):
        figure, axes = new_axes(0.5 * len(methods) + 1.3, width=8.5)
        labels = [label for label, _ in methods]
        left = [0.0] * len(methods)
        for i, part in enumerate(PARTS):
            widths = [1e3 * part_spreads(numbers)[i].median for _, numbers in methods]
            axes.barh(labels, widths, left=left, color=_PARTS[i], label=part, height=0.6)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("Medians of the parts of a step, ms")
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4)
        return to_svg(figure, "Parts of a median step, as stacked bars; the table has the numbers")


def draw_curves(
    curves: Sequence[Curve], xlabel: str, ylabel: str, *, log: bool = False, about: str = ""
) -> str:
    """Draw lines with a legend below; gradwire's are the thick ones.

    Args:
        curves: At least one.
        xlabel: Quantity and unit.
        ylabel: Quantity and unit.
        log: Whether the horizontal axis is logarithmic.
        about: What sets this chart apart from others on its page.
    """
    with mpl.rc_context(STYLE):
        columns = 2 if max(len(curve.label) for curve in curves) <= _LEGEND_HALF else 1
        figure, axes = new_axes(3.1 + 0.2 * -(-len(curves) // columns))
        made: Counter[Family] = Counter()
        for i, curve in enumerate(curves):
            pool = _BY_FAMILY[curve.family]
            axes.plot(
                curve.xs,
                curve.ys,
                color=SERIES[pool[made[curve.family] % len(pool)]],
                linestyle=_DASHES[i % len(_DASHES)],
                linewidth=2.5 if curve.family == "gradwire" else 1.5,
                label=curve.label,
            )
            made[curve.family] += 1
        if log:
            axes.set_xscale("log")
            xs = [x for curve in curves for x in curve.xs]
            is_wide = bool(xs) and max(xs) > _WIDE * min(xs)
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        figure.legend(loc="outside lower center", ncols=columns, handlelength=3)
        what = f"{ylabel} against {xlabel[0].lower()}{xlabel[1:]}, a line a method"
        return to_svg(figure, f"{what}; {about}" if about else what)


def new_axes(height: float, width: float = 5.2) -> tuple[Figure, Axes]:
    """Begin a chart; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    axes.set_axisbelow(True)
    return figure, axes


def to_svg(figure: Figure, description: str) -> str:
    """Render a figure with the page's variables in place of its colours."""
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    body = body[body.index(">", body.index("<svg")) + 1 :].replace("xlink:href", "href")
    body = re.sub(r"font-family: [^;]+;", "font-family: inherit;", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    digest = hashlib.blake2b(description.encode(), digest_size=4)
    body = _with_own_ids(body, f"chart-{digest.hexdigest()}")
    return f'<svg {view[0]} role="img" aria-label="{escape(description)}">{body}'


def _with_own_ids(body: str, prefix: str) -> str:
    """Drop ids nothing refers to; prefix the others, as a page holds several charts."""
    used = set(re.findall(r"#([\w-]+)[\")]", body))
    body = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", body)
    for name in used:
        body = re.sub(rf'(id="|#){name}([")])', rf"\g<1>{prefix}-{name}\2", body)
    return body
