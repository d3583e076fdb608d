"""The ways to exchange gradients that a bench compares. No torch here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gradwire.demo.settings import Method
from gradwire.errors import SpecError, UnknownIdError
from gradwire.plan import load_plan
from gradwire.report.model import Family

ONE_BUCKET_MB = 1000.0

_BUCKETS = re.compile(r"(.*)@([0-9.]+)(v?)")
_PACKAGES = ("torchft", "hivemind")


class Known(NamedTuple):
    """A mode by its name without bucket size."""

    label: str
    family: Family
    note: str


MODES = {
    "nosync": Known("computation only", "compute", "no exchange: each rank trains alone"),
    "none": Known("plain DDP", "ddp", "float32 all-reduce"),
    "fp16": Known("fp16 hook", "hook", "PyTorch's fp16_compress_hook"),
    "bf16": Known("bf16 hook", "hook", "PyTorch's bf16_compress_hook, under another name"),
    "powersgd1": Known("PowerSGD rank 1", "hook", "PyTorch's powerSGD_hook; give it @1000"),
    "powersgd2": Known("PowerSGD rank 2", "hook", "PyTorch's powerSGD_hook; give it @1000"),
    "powersgd_batched": Known("PowerSGD batched", "hook", "PyTorch's batched_powerSGD_hook"),
    "torchft": Known("torchft", "hook", "torchft's DDP and Manager (extra: baselines)"),
    "hivemind": Known("hivemind", "hook", "hivemind's GradientAverager (extra: baselines)"),
}
"""Modes without a plan."""

PLANNED = {
    "gradwire": Known("gradwire", "gradwire", "gradwire.attach, with a plan file or short name"),
    "overlap": Known("overlap", "gradwire", "gradwire.overlap, which goes without DDP"),
}
"""Modes with a plan: `gradwire:int4`."""

DEFAULT_MODES = ",".join(
    (
        *("nosync", "none", "none@5", "fp16@5", "bf16@5", "powersgd1@1000"),
        *("gradwire:int6@5", "gradwire:int4@5", "gradwire:int2@5", "overlap:int4"),
    )
)


def parse_mode(text: str) -> Method:
    """Read a mode: a name, and after `@` the size of DDP's buckets in MiB.

    A `v` behind the size has gradients lie in DDP's buckets.

    Args:
        text: One of `MODES`, or of `PLANNED` with a colon and a short name or file.

    Raises:
        UnknownIdError: No such mode or plan.
        SpecError: The bucket size is not above 0.

    Example:
        >>> parse_mode("fp16@5").bucket_cap_mb
        5.0
        >>> parse_mode("none@5v").label
        'plain DDP, 5 MiB buckets, views'
        >>> parse_mode("gradwire:int4@broadcast").label
        'gradwire int4@broadcast'
    """
    match = _BUCKETS.fullmatch(text)
    name, size, views = match.groups() if match else (text, "", "")
    cap_mb = _bucket_cap_mb(text, size)
    suffix = f", {size} MiB buckets" if size and cap_mb != ONE_BUCKET_MB else ""
    suffix += ", views" if views else ""
    kind, _, plan = name.partition(":")
    if kind in PLANNED and plan:
        load_plan(plan)
        short = Path(plan).stem if plan.endswith(".json") else plan
        hook = None if kind == "gradwire" else kind
        label = f"{PLANNED[kind].label} {short}{suffix}"
        return Method(text, label, "gradwire", cap_mb, plan, hook, bool(views))
    if name not in MODES:
        planned = [f"{kind}:PLAN" for kind in PLANNED]
        raise UnknownIdError("mode", text, [*MODES, *planned, "each of them with @MB"])
    known = MODES[name]
    hook = None if name == "none" else name
    label = f"{known.label}{suffix}"
    return Method(text, label, known.family, cap_mb, hook=hook, has_views=bool(views))


def _bucket_cap_mb(text: str, size: str) -> float | None:
    if not size:
        return None
    try:
        cap_mb = float(size)
    except ValueError:
        cap_mb = 0.0
    if not cap_mb > 0:
        raise SpecError("mode", text, "a name with a bucket size above 0, such as none@5")
    return cap_mb


def parse_modes(text: str) -> tuple[Method, ...]:
    """Read modes parted by commas; a repeated one counts once.

    Example:
        >>> [m.name for m in parse_modes("none, fp16@5,none")]
        ['none', 'fp16@5']
    """
    return tuple(parse_mode(name) for name in dict.fromkeys(n.strip() for n in text.split(",")))
