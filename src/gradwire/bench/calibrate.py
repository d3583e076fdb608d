"""Fits a machine's speeds to steps whose exchange takes no time. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradwire.hardware import Hardware, Line, LinkSpeed

_FREE = LinkSpeed(latency_s=0.0, bandwidth_bytes_per_s=1e15)
_MOST = 64.0
_HALVINGS = 16


def calibrated(hardware: Hardware, step_s: Callable[[Hardware], float], alone_s: float) -> Hardware:
    """Slow codecs down until a step without network takes as long as measured.

    Lines of kernels are measured by themselves, on data in the caches; in
    training they meet memory that computation has just used, the interpreter's
    lock, and other ranks on the same cores. One factor stands for all of it.

    Args:
        hardware: Speeds as measured by themselves.
        step_s: Simulates a step on some hardware.
        alone_s: A measured step whose exchange takes no time.

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

    def is_short(factor: float) -> bool:
        return step_s(_slowed(without_network, factor)) < alone_s

    low, high = 0.0, 1.0
    if not is_short(low):
        return _slowed(hardware, low)
    while high < _MOST and is_short(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_short(middle) else (low, middle)
    return _slowed(hardware, high)


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

    That is once a step: a first exchange brings them together. Measured as
    a tiny all-reduce right after computation, over the same one by itself.

    Example:
        >>> lines = {"all_reduce": Line(1e-3, 2e-9)}
        >>> link = LinkSpeed(1e-4, 1e9, 0.0, lines, 2, after={"all_reduce": Line(3e-3, 1e-9)})
        >>> lateness_s(link)
        0.002
    """
    by_itself, after = link.collectives.get("all_reduce"), link.after.get("all_reduce")
    if by_itself is None or after is None:
        return 0.0
    return max(0.0, after.fixed_s - by_itself.fixed_s)
