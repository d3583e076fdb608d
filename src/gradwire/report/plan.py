"""What `gradwire plan` has decided, and why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire.planner.search import Option
from gradwire.planner.select import BucketChoice, Decision
from gradwire.units import format_bytes, format_rate, format_seconds
from gradwire.workload import gradient_bytes

Rates = Mapping[str, tuple[float, float]]
"""By compressor: link speed below which it pays, alone and beside backward."""


def render_decision(decision: Decision, rates: Rates | None = None) -> Group:
    """Return a decision for printing on a rich console.

    Args:
        decision: From `select_plan`.
        rates: Break-even speeds; with them, every candidate is shown too.
    """
    parts: list[Any] = [Text(_summary(decision)), _buckets(decision)]
    if rates is not None:
        for choice in _different(decision):
            parts += [_candidates(choice), Text(_unusable(choice), "dim")]
        parts.append(_break_even(rates))
    return Group(*parts)


def _summary(decision: Decision) -> str:
    setting, found = decision.setting, decision.prediction
    gain = decision.plain_s / found.step_s
    link = setting.link
    return (
        f"{setting.workload.name} on {setting.world_size} ranks, "
        f"{format_rate(link.bandwidth_bytes_per_s)}, {format_seconds(link.latency_s)}: "
        f"{format_seconds(found.step_s)} a step, of which {format_seconds(found.exposed_s)} "
        f"is exchange; plain DDP {format_seconds(decision.plain_s)} ({gain:.2f}x)\n"
        f"bucket_cap_mb={decision.bucket_cap_mb}, {format_bytes(found.sent_bytes)} sent a step, "
        f"plan {decision.plan.digest()[:8]}\n"
        f"Why: {decision.reason}"
    )


def _buckets(decision: Decision) -> Table:
    table = Table(title="Buckets, as they become ready", title_justify="left", title_style="")
    for heading in ("bucket", "gradients", "ready", "uses", "sent", "codec", "alone"):
        table.add_column(heading, justify="right")
    for choice in decision.buckets:
        option = _chosen(choice)
        table.add_row(
            str(choice.bucket.index),
            format_bytes(gradient_bytes(choice.bucket.parameters)),
            format_seconds(choice.bucket.ready_s),
            choice.chosen,
            format_bytes(option.sent_bytes),
            format_seconds(option.codec_s),
            format_seconds(option.alone_s),
        )
    return table


def _chosen(choice: BucketChoice) -> Option:
    return next(o for o in choice.options if o.name == choice.chosen)


def _different(decision: Decision) -> list[BucketChoice]:
    """Return a bucket of each size and choice: others say the same."""
    kinds: dict[tuple[int, str], BucketChoice] = {}
    for choice in decision.buckets:
        kinds.setdefault((gradient_bytes(choice.bucket.parameters), choice.chosen), choice)
    return list(kinds.values())


def _candidates(choice: BucketChoice) -> Table:
    size = format_bytes(gradient_bytes(choice.bucket.parameters))
    title = f"Candidates for bucket {choice.bucket.index} ({size}), the others as chosen"
    table = Table(title=title, title_justify="left", title_style="")
    table.add_column("candidate", no_wrap=True)
    for heading in ("step", "alone", "codec", "sent", "error", "more steps", ""):
        table.add_column(heading, justify="right")
    for option in choice.options:
        if option.costs is None:
            continue
        table.add_row(
            option.name,
            format_seconds(choice.step_s[option.name]),
            format_seconds(option.alone_s),
            format_seconds(option.codec_s),
            format_bytes(option.sent_bytes),
            f"{option.error:.2g}",
            f"{option.harm:.1%}",
            "chosen" if option.name == choice.chosen else "",
        )
    return table


def _unusable(choice: BucketChoice) -> str:
    """Say what is no candidate, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for option in choice.options:
        if option.reason is not None:
            by_reason.setdefault(option.reason, []).append(option.name)
    return "\n".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _break_even(rates: Rates) -> Table:
    title = "Pays on links slower than"
    table = Table(title=title, title_justify="left", title_style="")
    for heading in ("compressor", "beside backward", "alone"):
        table.add_column(heading, justify="left" if heading == "compressor" else "right")
    for name, (alone, beside) in rates.items():
        table.add_row(name, _rate(beside), _rate(alone))
    return table


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s == 0:
        return "never"
    return "always" if math.isinf(bytes_per_s) else format_rate(bytes_per_s)


def decision_json(decision: Decision, rates: Rates | None = None) -> str:
    """Return a decision as JSON with sorted keys; speeds in bytes per second."""
    found = decision.prediction
    data: dict[str, Any] = {
        "format": 1,
        "plan": json.loads(decision.plan.to_json()),
        "bucket_cap_mb": decision.bucket_cap_mb,
        "step_s": found.step_s,
        "exposed_s": found.exposed_s,
        "sent_bytes": found.sent_bytes,
        "plain_s": decision.plain_s,
        "reason": decision.reason,
        "buckets": [_bucket_data(choice) for choice in decision.buckets],
    }
    if rates is not None:
        data["break_even"] = {
            # JSON has no infinity: null says that it always pays.
            name: {"alone": _finite(alone), "overlapped": _finite(beside)}
            for name, (alone, beside) in rates.items()
        }
    return json.dumps(data, indent=2, sort_keys=True)


def _finite(rate: float) -> float | None:
    return None if math.isinf(rate) else rate


def _bucket_data(choice: BucketChoice) -> dict[str, Any]:
    return {
        "index": choice.bucket.index,
        "parameters": [p.name for p in choice.bucket.parameters],
        "ready_s": choice.bucket.ready_s,
        "chosen": choice.chosen,
        "options": [
            {
                "name": o.name,
                "error": o.error,
                "harm": o.harm,
                "codec_s": o.codec_s,
                "alone_s": o.alone_s,
                "sent_bytes": o.sent_bytes,
                "step_s": choice.step_s.get(o.name),
                "reason": o.reason,
            }
            for o in choice.options
        ],
    }
