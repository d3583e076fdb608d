"""Fits a machine's speeds to steps whose exchange takes no time. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradwire.hardware import Hardware, Line, LinkSpeed

_FREE = LinkSpeed(latency_s=0.0, bandwidth_bytes_per_s=1e15)
_MOST = 64.0
_TRIES = 16
_CLOSE = 1e-4


def calibrated(
    hardware: Hardware, seconds: Callable[[Hardware], float], measured_s: float
) -> Hardware:
    """Slow codecs and copies down until a step without network is as measured.

    Lines of kernels are measured by themselves, on data in the caches; in
    training they meet memory that computation has just used, and the
    interpreter's work around them. One factor stands for all of it.

    Args:
        hardware: Speeds as measured by themselves.
        seconds: Simulates a step on some hardware, and tells its time or its
            work; more for slower codecs.
        measured_s: The same of measured steps whose exchange takes no time.

    Returns:
        The hardware with its links, and with codecs and copies scaled; free
        ones where the measured step left them no time.

    Example:
        >>> from gradwire.hardware import Device
        >>> link = LinkSpeed(0.0, 1e9)
        >>> hardware = Hardware(Device(), {"encode int4": Line(1.0, 0.0)}, link, link)
        >>> found = calibrated(hardware, lambda h: h.kernels["encode int4"].fixed_s, 3.0)
        >>> round(found.kernels["encode int4"].fixed_s, 2)
        3.0
    """
    without_network = replace(hardware, within=_FREE, between=_FREE)

    def over_s(factor: float) -> float:
        return seconds(_slowed(without_network, factor)) - measured_s

    low, high = 0.0, 1.0
    below, above = over_s(low), over_s(high)
    if below >= 0:
        return _slowed(hardware, low)
    while above < 0 and high < _MOST:
        low, below, high = high, above, 2 * high
        above = over_s(high)
    factor = high
    for _ in range(_TRIES if above > 0 else 0):  # on the line through both: work is one
        factor = low - below * (high - low) / (above - below)
        over = over_s(factor)
        if abs(over) <= _CLOSE * measured_s:
            break
        low, below, high, above = (
            (factor, over, high, above) if over < 0 else (low, below, factor, over)
        )
    return _slowed(hardware, factor)


def _slowed(hardware: Hardware, factor: float) -> Hardware:
    kernels = {
        name: Line(line.fixed_s * factor, line.s_per_byte * factor, line.spread)
        for name, line in hardware.kernels.items()
    }
    copy_bytes_per_s = hardware.device.copy_bytes_per_s / max(factor, 1e-9)
    launch_s = hardware.device.launch_s * factor
    device = replace(hardware.device, copy_bytes_per_s=copy_bytes_per_s, launch_s=launch_s)
    return replace(hardware, device=device, kernels=kernels)


def lateness_s(link: LinkSpeed) -> float:
    """Return what a step loses because ranks end computation at different times.

    That is once a step: a first exchange brings them together. Measured as a
    tiny collective right after computation, over the same one by itself; of
    several the least, as what disturbs a measurement only ever delays it.

    Example:
        >>> lines = {"all_reduce": Line(1e-3, 2e-9)}
        >>> link = LinkSpeed(1e-4, 1e9, 0.0, lines, 2, after={"all_reduce": Line(3e-3, 1e-9)})
        >>> lateness_s(link)
        0.002
    """
    lost = (
        link.after[name].fixed_s - by_itself.fixed_s
        for name, by_itself in link.collectives.items()
        if name in link.after
    )
    return max(0.0, min(lost, default=0.0))
