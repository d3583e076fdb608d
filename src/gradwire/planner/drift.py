"""Whether measured costs have moved so far that a plan should be chosen anew."""

from __future__ import annotations

from collections.abc import Iterator

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


def _lines(hardware: Hardware) -> Iterator[tuple[str, Line]]:
    yield from hardware.kernels.items()
    for level, link in (("within", hardware.within), ("between", hardware.between)):
        yield f"link {level}", _line(link)


def _line(link: LinkSpeed) -> Line:
    return Line(link.latency_s, 1 / link.bandwidth_bytes_per_s, link.spread)
