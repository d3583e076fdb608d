"""Whether measured costs have moved so far that a plan should be chosen anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradwire.hardware import Hardware, Line, LinkSpeed

DRIFT = 0.2
"""A plan is chosen anew where a cost has changed by more than this share."""

_TYPICAL_BYTES = 4 << 20


def drifted(before: Hardware, after: Hardware, limit: float = DRIFT) -> dict[str, float]:
    """Return which costs have changed, and by what factor.

    Compared are the times of 4 MiB, of all that both have measured. Changes no
    larger than the measurements scatter are left out.

    Args:
        before: What the plan was chosen for.
        after: What is measured now.
        limit: Share from which on a change counts.

    Example:
        >>> from gradwire.hardware import Device
        >>> was, now = (
        ...     Hardware(Device(), {}, LinkSpeed(0.0, rate), LinkSpeed(0.0, 1e8))
        ...     for rate in (1e9, 5e8)
        ... )
        >>> drifted(was, now)
        {'link within': 2.0}
    """
    now = dict(_lines(after))
    changes = {}
    for name, line in _lines(before):
        if name not in now:
            continue
        ratio = now[name].time_s(_TYPICAL_BYTES) / line.time_s(_TYPICAL_BYTES)
        scatter = line.spread + now[name].spread
        if max(ratio, 1 / ratio) - 1 > max(limit, scatter):
            changes[name] = round(ratio, 3)
    return changes


def moved(hardware: Hardware, before: tuple[float, float], now: tuple[float, float]) -> Hardware:
    """Return the hardware whose costs have changed as those of a step have.

    Args:
        hardware: As it was.
        before: Seconds of link and codec in a step then.
        now: And now, under the same plan.

    Example:
        >>> from gradwire.hardware import Device
        >>> link = LinkSpeed(0.0, 1e9)
        >>> now = moved(Hardware(Device(), {}, link, link), (1.0, 1.0), (2.0, 1.0))
        >>> now.within.bandwidth_bytes_per_s
        500000000.0
    """
    link, codec = (b / a if a and b else 1.0 for a, b in zip(before, now, strict=True))

    def slower(speed: LinkSpeed) -> LinkSpeed:
        rate = speed.bandwidth_bytes_per_s / link
        lines = {k: _times(v, link) for k, v in speed.collectives.items()}
        return replace(
            speed,
            latency_s=speed.latency_s * link,
            bandwidth_bytes_per_s=rate,
            collectives=lines,
        )

    kernels = {name: _times(line, codec) for name, line in hardware.kernels.items()}
    return replace(
        hardware, kernels=kernels, within=slower(hardware.within), between=slower(hardware.between)
    )


def _lines(hardware: Hardware) -> Iterator[tuple[str, Line]]:
    yield from hardware.kernels.items()
    for level, link in (("within", hardware.within), ("between", hardware.between)):
        yield f"link {level}", _line(link)


def _line(link: LinkSpeed) -> Line:
    return Line(link.latency_s, 1 / link.bandwidth_bytes_per_s, link.spread)


def _times(line: Line, factor: float) -> Line:
    return Line(line.fixed_s * factor, line.s_per_byte * factor, line.spread)
